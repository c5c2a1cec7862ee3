"""A model fitted to a table: whole tasks are held out, some to end training by, others to score it beside rivals."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.data.frames import Augmentation, FrameTasks
from nvdp.data.tables import Columns, TaskTable, read_tasks
from nvdp.errors import InputError
from nvdp.loading import Predictor, write_fit
from nvdp.models.registry import model_spec
from nvdp.system import new_folder, terminated_as_exit
from nvdp.tables.rivals import (
    SCORED_CASES,
    Case,
    context_gp,
    fitted_model,
    mean_curve,
    score_cases,
    scored_cases,
    summary,
)
from nvdp.tables.tasks import Arrays, in_folds, split_held_out, standardised
from nvdp.training.early_stopping import Candidate, FitOutcome, Shown, fit_best, held_out_score
from nvdp.training.presets import SMALL, table_config
from nvdp.units import Units

MOST_STEPS = 30_000
SCORED_SHARE, FEWEST_FOR_BOTH = 0.2, 10
MOST_ROWS = 10_000  # of one task; a step uses 100 of them
STILL_IMPROVING = 0.02  # nats gained in the last fifth of the training
GP_ALONE, MEAN_CURVE = "GP on the context alone", "mean curve of all tasks"
CaseScores = dict[str, list[Case]]


@dataclass(frozen=True)
class Recipe:
    """What keeps a model from overfitting few tasks: augmentation, and a smaller or better informed model."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    model: dict[str, Any] = field(default_factory=dict)  # settings that differ
    kl: float = 1.0  # times the usual weight, of a dropout posterior


AS_THEY_ARE = "as they are"
MILD, STRONG = Augmentation(jitter=0.03, shift=0.1, stretch=0.1), Augmentation(jitter=0.05, shift=0.4, stretch=0.3)
NARROW = {"decoder.width": 32, "encoder.size": 32, "rates.width": 32, "decoder.latent": 16}
FEW = {  # which of them, the held-out tasks say
    "jittered": Recipe(MILD),
    "jittered, decoder told r": Recipe(MILD, {"decoder.sees": "x,r"}),
    "moved, narrow": Recipe(STRONG, NARROW, kl=10.0),
}
MANY = {AS_THEY_ARE: Recipe()}


def candidates(name: str, training: FrameTasks, tasks: int, steps: int, seed: int) -> list[Candidate]:
    """The ways to fit so many tasks: one, or with few of them several to choose from."""
    base = table_config(name, training.x_dim, training.y_dim, tasks, steps, seed)
    ways = []
    for way, recipe in (FEW if tasks < SMALL else MANY).items():
        if "decoder.sees" in recipe.model and name != "nvdp":
            continue  # the decoders of the others see r anyway
        config = replace(base, model=base.model.updated(recipe.model))
        if model_spec(name).dropout:
            config = replace(config, kl=replace(config.kl, weight=config.kl.weight * recipe.kl))
        ways.append(Candidate(way, config, replace(training, augmentation=recipe.augmentation)))
    return ways


@dataclass(frozen=True)
class HowToFit:
    """The model, and how long it may take."""

    model: str = "nvdp"
    steps: int = MOST_STEPS
    minutes: float = 5.0
    seed: int = 0
    progress: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class TableFit:
    """A fitted model, tasks that it is drawn on (x, y) and what there is to say about it."""

    predictor: Predictor
    shown: list[Arrays]
    report: dict[str, Any]


def usable_tasks(table: TaskTable, origin: str) -> list[Arrays]:
    """The tasks with at least two points, at most `MOST_ROWS` random ones of each; at least two such are needed."""
    random = np.random.default_rng(0)
    usable = []
    for task in table.tasks:
        if len(task.x) >= 2:
            kept = np.sort(random.permutation(len(task.x))[:MOST_ROWS])
            usable.append((task.x[kept], task.y[kept]))
    if len(usable) < 2:
        raise InputError(
            f"{origin} has {len(table.tasks)} tasks, {len(usable)} of them with at least 2 whole rows; "
            "learning from tasks needs at least 2 such"
        )
    return usable


