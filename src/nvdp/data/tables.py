"""Tables of many tasks: one row a point, a column that names its task, columns of inputs and outputs.

Cells are turned into numbers here, and a word among numbers is told with its line. Rows with an empty cell are left out
and counted.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from nvdp.data import dates
from nvdp.data.dates import EMPTY
from nvdp.data.table_files import DOTTED, LINE, read_frame
from nvdp.errors import InputError, NothingLeftError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

LARGEST_WHOLE = 2**53  # of the whole numbers that float64 tells apart
MOST_LEVELS = 50  # of a column of words
GROUPED = re.compile(r"[+-]?\d{1,3}([.,' ]\d{3})+([.,]\d+)?")  # a number with thousands separators
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns; without `task` all rows are of one task.

    Columns that are `given` are constant within a task: numbers, or words with the `levels` of the fitted table. They
    are further inputs: a number each, and of words an indicator of each level but the first.
    """

    task: str | None
    x: tuple[str, ...]
    y: tuple[str, ...] = ()
    group: str | None = None  # tasks with the same value are held out together
    given: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()  # of each given column; none, if it holds numbers
    log: tuple[str, ...] = ()  # inputs and outputs that are taken by their logarithm
    dates: tuple[str, ...] | None = None  # inputs that are dates; None: as the cells of a table say
    date_forms: tuple[str, ...] = ()  # of each of them, in the fitted table

    def __post_init__(self) -> None:
        names = [*([self.task] if self.task else []), *self.x, *self.y, *self.given]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"the column '{twice[0]}' is named {names.count(twice[0])} times; a column has one part")
        if not self.x:
            raise InputError("no column of inputs was named; expected at least one")
        if unknown := [name for name in self.log if name not in (*self.x, *self.y)]:
            known = ", ".join((*self.x, *self.y))
            raise InputError(f"--log names '{unknown[0]}'; expected inputs or outputs of numbers: {known}")

    def learned(self, frame: "pd.DataFrame", origin: str) -> "Columns":
        """The same columns with the levels and the dates that a table has."""
        levels = []
        for name in self.given:
            _check_column(frame, name, origin)
            words = sorted({word for word in _words(frame[name]) if word.lower() not in EMPTY})
            numeric = all(_is_number(word) for word in words)
            if not numeric and len(words) > MOST_LEVELS:
                raise InputError(f"{origin}: column '{name}' holds {len(words)} words; expected at most {MOST_LEVELS}")
            levels.append(() if numeric else tuple(words))
        forms = {name: dates.date_form(frame[name]) for name in self.x if frame.columns.tolist().count(name) == 1}
        found = {name: form for name, form in forms.items() if form is not None}
        return replace(self, levels=tuple(levels), dates=tuple(found), date_forms=tuple(found.values()))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The column of every number that a model is given: those of inputs, and those that are given of a task."""
        levels = self.levels or ((),) * len(self.given)
        widths = [max(1, len(words) - 1) if len(words) != 1 else 0 for words in levels]
        return (*self.x, *(name for name, width in zip(self.given, widths, strict=True) for _ in range(width)))

    def is_date(self, name: str) -> bool:
        """Whether an input is known to be a date."""
        return self.dates is not None and name in self.dates

    def written(self, name: str, values: Any) -> Any:
        """Numbers of an input as they are written in a table: days since 1970 as dates, where it has dates.

        >>> Columns("cow", ("day",), dates=("day",)).written("day", [0.0, 1.5, 2.0001])
        ['1970-01-01', '1970-01-02T12:00', '1970-01-03T00:00:09']
        """
        if not self.is_date(name):
            return values
        when = np.datetime64(0, "s") + (np.asarray(values, np.float64) * 86_400).round().astype("timedelta64[s]")
        return [str(each).removesuffix("T00:00:00").removesuffix(":00") for each in when]

    def text(self, name: str, values: Sequence[float]) -> list[str]:
        """The same as text, numbers with six digits.

        >>> Columns("cow", ("day",)).text("day", [0.0, 2.5])
        ['0', '2.5']
        """
        written = self.written(name, values)
        return [each if isinstance(each, str) else f"{each:g}" for each in written]


@dataclass(frozen=True)
class TableTask:
    """The rows of one task, in the order of the table."""

    name: str
    x: Float[np.ndarray, "point x"]
    y: Float[np.ndarray, "point y"]
    rows: Int[np.ndarray, " point"]  # their places among the table's rows
    group: str | None = None  # of tasks that belong together


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a table, in order of first appearance."""

    tasks: tuple[TableTask, ...]
    rows: int
    dropped: int  # rows with an empty cell
    sampled_from: int | None = None  # about as many tasks, if these are a sample
    partial: int = 0  # rows with some of several outputs
    index: Any = None  # of the frame that was read

    def line(self, row: Any) -> int:
        """The line of a row in its file, counted from 1."""
        return _line(self.index, row)

    @property
    def note(self) -> str | None:
        """What a reader should know about rows that were left out."""
        return f"left out {self.dropped} of {self.rows} rows: a cell is empty" if self.dropped else None


