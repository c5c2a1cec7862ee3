"""A model fitted to a table: whole tasks are held out, some to end training by, others to score it beside rivals.

A hierarchical GP is estimated from the training tasks first. Training mixes tasks drawn from it with the real ones. A
network may also work on the residuals of this process. A few such ways share the time, and held-out tasks choose; they
also give the factors of calibration. The scored tasks are used once, at the end.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nvdp.data.frames import FrameTasks
from nvdp.data.tables import Columns, TaskTable, read_frame, read_tasks, split_tasks
from nvdp.errors import InputError, counted
from nvdp.evaluation.explain import Neighbours
from nvdp.loading import Predictor, write_fit
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.adjusted import Adjustment
from nvdp.system import new_folder, terminated_as_exit
from nvdp.tables import rivals
from nvdp.tables.calibration import adjusted
from nvdp.tables.prior import DrawnTasks, fit_prior
from nvdp.tables.recipes import AUTO, candidates
from nvdp.tables.rivals import SCORED_CASES, Case, Rival, score_cases, scored_cases, summary
from nvdp.tables.tasks import Arrays, folds_of_groups, is_ordered, split_groups, standardised
from nvdp.tasks import TaskBatch
from nvdp.training.early_stopping import Candidate, Clock, FitOutcome, Shown, fit_best, held_out_score
from nvdp.units import Units

MOST_STEPS = 30_000
SCORED_SHARE, FEWEST_FOR_BOTH = 0.2, 10
MOST_ROWS = 10_000  # of one task; a step uses 100 of them
STILL_IMPROVING = 0.02  # nats gained in the last fifth of the training
FEWEST_FOR_PRIOR = 6  # training tasks
FEWEST_FOR_PARTIAL = 12  # tasks, for outputs that are missing in some rows
FORECASTS = 0.3  # share of training contexts that are what comes first, where x is ordered
WORST = 5  # tasks of the report
WIDE, SKEW = 100, 3  # highest over lowest value, and upper over lower half of a range: a logarithm is proposed
MOST_CALIBRATING = 300  # held-out tasks that calibrate
CONTEXTS = (1, 2, 4, 8)  # sizes at which the learning curve of the report is measured
GP_ALONE, MEAN_CURVE = rivals.GP_ALONE, rivals.MEAN_CURVE
CaseScores = dict[str, list[Case]]


@dataclass(frozen=True)
class HowToFit:
    """The model, and how long it may take."""

    model: str = AUTO
    steps: int = MOST_STEPS
    minutes: float | None = 5.0  # None: no limit but the steps
    seed: int = 0
    progress: bool = False
    device: str = "cpu"
    forecast: bool = False  # contexts are what comes first in x, in training and in scores
    clock: Clock = time.monotonic  # what the minutes are measured by
    x_log: tuple[bool, ...] = ()  # inputs that are taken by their logarithm; none, if empty
    y_log: tuple[bool, ...] = ()
    process: bool | None = None  # whether the table's process is a part of the prediction; by default with auto

    @property
    def blends(self) -> bool:
        """Whether the prediction is blended with the table's process."""
        return self.model == AUTO if self.process is None else self.process


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
            f"{origin} has {counted(len(table.tasks), 'task')}, {len(usable)} of them with at least 2 whole rows; "
            "learning from tasks needs at least 2 such"
        )
    return usable


@dataclass(frozen=True)
class Fitted:
    """A model after training and adjustment, and the processes that were learned from the same tasks."""

    outcome: FitOutcome
    units: Units
    adjustment: Adjustment
    process: HierarchicalGP | None
    learning: list[Arrays]

    def predictor(self, columns: Columns | None = None) -> Predictor:
        """The model, asked in the user's units."""
        return Predictor(self.outcome.model, self.units, self.outcome.config, columns, {}, self.adjustment)

    def neighbours(self, names: Sequence[str]) -> Neighbours | None:
        """The curves of the tasks that it has learned from, where the process is a part of the prediction."""
        if self.adjustment.process is None:
            return None
        return Neighbours.of(self.adjustment.process, list(standardised(self.learning, self.units).sets), list(names))


