"""What a user should know about a table before trusting a fit: rows left out, odd cells, columns that say nothing.

The same sentences are printed by ``nvdp fit`` and stand in its report.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nvdp.data import dates
from nvdp.data.tables import Columns, TableTask, TaskTable
from nvdp.errors import counted
from nvdp.tables.tasks import Arrays
from nvdp.units import ContextUnits, Units

WIDE, SKEW = 100, 3  # highest over lowest value, and upper over lower half of a range: a logarithm is proposed
# Interquartile ranges from the median: of values, of numbers that often stand for none, of logarithms; values needed.
FAR, FAR_CODE, FAR_LOG, FEWEST = 30, 4, 5, 8
CODES = [sign * number for sign in (1, -1) for number in (99, 999, 9999, 99999)]
SMALL, FEWEST_VALUES = 0.01, 3  # of what is usual in the fitted table; different values to tell by
COPIES = 0.05  # share of rows
ROUNDING = 1e-12  # of the largest value: a smaller range is none, as for `nvdp.units.Units`
FORMS = {
    dates.DAY_FIRST: " with the day first",
    dates.MONTH_FIRST: " with the month first",
    dates.COMPACT: " without separators",
}


def table_notes(table: TaskTable, tasks: Sequence[Arrays], columns: Columns, most_rows: int) -> list[str]:
    """Sentences about a table that a model is fitted to.

    Args:
        table: As it was read.
        tasks: Those that are used.
        columns: Of the table.
        most_rows: Of a task that are used.

    Returns:
        One sentence for each thing to know; none about a good table.
    """
    return [*_left_out(table, tasks, most_rows), *_about_columns(table, tasks, columns)]


def _left_out(table: TaskTable, tasks: Sequence[Arrays], most_rows: int) -> Iterator[str]:
    if table.note:
        yield table.note
    if table.partial:
        yield f"some outputs are missing in {counted(table.partial, 'row')}; the others are used"
    if table.sampled_from:
        yield f"of about {table.sampled_from} tasks a random sample was kept; more are not needed to learn from"
    if short := len(table.tasks) - len(tasks):
        yield f"left out {counted(short, 'task')} with fewer than 2 whole rows"
    if thinned := sum(len(task.x) > most_rows for task in table.tasks):
        yield f"of {counted(thinned, 'task')} with more than {most_rows:,} rows a random {most_rows:,} were kept"
    if copies := _copies(tasks):
        yield (
            f"{copies:,} rows are copies of another row of their task; each counts as an observation, and scores of a "
            "copy are too good"
        )
    names: dict[str, str] = {}
    for task in table.tasks:
        if task.name != (other := names.setdefault(task.name.casefold(), task.name)):
            yield f"'{other}' and '{task.name}' are two tasks, as their names differ in case"
            break


def data_notes(
    units: Units | ContextUnits, contexts: Sequence[TableTask], queries: Sequence[TableTask], columns: Columns
) -> Iterator[str]:
    """Sentences about contexts and queries: other units, copies, points unlike the data of training."""
    yield from unit_notes(units, contexts, columns)
    yield from copy_notes(contexts)
    yield from far_notes(units, {"contexts": contexts, "rows to predict": queries}, columns)


def far_notes(
    units: Units | ContextUnits, groups: Mapping[str, Sequence[TableTask]], columns: Columns | None = None
) -> Iterator[str]:
    """A sentence about each group of tasks, by name, with points far from those of training."""
    for name, tasks in groups.items():
        if tasks:
            y = np.concatenate([each.y for each in tasks]) if tasks[0].y.shape[1] else None
            if note := units.far(np.concatenate([each.x for each in tasks]), y, columns):
                yield f"{name}: {note}"


def copy_notes(contexts: Sequence[TableTask]) -> Iterator[str]:
    """A sentence about contexts whose rows are copies of each other, which make a prediction too sure."""
    if copies := _copies([(task.x, task.y) for task in contexts]):
        yield f"{copies:,} rows of the contexts are copies of another row; each counts as an observation"


def _copies(tasks: Sequence[Arrays]) -> int:
    """How many rows repeat another one of their task; 0 if these are few of all."""
    copies = sum(len(x) - len(np.unique(np.nan_to_num(np.c_[x, y], nan=np.inf), axis=0)) for x, y in tasks)
    return copies if copies > COPIES * sum(len(x) for x, _ in tasks) else 0


def _about_columns(table: TaskTable, tasks: Sequence[Arrays], columns: Columns) -> Iterator[str]:
    for name, form in zip(columns.dates or (), columns.date_forms, strict=False):
        if form in FORMS:
            first = columns.written(name, table.tasks[0].x[:1, columns.x.index(name)])[0]
            yield f"column '{name}' is read as dates{FORMS[form]}: the first is {first}"
    far = far_cells(table, columns)
    yield from far.values()
    for name, (low, high) in wide_columns(tasks, columns).items():
        if name not in far:
            yield f"column '{name}' goes from {low:g} to {high:g}: try --log {name}"
    for name, values in _values(tasks, columns).items():
        if np.nanmin(values) == np.nanmax(values):
            learned = "there is nothing to learn about it" if name in columns.y else "nothing can depend on it"
            yield f"column '{name}' is constant; {learned}"
        elif np.nanmax(values) - np.nanmin(values) <= ROUNDING * np.nanmax(np.abs(values)):
            low = np.nanmin(values)
            yield f"column '{name}' is constant up to rounding; subtract {low:.17g} from it to see its differences"
    for name, levels in zip(columns.given, columns.levels, strict=True):
        if len(levels) == len(table.tasks) > 3:
            yield f"column '{name}' has another word in each task; a new task with a new word cannot be predicted"


def unit_notes(units: Units | ContextUnits, contexts: Sequence[TableTask], columns: Columns) -> Iterator[str]:
    """Sentences about contexts that are much smaller than the fitted table, as if they had another unit.

    Larger ones are outside its inputs, or far from its outputs: `nvdp.units.Units.far` tells.
    """
    if isinstance(units, ContextUnits) or not contexts:
        return
    for name, values in _values([(task.x, task.y) for task in contexts], columns).items():
        known = values[~np.isnan(values)]
        if len(np.unique(known)) < FEWEST_VALUES or name in columns.log:
            continue
        if name in columns.x:
            place = columns.x.index(name)
            ends = [units.x_low[place], units.x_high[place]]
            small = np.ptp(known) < SMALL * (ends[1] - ends[0])
            seen, learned = columns.text(name, [known.min(), known.max()]), columns.text(name, ends)
            told = f"from {' to '.join(learned)}"
        else:
            place = columns.y.index(name)
            centre, spread = units.y_centre[place], units.y_spread[place]
            small = np.abs(known).max() < SMALL * (abs(centre) + spread)
            seen, told = [f"{end:g}" for end in (known.min(), known.max())], f"around {centre:g}, spread {spread:g}"
        if small:
            yield f"{name} of the contexts is from {' to '.join(seen)}, in the fitted table {told}: check its unit"


def far_cells(table: TaskTable, columns: Columns) -> dict[str, str]:
    """By column, a sentence about a value that is far from all others, with its line.

    A column of positive numbers over orders of magnitude has no such value: its logarithms are looked at too.
    """
    rows = np.concatenate([task.rows for task in table.tasks])
    named = _values([(task.x, task.y) for task in table.tasks], columns)
    found = {}
    for name, values in named.items():
        known = ~np.isnan(values)
        if name in columns.log or known.sum() < FEWEST:
            continue
        away, (low, high) = _away(values[known])
        far = (away > FAR) | (np.isin(values[known], CODES) & (away > FAR_CODE))
        if far.any():
            if values[known].min() > 0 and _away(np.log(values[known]))[0].max() <= FAR_LOG:
                continue
            place, more = int(np.where(far, away, 0).argmax()), int(far.sum()) - 1
            where = "" if table.index is None else f" in line {table.line(rows[known][place])}"
            others = f", and {counted(more, 'value')} like it" if more else ""
            found[name] = (
                f"column '{name}' holds {values[known][place]:g}{where}{others}; half of its values are from {low:g} "
                f"to {high:g}: check it, or leave the row out"
            )
    return found


def _away(values: Any) -> tuple[Any, tuple[float, float]]:
    """Distances from the median in interquartile ranges, and the quartiles; no distances, if these are equal."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return np.abs(values - middle) / (high - low) if high > low else np.zeros(len(values)), (low, high)


def wide_columns(tasks: Sequence[Arrays], columns: Columns) -> dict[str, list[float]]:
    """Columns of positive numbers that span orders of magnitude and are not taken by their logarithm."""
    found = {}
    for name, values in _values(tasks, columns).items():
        low, middle, high = np.nanquantile(values, (0.0, 0.5, 1.0)).tolist()
        if low > 0 and high > WIDE * low and high - middle > SKEW * (middle - low) and name not in columns.log:
            found[name] = [low, high]
    return found


def column_ranges(tasks: Sequence[Arrays], columns: Columns) -> dict[str, list[str]]:
    """The lowest and the highest value of each input and output, as they are written in a table."""
    found = {}
    for name, values in _values(tasks, columns).items():
        ends = [float(end(values)) for end in (np.nanmin, np.nanmax)]
        found[name] = columns.text(name, ends)
    return found


def _values(tasks: Sequence[Arrays], columns: Columns) -> dict[str, Any]:
    """The numbers of each input and output."""
    x, y = (np.concatenate(part) for part in zip(*tasks, strict=True))
    given = zip(columns.x, x.T, strict=False)  # what is given comes after the inputs
    return {**dict(given), **dict(zip(columns.y, y.T, strict=True))}