def read_tasks(path: Path, columns: Columns, partial: bool = False) -> TaskTable:
    """The tasks of a file; of a folder of Parquet files, however large, a sample of its tasks.

    With `partial`, rows with some of several outputs are kept, the others NaN; not those of a folder.
    """
    if path.is_dir():
        from nvdp.data.streams import stream_tasks

        return stream_tasks(path, columns)
    return split_tasks(read_frame(path), columns, str(path), partial)


def split_tasks(frame: "pd.DataFrame", columns: Columns, origin: str = "the table", partial: bool = False) -> TaskTable:
    """The tasks of a long table; with `partial`, a row needs one of its outputs, not all.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"tree": ["a", "a", "b"], "day": [0, 1, 0], "size": ["1.5", "2", ""]})
    >>> table = split_tasks(frame, Columns("tree", ("day",), ("size",)))
    >>> [task.name for task in table.tasks], table.tasks[0].y[:, 0].tolist(), table.note
    (['a'], [1.5, 2.0], 'left out 1 of 3 rows: a cell is empty')
    """
    import pandas as pd

    if columns.task is not None:
        _check_column(frame, columns.task, origin)
    x, y = input_columns(frame, columns, origin), number_columns(frame, columns.y, origin)
    x = np.concatenate([x, *_given(frame, columns, origin)], 1)
    if not len(frame):
        raise InputError(f"{origin} has 0 rows; expected at least one under its column names")
    _check_positive(frame, columns, np.concatenate([x[:, : len(columns.x)], y], 1), origin)
    missing = np.isnan(y)
    whole = ~(np.isnan(x).any(1) | (missing.all(1) if partial and y.shape[1] else missing.any(1)))
    names = task_names(frame[columns.task]) if columns.task else pd.Series("", index=frame.index)
    if columns.task is not None:
        whole &= ~empty_names(frame[columns.task], names)
    places = np.flatnonzero(whole)
    if not len(places):
        named = zip((*columns.x, *columns.y), np.concatenate([x[:, : len(columns.x)], y], 1).T, strict=True)
        empty = next((name for name, values in named if np.isnan(values).all()), None)
        what = f"each of its {len(frame)} rows has an empty cell" if empty is None else f"column '{empty}' is empty"
        raise NothingLeftError(f"{origin}: {what}; nothing is left")
    codes, found = pd.factorize(names.to_numpy()[places])
    order = np.argsort(codes, kind="stable")
    parts = np.split(places[order], np.flatnonzero(np.diff(codes[order])) + 1)
    groups = _groups(frame, columns.group, parts, origin)
    _check_given(frame, columns, parts, x, origin)
    tasks = tuple(
        TableTask(str(name), x[rows], y[rows], rows, group)
        for name, rows, group in zip(found, parts, groups, strict=True)
    )
    some = int(missing[places].any(1).sum())
    return TaskTable(tasks, len(frame), len(frame) - len(places), partial=some, index=frame.index)


def _check_positive(frame: "pd.DataFrame", columns: Columns, values: Any, origin: str) -> None:
    """Refuse a number without a logarithm, with its line."""
    for place, name in enumerate((*columns.x, *columns.y)):
        refused = np.flatnonzero(values[:, place] <= 0)
        if name in columns.log and len(refused):
            line, value = _line(frame.index, refused[0]), values[refused[0], place]
            raise InputError(
                f"{origin}: column '{name}' holds {value:g} in line {line}; --log {name} needs positive numbers"
            )