def fit_tasks(training: list[Arrays], ending: list[Arrays], how: HowToFit) -> Fitted:
    """Fit to tasks in memory.

    Args:
        training: Tasks to learn from.
        ending: Tasks that end training, and choose the recipe, the process's share and the factors of calibration.
        how: The model and its time.

    Returns:
        The fitted model.
    """
    learning = training if training is ending else training + ending
    units = _units(learning, how)
    source, held_out = (_source(part, units, how.forecast) for part in (training, ending))
    prior = fit_prior(source.sets, seed=how.seed) if len(training) >= FEWEST_FOR_PRIOR else None
    batches = held_out.scored_batches(how.seed)
    shown = Shown(how.progress, how.device, -float(np.log(units.y_spread).mean()), how.clock)
    blended = prior if how.blends else None
    found = candidates(how.model, source, len(training), how.steps, how.seed, prior, blended is not None)
    ways = [_scored_around(way, batches) for way in found]
    outcome = fit_best(ways, held_out_score(batches), None if how.minutes is None else 60 * how.minutes, shown)
    chosen = next(way for way in ways if way.name == outcome.recipe)
    around = isinstance(chosen.source, DrawnTasks) and chosen.source.residuals
    more = held_out.scored_batches(how.seed, MOST_CALIBRATING)
    few = source if training is not ending else None
    adjustment = adjusted(outcome.model, blended, around, more, min(len(ending), MOST_CALIBRATING), few)
    # What was chosen stays; the process itself may learn from all tasks.
    whole = None if prior is None else fit_prior(source.sets + held_out.sets, seed=how.seed, start=prior)
    if blended is not None:
        adjustment = replace(adjustment, process=whole)
    return Fitted(outcome, units, adjustment, whole, learning)


def _scored_around(way: Candidate, batches: Sequence[TaskBatch]) -> Candidate:
    """A candidate that predicts residuals is scored on those of the held-out tasks, in the density of the outputs."""
    source = way.source
    if not isinstance(source, DrawnTasks) or not source.residuals:
        return way
    seen = [source.prior.residuals(batch) for batch in batches]
    log_std = [(batch.x[..., -source.y_dim :].mean(-1) * batch.mask).sum(1) / batch.mask.sum(1) for batch in seen]
    shift, score = float(torch.cat(log_std).double().mean()), held_out_score(seen)
    return replace(way, score=lambda model: score(model) - shift)


def _source(tasks: list[Arrays], units: Units, forecast: bool) -> FrameTasks:
    source = standardised(tasks, units)
    ordered = is_ordered(tasks)
    return replace(source, forecasts=1.0 if forecast else FORECASTS if ordered else 0.0)


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
    columns, table = _read(file, columns, how.blends and len(columns.y) > 1)
    inputs = (*columns.x, *("",) * (table.tasks[0].x.shape[1] - len(columns.x)))  # what is given has no logarithm
    x_log, y_log = (tuple(name in columns.log for name in names) for names in (inputs, columns.y))
    how = replace(how, x_log=x_log, y_log=y_log) if columns.log else how
    tasks = usable_tasks(table, str(file))
    groups: list[Any] = [task.group or place for place, task in enumerate(table.tasks) if len(task.x) >= 2]
    names = [task.name for task in table.tasks if len(task.x) >= 2]
    number = len(set(groups))
    if number < 3 and columns.group is not None:
        raise InputError(f"--split-by {columns.group} makes {number} groups of tasks; expected at least 3")
    if folds is not None and not 2 <= folds <= number // 2:
        raise InputError(f"--folds is {folds}; expected 2 to {number // 2}, half the number of {_what(columns)}")

    def part(places: Sequence[int]) -> tuple[list[Arrays], list[Any]]:
        return [tasks[place] for place in places], [groups[place] for place in places]

    def halves(places: Sequence[int]) -> tuple[list[Arrays], list[Arrays]]:
        ours, names = part(places)
        kept, held = split_groups(names, how.seed + 1)
        return [ours[place] for place in kept], [ours[place] for place in held]

    both = number < FEWEST_FOR_BOTH and folds is None  # too few to hold out two groups
    everything = list(range(len(tasks)))
    learning, held_out = (everything, []) if folds else split_groups(groups, how.seed, SCORED_SHARE)
    scored = part(held_out)[0]
    training, ending = (part(learning)[0], scored) if both else halves(learning)
    _units(tasks, how)  # refuses values that cannot be standardised, whichever group they are in
    with terminated_as_exit(), new_folder(out) as place:
        fitted = fit_tasks(training, ending, how)
        scores = TableScores(how.seed, how.forecast)
        recipes, splits = [], folds_of_groups(groups, folds, how.seed) if folds else []
        for rest, fold in splits:
            other = fit_tasks(*halves(rest), how)
            recipes.append(other.outcome.recipe)
            scores.add(other, part(fold)[0], [names[place] for place in fold])
        if not folds:
            scores.add(fitted, scored, [names[place] for place in held_out])
        outcome, adjustment = fitted.outcome, fitted.adjustment
        report = {
            "tasks": {
                "training": len(training),
                "ending": len(ending),
                "held_out": len(tasks) if folds else len(scored),
                "scored": sum(min(len(fold), SCORED_CASES) for _, fold in splits) or min(len(scored), SCORED_CASES),
                "too_short": len(table.tasks) - len(tasks),
                "thinned": sum(len(task.x) > MOST_ROWS for task in table.tasks),
                "too_few_for_both": both,
            },
            "folds": folds,
            "rows": {
                "read": table.rows,
                "left_out": table.dropped,
                "partial": table.partial,
                "tasks_in_all": table.sampled_from,
            },
            "model": outcome.config.model.name,
            "forecast": how.forecast,
            "steps": outcome.steps,
            "best_step": outcome.best_step,
            "still_improving": outcome.late_gain > STILL_IMPROVING,
            "recipe": outcome.recipe,
            "tried": outcome.tried,
            "recipes_of_folds": recipes,
            "seconds": round(outcome.seconds, 1),
            "around_process": adjustment.around,
            "network_share": adjustment.share,
            "calibration": {
                "sizes": adjustment.sizes,
                "factors": adjustment.factors,
                "factors_ahead": adjustment.factors_ahead,
                **scores.calibration(),
            },
            "wide": wide_columns(tasks, columns),
            "constant_outputs": [name for index, name in enumerate(columns.y) if _constant(tasks, index)],
            **scores.report(),
        }
        known = dict(zip(map(id, tasks), names, strict=True))
        learned = [known[id(task)] for task in fitted.learning]
        predictor = replace(fitted.predictor(columns), card={"report": report}, neighbours=fitted.neighbours(learned))
        write_fit(place, predictor, outcome.steps, report)
    return TableFit(predictor, scored or ending, report)