def fit_table(
    file: Path,
    columns: Columns,
    out: Path,
    how: HowToFit = HowToFit(),  # noqa: B008  (a frozen record)
    folds: int | None = None,
) -> TableFit:
    """Fit a model to the tasks of a file and leave it in `out`.

    A fifth of the tasks is kept back and scored. With `folds` no task is: the scores are then those of as many further
    fits, each of which has never seen the tasks that it is scored on.
    """
    table = read_tasks(file, columns)
    tasks = usable_tasks(table, str(file))
    if folds is not None and not 2 <= folds <= len(tasks) // 2:
        raise InputError(f"--folds is {folds}; expected 2 to {len(tasks) // 2}, half the number of tasks")
    both = len(tasks) < FEWEST_FOR_BOTH and folds is None  # too few to hold out two groups
    learning, scored = (tasks, []) if folds else split_held_out(tasks, how.seed, SCORED_SHARE)
    training, ending = (learning, scored) if both else split_held_out(learning, how.seed + 1)
    _units(tasks)  # refuses values that cannot be standardised, whichever group they are in
    units = _units(learning)
    with terminated_as_exit(), new_folder(out) as place:
        outcome = _fit(training, ending, units, how)
        scores: CaseScores = {}
        recipes, splits = [], in_folds(tasks, folds, how.seed) if folds else []
        groups = [fold for _, fold in splits] or [scored]
        for number, (rest, fold) in enumerate(splits):
            parts = split_held_out(rest, how.seed + 1)
            fitted = _fit(*parts, _units(rest), how)
            recipes.append(fitted.recipe)
            _score(scores, Predictor(fitted.model, _units(rest)), rest, fold, how.seed + number)
        predictor = Predictor(outcome.model, units, outcome.config, columns)
        if not folds:
            _score(scores, predictor, learning, scored, how.seed)
        report = {
            "tasks": {
                "training": len(training),
                "ending": len(ending),
                "held_out": len(tasks) if folds else len(scored),
                "scored": sum(min(len(group), SCORED_CASES) for group in groups),
                "too_short": len(table.tasks) - len(tasks),
                "thinned": sum(len(task.x) > MOST_ROWS for task in table.tasks),
                "too_few_for_both": both,
            },
            "folds": folds,
            "rows": {"read": table.rows, "left_out": table.dropped, "tasks_in_all": table.sampled_from},
            "steps": outcome.steps,
            "best_step": outcome.best_step,
            "still_improving": outcome.late_gain > STILL_IMPROVING,
            "recipe": outcome.recipe,
            "tried": outcome.tried,
            "recipes_of_folds": recipes,
            "seconds": round(outcome.seconds, 1),
            "constant_outputs": [name for index, name in enumerate(columns.y) if _constant(tasks, index)],
            "scores": {name: asdict(summary(cases)) for name, cases in scores.items()},
        }
        write_fit(place, predictor, outcome.steps, report)
    return TableFit(predictor, scored or ending, report)


def _units(tasks: list[Arrays]) -> Units:
    return Units.of([x for x, _ in tasks], [y for _, y in tasks])


def _fit(training: list[Arrays], ending: list[Arrays], units: Units, how: HowToFit) -> FitOutcome:
    source, held_out = standardised(training, units), standardised(ending, units)
    ways = candidates(how.model, source, len(training), how.steps, how.seed)
    shown = Shown(how.progress, how.device, -float(np.log(units.y_spread).mean()))
    return fit_best(ways, held_out_score(held_out.scored_batches(how.seed)), 60 * how.minutes, shown)


def _score(scores: CaseScores, predictor: Predictor, learning: list[Arrays], scored: list[Arrays], seed: int) -> None:
    """Add the scores of a fit and of its rivals on tasks that none of them has learned from."""
    cases = scored_cases(scored, seed)
    rivals = {
        predictor.model.config.name: fitted_model(predictor),
        GP_ALONE: context_gp(predictor.units),
        MEAN_CURVE: mean_curve(learning, predictor.units),
    }
    for name, rival in rivals.items():
        scores.setdefault(name, []).extend(score_cases(rival, cases))


def _constant(tasks: list[Arrays], output: int) -> bool:
    first = tasks[0][1][0, output]
    return all((y[:, output] == first).all() for _, y in tasks)