def _groups(frame: "pd.DataFrame", name: str | None, parts: Sequence[Any], origin: str) -> list[str | None]:
    """The group of every task, that of its first row."""
    if name is None:
        return [None] * len(parts)
    _check_column(frame, name, origin)
    return [str(frame[name].iloc[rows[0]]).strip() for rows in parts]


def _words(cells: Any) -> Any:
    return cells.astype(str).str.strip()


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _given(frame: "pd.DataFrame", columns: Columns, origin: str) -> list[Float[np.ndarray, "row column"]]:
    """The numbers of each column that is given; NaN where its cell is empty."""
    found = []
    for name, levels in zip(columns.given, columns.levels, strict=True):
        if not levels:
            found.append(number_columns(frame, (name,), origin))
            continue
        _check_column(frame, name, origin)
        words = _words(frame[name])
        empty = empty_names(frame[name], words)
        unknown = np.flatnonzero(~empty & ~words.isin(levels).to_numpy(dtype=bool))
        if len(unknown):
            line, expected = _line(frame.index, unknown[0]), ", ".join(levels)
            raise InputError(
                f"{origin}: column '{name}' holds '{words.iloc[unknown[0]]}' in line {line}; expected one of {expected}"
            )
        indicators = (
            np.stack([(words == level).to_numpy(np.float64) for level in levels[1:]], 1) if levels[1:] else None
        )
        numbers = np.zeros((len(frame), 0)) if indicators is None else indicators
        found.append(np.where(empty[:, None], np.nan, numbers))
    return found


def _check_given(frame: "pd.DataFrame", columns: Columns, parts: Sequence[Any], x: Any, origin: str) -> None:
    """Refuse a task in which a given column changes."""
    for rows in parts if columns.given else ():
        own = x[rows, len(columns.x) :]
        if (own != own[0]).any():
            name = next(name for name in columns.given if frame[name].iloc[rows].nunique() > 1)
            task = "the table" if columns.task is None else f"task '{frame[columns.task].iloc[rows[0]]}'"
            raise InputError(f"{origin}: column '{name}' changes within {task}; name such a column in --x")


def task_names(cells: Any) -> Any:
    """The names of tasks as stripped text; a whole number has no point, as 3 is read as 3.0 beside an empty cell.

    >>> import pandas as pd
    >>> task_names(pd.Series([3.0, 0.5])).tolist(), task_names(pd.Series([" oak", 3])).tolist()
    (['3', '0.5'], ['oak', '3'])
    """
    import pandas as pd

    names = cells.astype(str).str.strip()
    if pd.api.types.is_float_dtype(cells):
        whole = (cells % 1 == 0) & (cells.abs() < LARGEST_WHOLE)
        names = names.mask(whole, cells.where(whole).astype("Int64").astype(str))
    return names


def empty_names(cells: Any, names: Any) -> Any:
    """Which of a column's cells name no task; `names` are the same cells as stripped text."""
    return (names.str.lower().isin(EMPTY) | cells.isna()).to_numpy(dtype=bool)


def _check_column(frame: "pd.DataFrame", name: str, origin: str) -> None:
    if name not in frame.columns:
        raise InputError(f"{origin}: {unknown_name('column', name, map(str, frame.columns))}")
    if frame.columns.tolist().count(name) > 1:
        raise InputError(f"{origin} has two columns named '{name}'")


def number_columns(frame: "pd.DataFrame", names: Sequence[str], origin: str) -> Float[np.ndarray, "row column"]:
    """Columns as float64; an empty cell is NaN, a word or an infinite number is refused with its line."""
    numbers = np.empty((len(frame), len(names)))
    for index, name in enumerate(names):
        _check_column(frame, name, origin)
        numbers[:, index] = _number_column(frame, name, origin)
    return numbers


def input_columns(frame: "pd.DataFrame", columns: Columns, origin: str) -> Float[np.ndarray, "row column"]:
    """The columns of inputs as float64, dates as days since 1970.

    A column of dates in the fitted table must hold dates again, and a column of numbers numbers.
    """
    numbers = np.empty((len(frame), len(columns.x)))
    for index, name in enumerate(columns.x):
        _check_column(frame, name, origin)
        if columns.dates is None or name in columns.dates:
            form = columns.date_forms[columns.dates.index(name)] if columns.dates and columns.date_forms else None
            found = _days(frame[name], form)
            if found is None and columns.dates is not None and len(dates.known_words(frame[name])):
                _refuse_dates(frame[name], name, origin)
        else:
            found = None
        numbers[:, index] = _number_column(frame, name, origin, True) if found is None else found
    return numbers


