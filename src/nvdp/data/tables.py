"""Tables of many tasks: one row a point, a column that names its task, columns of inputs and outputs.

Cells are read as text and turned into numbers here, so that a task named 007 keeps its name and a word among numbers
is told with its line. Rows with an empty cell are left out and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

EMPTY = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # in any case


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns; without `task` all rows are of one task."""

    task: str | None
    x: tuple[str, ...]
    y: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [*([self.task] if self.task else []), *self.x, *self.y]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"the column '{twice[0]}' is named {names.count(twice[0])} times; a column has one part")
        if not self.x:
            raise InputError("no column of inputs was named; expected at least one")


@dataclass(frozen=True)
class TableTask:
    """The rows of one task, in the order of the table."""

    name: str
    x: Float[np.ndarray, "point x"]
    y: Float[np.ndarray, "point y"]
    rows: Int[np.ndarray, " point"]  # their places among the table's rows


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a table, in order of first appearance."""

    tasks: tuple[TableTask, ...]
    rows: int
    dropped: int  # rows with an empty cell
    sampled_from: int | None = None  # about as many tasks, if these are a sample

    @property
    def note(self) -> str | None:
        """What a reader should know about rows that were left out."""
        return f"left out {self.dropped} of {self.rows} rows: a cell is empty" if self.dropped else None


def read_frame(path: Path) -> "pd.DataFrame":
    """A CSV or Parquet file, every CSV cell as text."""
    import pandas as pd

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return pd.read_csv(path, dtype=str, na_filter=False, skipinitialspace=True, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow, or give a CSV file") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path} is empty; expected a line of column names and rows") from None
    except (pd.errors.ParserError, UnicodeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path} cannot be read as a table: {reason}") from None


def read_tasks(path: Path, columns: Columns) -> TaskTable:
    """The tasks of a file; of a folder of Parquet files, however large, a sample of its tasks."""
    if path.is_dir():
        from nvdp.data.table_stream import stream_tasks

        return stream_tasks(path, columns)
    return split_tasks(read_frame(path), columns, str(path))


def split_tasks(frame: "pd.DataFrame", columns: Columns, origin: str = "the table") -> TaskTable:
    """The tasks of a long table.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"tree": ["a", "a", "b"], "day": [0, 1, 0], "size": ["1.5", "2", ""]})
    >>> table = split_tasks(frame, Columns("tree", ("day",), ("size",)))
    >>> [task.name for task in table.tasks], table.tasks[0].y[:, 0].tolist(), table.note
    (['a'], [1.5, 2.0], 'left out 1 of 3 rows: a cell is empty')
    """
    import pandas as pd

    if columns.task is not None:
        _check_column(frame, columns.task, origin)
    x, y = (_numbers(frame, names, origin) for names in (columns.x, columns.y))
    if not len(frame):
        raise InputError(f"{origin} has 0 rows; expected at least one under its column names")
    whole = ~(np.isnan(x).any(1) | np.isnan(y).any(1))
    names = frame[columns.task].astype(str).str.strip() if columns.task else pd.Series("", index=frame.index)
    if columns.task is not None:
        whole &= ~empty_names(frame[columns.task], names)
    places = np.flatnonzero(whole)
    if not len(places):
        raise InputError(f"{origin}: each of its {len(frame)} rows has an empty cell; nothing is left")
    codes, found = pd.factorize(names.to_numpy()[places])
    order = np.argsort(codes, kind="stable")
    parts = np.split(places[order], np.flatnonzero(np.diff(codes[order])) + 1)
    tasks = tuple(TableTask(str(name), x[rows], y[rows], rows) for name, rows in zip(found, parts, strict=True))
    return TaskTable(tasks, len(frame), len(frame) - len(places))


def empty_names(cells: Any, names: Any) -> Any:
    """Which of a column's cells name no task; `names` are the same cells as stripped text."""
    return (names.str.lower().isin(EMPTY) | cells.isna()).to_numpy(dtype=bool)


def _check_column(frame: "pd.DataFrame", name: str, origin: str) -> None:
    if name not in frame.columns:
        raise InputError(f"{origin}: {unknown_name('column', name, map(str, frame.columns))}")
    if frame.columns.tolist().count(name) > 1:
        raise InputError(f"{origin} has two columns named '{name}'")


def _numbers(frame: "pd.DataFrame", names: Sequence[str], origin: str) -> Float[np.ndarray, "row column"]:
    """Columns as float64; an empty cell is NaN, a word or an infinite number is refused with its line."""
    numbers = np.empty((len(frame), len(names)))
    for index, name in enumerate(names):
        _check_column(frame, name, origin)
        numbers[:, index] = _number_column(frame[name], name, origin)
    return numbers


def _number_column(cells: Any, name: str, origin: str) -> Float[np.ndarray, " row"]:
    import pandas as pd

    values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(np.isnan(values))
    given = doubtful[cells.iloc[doubtful].notna().to_numpy()]
    words = given[~cells.iloc[given].astype(str).str.strip().str.lower().isin(EMPTY).to_numpy(dtype=bool)]
    if len(words):
        raise InputError(
            f"{origin}: column '{name}' holds '{cells.iloc[words[0]]}' in line {words[0] + 2}; expected a number"
        )
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise InputError(
            f"{origin}: column '{name}' holds {values[infinite[0]]} in line {infinite[0] + 2}; "
            "expected finite numbers or an empty cell"
        )
    return values
