"""A model fitted to a table: whole tasks are held out, some to end training by, others to score it beside rivals."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nvdp.data.tables import Columns, TaskTable, read_tasks
from nvdp.errors import InputError
from nvdp.fitted import FittedModel, save_fitted, start_fit
from nvdp.meta_tasks import Arrays, split_held_out, standardised
from nvdp.rivals import SCORED_TASKS, context_gp, mean_curve, model_predictor, score, scoring_task
from nvdp.scaling import DataScale
from nvdp.tasks import Task
from nvdp.training.fit import SMALL, fit_config, fit_tasks, model_for

MOST_STEPS = 30_000
SCORED_SHARE, FEWEST_FOR_BOTH = 0.2, 10
GP_ALONE, MEAN_CURVE = "GP on the context alone", "mean curve of all tasks"


@dataclass(frozen=True)
class TableFit:
    """A fitted model, the tasks it is scored on in standardised units, and what there is to say about it."""

    fitted: FittedModel
    scored: list[Task]
    report: dict[str, Any]


def usable_tasks(table: TaskTable, origin: str) -> list[Arrays]:
    """The tasks with at least two points; at least two such are needed."""
    usable = [(task.x, task.y) for task in table.tasks if len(task.x) >= 2]
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
    minutes: float = 5.0,
    seed: int = 0,
    model: str = "nvdp",
    steps: int = MOST_STEPS,
    progress: bool = False,
) -> TableFit:
    """Fit a model to the tasks of a file and leave it in `out`."""
    table = read_tasks(file, columns)
    tasks = usable_tasks(table, str(file))
    scale = DataScale.of([x for x, _ in tasks], [y for _, y in tasks])
    learning, scored = split_held_out(tasks, seed, SCORED_SHARE)
    both = len(tasks) < FEWEST_FOR_BOTH  # too few to hold out two groups
    training, stopping = (learning, scored) if both else split_held_out(learning, seed + 1)
    source, held_out, test = (standardised(part, scale) for part in (training, stopping, scored))
    config = fit_config(model_for(model, source.x_dim, source.y_dim, len(tasks)), steps, seed)
    start_fit(out, config)
    outcome = fit_tasks(config, source, held_out, 60 * minutes, len(tasks) < SMALL, progress)
    fitted = FittedModel(config, outcome.model, scale, columns)
    cases = [scoring_task(x, y, seed, index) for index, (x, y) in enumerate(test.sets[:SCORED_TASKS])]
    predictors = {
        model: model_predictor(outcome.model),
        GP_ALONE: context_gp,
        MEAN_CURVE: mean_curve(standardised(learning, scale)),
    }
    scores = {name: asdict(score(predict, cases, scale.y_spread)) for name, predict in predictors.items()}
    report = {
        "tasks": {"training": len(training), "ending": len(stopping), "scored": len(cases), "too_few_for_both": both},
        "rows": {"read": table.rows, "left_out": table.dropped},
        "steps": outcome.steps,
        "best_step": outcome.best_step,
        "recipe": outcome.recipe,
        "seconds": round(outcome.seconds, 1),
        "constant_outputs": [n for n, i in zip(columns.y, range(len(columns.y)), strict=True) if _constant(tasks, i)],
        "scores": scores,
    }
    save_fitted(out, fitted, outcome.steps, report)
    return TableFit(fitted, cases, report)


def _constant(tasks: list[Arrays], output: int) -> bool:
    first = tasks[0][1][0, output]
    return all((y[:, output] == first).all() for _, y in tasks)