def _days(cells: Any, form: str | None) -> Any:
    """Days since 1970 of a column of dates; None if it has others.

    >>> import pandas as pd
    >>> _days(pd.Series(["3/4/1970"]), "%m/%d/%Y").tolist(), _days(pd.Series(["3/4/1970"]), None)
    ([62.0], None)
    """
    if form in (dates.DAY_FIRST, dates.MONTH_FIRST) and _are_slashes(cells):
        return dates.days(cells, form)  # what the fitted table says about the order
    form = dates.date_form(cells)
    return None if form is None else dates.days(cells, form)


def _are_slashes(cells: Any) -> bool:
    words = dates.known_words(cells)
    return bool(len(words)) and bool(words.str.fullmatch(dates.SLASHES).all())


def _refuse_dates(cells: Any, name: str, origin: str) -> None:
    """Tell the first cell that is not a date, in a column that should hold dates."""
    odd = dates.odd_date(cells)
    place = cells.index.get_indexer_for(dates.known_words(cells).index[:1])[0] if odd is None else odd[0]
    line, word = _line(cells.index, place), _shown(cells.iloc[place])
    such = "; the order of day and month is not known" if _are_slashes(cells) else ""
    raise InputError(f"{origin}: column '{name}' holds '{word}' in line {line}; expected a date{such}: {dates.HOW}")


def _line(index: Any, row: Any) -> int:
    """The line of a row; where a file of text was not read, as if there was a line of names and none was empty."""
    return int(index[row]) if index is not None and index.name == LINE else int(row) + 2


def _shown(cell: Any) -> str:
    """A cell as it can stand in one line."""
    word = str(cell).strip()
    return word if word.isprintable() else ascii(word)[1:-1]


def _number_column(
    frame: "pd.DataFrame", name: str, origin: str, may_be_dates: bool = False
) -> Float[np.ndarray, " row"]:
    import pandas as pd

    cells = frame[name]
    if (dotted := frame.attrs.get(DOTTED, {}).get(name)) is not None:
        raise InputError(
            f"{origin}: column '{name}' holds '{dotted[1]}' in line {dotted[0]}, in a file with decimal commas; "
            "write it without a thousands separator, or with a decimal comma"
        )
    values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(np.isnan(values))
    given = doubtful[cells.iloc[doubtful].notna().to_numpy()]
    words = given[~cells.iloc[given].astype(str).str.strip().str.lower().isin(EMPTY).to_numpy(dtype=bool)]
    if len(words):
        odd = dates.odd_date(cells) if may_be_dates else None
        place, example = (words[0], "") if odd is None else odd
        line, word = _line(cells.index, place), _shown(cells.iloc[place])
        expected = f"a date such as {example}" if example else f"a number{_hint(word, may_be_dates)}"
        if may_be_dates and dates.date_form(cells) is not None:
            expected = "a number, as in the fitted table"
        raise InputError(f"{origin}: column '{name}' holds '{word}' in line {line}; expected {expected}")
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        line = _line(cells.index, infinite[0])
        raise InputError(
            f"{origin}: column '{name}' holds {values[infinite[0]]} in line {line}; "
            "expected finite numbers or an empty cell"
        )
    return values


def _hint(word: str, may_be_date: bool) -> str:
    """How a number could be written instead of a word.

    >>> _hint("3/4/2024", True)
    '; the order of day and month is not known: write dates as 2024-03-31'
    """
    if dates.LIKE_DATE.fullmatch(word):
        if not may_be_date:
            return "; dates are for columns of --x"
        order = " the order of day and month is not known:" if re.fullmatch(dates.SLASHES, word) else ""
        return f";{order} {dates.HOW}"
    if GROUPED.fullmatch(word):
        return " without a thousands separator"
    if DECIMAL_COMMA.fullmatch(word):
        return " with a decimal point; decimal commas need columns that are separated by semicolons"
    return ""
