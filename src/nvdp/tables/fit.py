"""A model fitted to a table: whole tasks are held out, some to end training by, others to score it beside rivals.

The scored tasks are used once, at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.data.table_files import read_frame
from nvdp.data.tables import Columns, TaskTable, read_tasks, split_tasks
from nvdp.errors import InputError, counted
from nvdp.loading import Predictor, write_fit
from nvdp.system import new_folder, terminated_as_exit
from nvdp.tables.fitted import FEWEST_FOR_PRIOR, Fitted, HowToFit, fit_tasks, units_of
from nvdp.tables.notes import column_ranges, table_notes
from nvdp.tables.rivals import SCORED_CASES
from nvdp.tables.scores import TableScores
from nvdp.tables.tasks import Arrays, folds_of_groups, split_groups

SCORED_SHARE, FEWEST_FOR_BOTH = 0.2, 10
MOST_ROWS = 10_000  # of one task; a step uses 100 of them
STILL_IMPROVING = 0.02  # nats gained in the last fifth of the training
FEWEST_FOR_PARTIAL = 12  # tasks, for outputs that are missing in some rows


@dataclass(frozen=True)
class TableFit:
    """A fitted model, tasks that it is drawn on (x, y), their names and what there is to say about it."""

    predictor: Predictor
    shown: list[Arrays]
    names: list[str]
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


def fit_table(
    file: Path,
    columns: Columns,
    out: Path,
    how: HowToFit = HowToFit(),  # noqa: B008  (a frozen record)
    folds: int | None = None,
    say: Callable[[str], None] = lambda note: None,
) -> TableFit:
    """Fit a model to the tasks of a file and leave it in `out`.

    A fifth of the tasks is kept back and scored. With `folds` no task is: the scores are then those of as many further
    fits, each of which has never seen the tasks that it is scored on.

    Args:
        file: A table, or a folder of Parquet files.
        columns: Of the table.
        out: A new or empty folder.
        how: The model and its time.
        folds: Of a cross-validation.
        say: Is told what a user should know about the table, before the fit.

    Returns:
        The model and its report.
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

    split = _split(groups, how, folds)
    parts = (split.training, split.ending, split.scored)
    training, ending, scored = ([tasks[place] for place in part] for part in parts)
    units_of(tasks, how)  # refuses values that cannot be standardised, whichever group they are in
    notes = table_notes(table, tasks, columns, MOST_ROWS)
    if len(training) < FEWEST_FOR_PRIOR:
        few = counted(len(training), "training task")
        notes.append(f"{few}: no hierarchical GP or mixed model, which need at least {FEWEST_FOR_PRIOR}")
    for note in notes:
        say(note)
    with terminated_as_exit(), new_folder(out) as folder:
        fitted = fit_tasks(training, ending, how)
        scores = TableScores(how.seed, how.forecast, columns.y)
        recipes, splits = [], folds_of_groups(groups, folds, how.seed) if folds else []
        for rest, fold in splits:
            learned_of, ended_by = ([tasks[index] for index in half] for half in _halves(groups, rest, how.seed))
            other = fit_tasks(learned_of, ended_by, how)
            recipes.append(other.outcome.recipe)
            scores.add(other, [tasks[index] for index in fold], [names[index] for index in fold])
        if not folds:
            scores.add(fitted, scored, [names[index] for index in split.scored])
        report = {
            "tasks": {
                "training": len(training),
                "ending": len(ending),
                "held_out": len(tasks) if folds else len(scored),
                "scored": sum(min(len(fold), SCORED_CASES) for _, fold in splits) or min(len(scored), SCORED_CASES),
                "too_short": len(table.tasks) - len(tasks),
                "thinned": sum(len(task.x) > MOST_ROWS for task in table.tasks),
                "too_few_for_both": split.too_few_for_both,
                "names_held_out": [names[index] for index in split.scored],
            },
            "folds": folds,
            "rows": {
                "read": table.rows,
                "left_out": table.dropped,
                "partial": table.partial,
                "tasks_in_all": table.sampled_from,
            },
            **_report(fitted, how, scores),
            "recipes_of_folds": recipes,
            "notes": notes,
            "points": np.quantile([len(x) for x, _ in tasks], (0.0, 0.5, 1.0)).tolist(),
            "ranges": column_ranges(tasks, columns),
        }
        known = dict(zip(map(id, tasks), names, strict=True))
        learned = [known[id(task)] for task in fitted.learning]
        predictor = replace(fitted.predictor(columns), card={"report": report}, neighbours=fitted.neighbours(learned))
        write_fit(folder, predictor, fitted.outcome.steps, report)
    shown = scored or ending
    return TableFit(predictor, shown, [known[id(task)] for task in shown], report)


@dataclass(frozen=True)
class Split:
    """Which tasks train, which end training, and which are scored once at the end, by their places."""

    training: list[int]
    ending: list[int]
    scored: list[int]
    too_few_for_both: bool = False  # the same tasks end training and are scored


def _split(groups: Sequence[Any], how: HowToFit, folds: int | None) -> Split:
    """Tasks of one group stay together. Of few groups the same tasks end training and are scored."""
    if folds:
        return Split(*_halves(groups, range(len(groups)), how.seed), [])
    learning, scored = split_groups(groups, how.seed, SCORED_SHARE)
    if len(set(groups)) < FEWEST_FOR_BOTH:
        return Split(learning, scored, scored, too_few_for_both=True)
    return Split(*_halves(groups, learning, how.seed), scored)


def _halves(groups: Sequence[Any], places: Sequence[int], seed: int) -> tuple[list[int], list[int]]:
    """Some tasks in two parts: to train, and to end training."""
    kept, held = split_groups([groups[place] for place in places], seed + 1)
    return [places[each] for each in kept], [places[each] for each in held]


def _report(fitted: Fitted, how: HowToFit, scores: TableScores) -> dict[str, Any]:
    """What a report says of the fit and its scores."""
    outcome, adjustment = fitted.outcome, fitted.adjustment
    return {
        "model": outcome.config.model.name,
        "forecast": how.forecast,
        "steps": outcome.steps,
        "best_step": outcome.best_step,
        "still_improving": outcome.late_gain > STILL_IMPROVING,
        "recipe": outcome.recipe,
        "tried": outcome.tried,
        "seconds": round(outcome.seconds, 1),
        "around_process": adjustment.around,
        "network_share": adjustment.share,
        "calibration": {
            "sizes": adjustment.sizes,
            "factors": adjustment.factors,
            "factors_ahead": adjustment.factors_ahead,
            **scores.calibration(),
        },
        **scores.report(),
    }


def _read(file: Path, columns: Columns, partial: bool) -> tuple[Columns, TaskTable]:
    """The tasks of a table; missing outputs need enough tasks for a process, which fills them in."""
    if file.is_dir():
        from nvdp.data.streams import first_rows

        columns = columns.learned(first_rows(file, columns), str(file))
        return columns, read_tasks(file, columns)
    frame = read_frame(file)
    columns = columns.learned(frame, str(file))
    table = split_tasks(frame, columns, str(file), partial)
    for place, name in enumerate(columns.y):
        if all(np.isnan(task.y[:, place]).all() for task in table.tasks):
            raise InputError(f"{file}: column '{name}' is empty in all rows; expected numbers, or leave it out of --y")
    if table.partial and sum(len(task.x) >= 2 for task in table.tasks) < FEWEST_FOR_PARTIAL:
        table = split_tasks(frame, columns, str(file))
    return columns, table


def _what(columns: Columns) -> str:
    return "tasks" if columns.group is None else "groups"