def _read(file: Path, columns: Columns, partial: bool) -> tuple[Columns, TaskTable]:
    """The tasks of a table; missing outputs need enough tasks for a process, which fills them in."""
    if file.is_dir():
        return columns, read_tasks(file, columns)
    frame = read_frame(file)
    columns = columns.learned(frame, str(file)) if columns.given else columns
    table = split_tasks(frame, columns, str(file), partial)
    if table.partial and sum(len(task.x) >= 2 for task in table.tasks) < FEWEST_FOR_PARTIAL:
        table = split_tasks(frame, columns, str(file))
    return columns, table


def _what(columns: Columns) -> str:
    return "tasks" if columns.group is None else "groups"


def _units(tasks: list[Arrays], how: HowToFit) -> Units:
    return Units.of([x for x, _ in tasks], [y for _, y in tasks], how.x_log, how.y_log)


def competitors(fitted: Fitted, ordered: bool, seed: int = 0) -> dict[str, Rival]:
    """A fitted model, first, and its rivals, by name.

    Args:
        fitted: The model and the tasks that all of them learn from.
        ordered: Whether x is one input, so that there is a last value.
        seed: Of the mixed model's sample of tasks.

    Returns:
        What each predicts.
    """
    units, learning = fitted.units, fitted.learning
    found: dict[str, Rival] = {fitted.outcome.config.model.name: rivals.fitted_model(fitted.predictor())}
    if fitted.process is not None:
        sets = standardised(learning, units).sets
        found[rivals.HIERARCHICAL] = rivals.process_rival(fitted.process.plain, units)
        found[rivals.MIXED] = rivals.process_rival(fit_prior(sets, ("line",), seed).plain, units)
    found[GP_ALONE] = rivals.context_gp(units)
    found[MEAN_CURVE] = rivals.mean_curve(learning, units)
    if ordered:
        found[rivals.LAST_VALUE] = rivals.last_value(learning, units)
    return found


class TableScores:
    """Scores of a fit, possibly over folds, beside its rivals: all on the same contexts of held-out tasks."""

    def __init__(self, seed: int, forecast: bool) -> None:
        self.seed, self.forecast, self.folds = seed, forecast, 0
        self.by_kind: dict[str, CaseScores] = {}  # random contexts, or what comes first
        self.by_size: dict[int, CaseScores] = {}
        self.uncalibrated: list[Case] = []
        self.levels: dict[str, list[float]] = {"before": [], "after": []}  # of the interval that holds an output
        self.by_task: dict[str, list[Case]] = {}
        self.ours = "nvdp"

    def add(self, fitted: Fitted, scored: list[Arrays], names: Sequence[str]) -> None:
        """Score tasks that the fit has not learned from."""
        ordered, seed = is_ordered(scored), self.seed + self.folds
        self.folds += 1
        everyone = competitors(fitted, ordered, self.seed)
        self.ours = next(iter(everyone))
        kinds = {"forecast": True} if self.forecast else {"random": False} | ({"forecast": True} if ordered else {})
        for kind, prefix in kinds.items():
            cases = scored_cases(scored, seed, prefix=prefix)
            _extend(self.by_kind.setdefault(kind, {}), everyone, cases)
            if prefix == self.forecast:
                ours, tasks = self.by_kind[kind][self.ours][-len(cases) :], min(len(scored), SCORED_CASES)
                for place, case in enumerate(ours):
                    self.by_task.setdefault(names[place % tasks], []).append(case)
        quick = {name: rival for name, rival in everyone.items() if name in (self.ours, rivals.HIERARCHICAL)}
        for size in CONTEXTS:
            cases = scored_cases(scored, seed, size, self.forecast, 60)
            if cases:
                _extend(self.by_size.setdefault(size, {}), quick, cases)
        uncalibrated = replace(fitted.adjustment, sizes=(), factors=(1.0,), factors_ahead=(1.0,), tail=(0.0, 1.0))
        plain = replace(fitted.predictor(), adjustment=uncalibrated)
        cases = scored_cases(scored, seed, prefix=self.forecast)
        self.uncalibrated += score_cases(rivals.fitted_model(plain), cases)
        for name, predictor in (("before", plain), ("after", fitted.predictor())):
            self.levels[name] += rivals.distances(rivals.fitted_model(predictor), cases)

    def calibration(self) -> dict[str, Any]:
        """Coverage of the scored tasks before and after calibration, and of intervals of several levels."""
        kind = "forecast" if self.forecast else "random"
        after = summary(next(iter(self.by_kind[kind].values())))
        before = summary(self.uncalibrated)
        found = {
            name: {"LL": each.LL, "coverage90": each.coverage90, "coverage50": each.coverage50}
            for name, each in (("before", before), ("after", after))
        }
        shares = {
            name: [round(float(np.mean(np.array(values) <= level)), 4) for level in rivals.LEVELS]
            for name, values in self.levels.items()
        }
        return found | {"levels": list(rivals.LEVELS), "shares": shares}

    def worst(self) -> list[dict[str, Any]]:
        """The tasks that were predicted worst, by log-likelihood."""
        each = [{"task": name, **asdict(summary(cases))} for name, cases in self.by_task.items()]
        return sorted(each, key=lambda row: row["LL"])[:WORST]

    def report(self) -> dict[str, Any]:
        """All scores, and the first line of the report."""
        kinds = {kind: _summaries(scores) for kind, scores in self.by_kind.items()}
        main = "forecast" if self.forecast else "random"
        return {
            "verdict": verdict(kinds[main]),
            "scores": kinds[main],
            "forecast_scores": kinds.get("forecast"),
            "worst": self.worst(),
            "by_context": {str(size): _summaries(scores) for size, scores in self.by_size.items()},
        }


def verdict(scores: dict[str, dict[str, float]]) -> str:
    """Whether the fit or one of its rivals predicts the held-out tasks best.

    >>> verdict({"nvdp": {"LL": 0.2, "RMSE": 1.0}, "mixed model": {"LL": 0.1, "RMSE": 0.9}})
    'nvdp has the best log-likelihood of the held-out tasks; mixed model has a lower RMSE (0.9 against 1).'
    """
    (ours, own), *others = scores.items()
    name, best = max(others, key=lambda item: item[1]["LL"])
    closest, nearest = min(others, key=lambda item: item[1]["RMSE"])
    line = f"{ours} has the best log-likelihood of the held-out tasks"
    if best["LL"] > own["LL"]:
        line = f"{name} predicts the held-out tasks better than {ours}: LL {best['LL']:.3f} against {own['LL']:.3f}"
    if nearest["RMSE"] < own["RMSE"]:
        return f"{line}; {closest} has a lower RMSE ({nearest['RMSE']:.4g} against {own['RMSE']:.4g})."
    return (
        f"{line}; it also has the lowest RMSE." if best["LL"] <= own["LL"] else f"{line}; {ours} has the lowest RMSE."
    )


def _summaries(scores: CaseScores) -> dict[str, dict[str, float]]:
    return {name: asdict(summary(cases)) for name, cases in scores.items()}


def _extend(scores: CaseScores, competitors: dict[str, Rival], cases: Sequence[Any]) -> None:
    for name, rival in competitors.items():
        scores.setdefault(name, []).extend(score_cases(rival, cases))


def wide_columns(tasks: list[Arrays], columns: Columns) -> dict[str, list[float]]:
    """Columns of positive numbers that span orders of magnitude and are not taken by their logarithm."""
    found = {}
    for names, values in zip(
        (columns.x, columns.y), (np.concatenate(part) for part in zip(*tasks, strict=True)), strict=True
    ):
        for place, name in enumerate(names):
            low, middle, high = np.nanquantile(values[:, place], (0.0, 0.5, 1.0)).tolist()
            if low > 0 and high > WIDE * low and high - middle > SKEW * (middle - low) and name not in columns.log:
                found[name] = [low, high]
    return found


def _constant(tasks: list[Arrays], output: int) -> bool:
    values = np.concatenate([y[:, output] for _, y in tasks])
    return bool(np.nanmin(values) == np.nanmax(values))
