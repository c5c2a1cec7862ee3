"""Tables of many tasks: one row a point, a column that names its task, columns of inputs and outputs.

Cells are read as text and turned into numbers here, so that a task named 007 keeps its name and a word among numbers
is told with its line. Rows with an empty cell are left out and counted.
"""

import bz2
import csv
import gzip
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, UInt64

from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 50_000_000  # of a file that is read at once
IN_PARTS = "write it as a folder of Parquet files, which is read in parts"
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINE = "line of the file"  # the name of an index
DECIMAL_COMMA = re.compile(r"^\s*([+-]?\d*),(\d+)\s*$")
DATE = r"\d{4}-\d{2}-\d{2}.*"  # ISO 8601; counted as days since 1970
EMPTY = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # in any case


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns; without `task` all rows are of one task."""

    task: str | None
    x: tuple[str, ...]
    y: tuple[str, ...] = ()
    group: str | None = None  # tasks with the same value are held out together

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
    group: str | None = None  # of tasks that belong together


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a table, in order of first appearance."""

    tasks: tuple[TableTask, ...]
    rows: int
    dropped: int  # rows with an empty cell
    sampled_from: int | None = None  # about as many tasks, if these are a sample
    index: Any = None  # of the frame that was read

    def line(self, row: Any) -> int:
        """The line of a row in its file, counted from 1."""
        return _line(self.index, row)

    @property
    def note(self) -> str | None:
        """What a reader should know about rows that were left out."""
        return f"left out {self.dropped} of {self.rows} rows: a cell is empty" if self.dropped else None


def read_frame(path: Path) -> "pd.DataFrame":
    """A CSV or Parquet file, every CSV cell as text; a CSV may be packed as .gz, .bz2 or .xz.

    A row with more or fewer cells than the header is refused with its line. The index of a CSV file are its lines.
    """
    import pandas as pd

    try:
        return _read_parquet(path) if path.suffix.lower() in SUFFIXES else _read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow, or give a CSV file") from None
    except InputError:
        raise
    except (pd.errors.ParserError, csv.Error, UnicodeError, OSError, EOFError, ValueError, zlib.error) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InputError(f"{path} cannot be read as a table: {reason}") from None


def _read_parquet(path: Path) -> "pd.DataFrame":
    import pandas as pd
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    cells = about.num_rows * about.num_columns
    if cells > MOST_CELLS:
        raise InputError(f"{path} holds {cells:,} cells; {MOST_CELLS:,} are read at once: {IN_PARTS}")
    return pd.read_parquet(path)


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd

    with path.open("rb") as file:
        if file.read(4) == b"PK\3\4":
            raise InputError(f"{path} cannot be read as a table: it is a zip archive; unpack it first")
    opened = PACKED.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig", newline="")
    rows: list[list[str]] = []
    lines: list[int] = []
    with opened as file:
        first = file.readline()
        semicolons = first.count(";") > first.count(",")  # then numbers may have decimal commas
        reader = csv.reader(
            itertools.chain([first], file), delimiter=";" if semicolons else ",", skipinitialspace=True, strict=True
        )
        header = [name.strip() for name in next(filter(None, reader), [])]
        if not header:
            raise InputError(f"{path} is empty; expected a line of column names and rows")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path} cannot be read as a table: {header.count(twice)} columns are named '{twice}'")
        line, width = reader.line_num + 1, len(header)
        for row in reader:
            if len(row) > width and not any(cell.strip() for cell in row[width:]):
                row = row[:width]
            if row and len(row) != width:
                raise InputError(
                    f"{path} cannot be read as a table: line {line} has {len(row)} cells and the header has {width}"
                )
            if row:
                rows.append([DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row] if semicolons else row)
                lines.append(line)
            line = reader.line_num + 1
            if len(rows) * width > MOST_CELLS:
                raise InputError(f"{path} holds more than {MOST_CELLS:,} cells; {IN_PARTS}")
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name=LINE), dtype=str)


def read_tasks(path: Path, columns: Columns) -> TaskTable:
    """The tasks of a file; of a folder of Parquet files, however large, a sample of its tasks."""
    if path.is_dir():
        from nvdp.data.tables import stream_tasks

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
    x, y = _numbers(frame, columns.x, origin, dates=True), _numbers(frame, columns.y, origin)
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
    groups = _groups(frame, columns.group, parts, origin)
    tasks = tuple(
        TableTask(str(name), x[rows], y[rows], rows, group)
        for name, rows, group in zip(found, parts, groups, strict=True)
    )
    return TaskTable(tasks, len(frame), len(frame) - len(places), index=frame.index)


def _groups(frame: "pd.DataFrame", name: str | None, parts: Sequence[Any], origin: str) -> list[str | None]:
    """The group of every task, that of its first row."""
    if name is None:
        return [None] * len(parts)
    _check_column(frame, name, origin)
    return [str(frame[name].iloc[rows[0]]).strip() for rows in parts]


def empty_names(cells: Any, names: Any) -> Any:
    """Which of a column's cells name no task; `names` are the same cells as stripped text."""
    return (names.str.lower().isin(EMPTY) | cells.isna()).to_numpy(dtype=bool)


def _check_column(frame: "pd.DataFrame", name: str, origin: str) -> None:
    if name not in frame.columns:
        raise InputError(f"{origin}: {unknown_name('column', name, map(str, frame.columns))}")
    if frame.columns.tolist().count(name) > 1:
        raise InputError(f"{origin} has two columns named '{name}'")


def _numbers(
    frame: "pd.DataFrame", names: Sequence[str], origin: str, dates: bool = False
) -> Float[np.ndarray, "row column"]:
    """Columns as float64; an empty cell is NaN, a word or an infinite number is refused with its line.

    With `dates`, a column of dates such as 2024-03-31 is its days since 1970.
    """
    numbers = np.empty((len(frame), len(names)))
    for index, name in enumerate(names):
        _check_column(frame, name, origin)
        cells = _days(frame[name]) if dates else frame[name]
        numbers[:, index] = _number_column(cells, name, origin)
    return numbers


def _line(index: Any, row: Any) -> int:
    """The line of a row; where a file of text was not read, as if there was a line of names and none was empty."""
    return int(index[row]) if index is not None and index.name == LINE else int(row) + 2


def _days(cells: Any) -> Any:
    """A column of dates as days since 1970; any other column as it is.

    >>> import pandas as pd
    >>> _days(pd.Series(["1970-01-03", "", "1970-01-01T12:00"])).tolist()
    [2.0, nan, 0.5]
    """
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells):
        return cells
    known = cells[cells.notna() & ~cells.astype(str).str.strip().str.lower().isin(EMPTY)]
    if not len(known) or not known.astype(str).str.strip().str.fullmatch(DATE).all():
        return cells
    when = pd.to_datetime(known.astype(str).str.strip(), format="ISO8601", errors="coerce", utc=True)
    if when.isna().any():
        return cells
    days = (when - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return days.reindex(cells.index) if cells.index.is_unique else cells


def _number_column(cells: Any, name: str, origin: str) -> Float[np.ndarray, " row"]:
    import pandas as pd

    values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    doubtful = np.flatnonzero(np.isnan(values))
    given = doubtful[cells.iloc[doubtful].notna().to_numpy()]
    words = given[~cells.iloc[given].astype(str).str.strip().str.lower().isin(EMPTY).to_numpy(dtype=bool)]
    if len(words):
        line = _line(cells.index, words[0])
        raise InputError(f"{origin}: column '{name}' holds '{cells.iloc[words[0]]}' in line {line}; expected a number")
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        line = _line(cells.index, infinite[0])
        raise InputError(
            f"{origin}: column '{name}' holds {values[infinite[0]]} in line {line}; "
            "expected finite numbers or an empty cell"
        )
    return values


MOST_TASKS = 20_000
MOST_POINTS = 400  # of one task: what scoring a task uses at most
MOST_ROWS = 1_000_000  # held while reading
BATCH_ROWS = 131_072
LARGEST_HASH = 2**64 - 1
SUFFIXES = (".parquet", ".pq")


@dataclass
class _Sample:
    """Rows of the tasks with the smallest hashes."""

    most_tasks: int
    most_points: int
    most_rows: int
    limit: int = LARGEST_HASH  # hashes above it belong to tasks that are not kept
    names: dict[int, str] = field(default_factory=dict)
    parts: list[tuple[Any, ...]] = field(default_factory=list)  # hash, key, row number, x, y
    held: int = 0

    def add(self, named: dict[int, str], hashes: UInt64[np.ndarray, " row"], *columns: Any) -> None:
        """Take in the rows of a batch: the hash of each, then its key, row number, x and y; and the names of hashes."""
        keep = hashes <= np.uint64(self.limit)
        self.parts.append(tuple(column[keep] for column in (hashes, *columns)))
        self.names |= {value: name for value, name in named.items() if value <= self.limit}
        self.held += int(keep.sum())
        if self.held > self.most_rows or len(self.names) > 2 * self.most_tasks:
            self.compact()

    def compact(self) -> None:
        """Drop rows of a task beyond its share, then whole tasks, those with the largest hashes first."""
        hashes, keys, rows, x, y = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.lexsort((keys, hashes))  # by task, and at random within each
        starts = np.flatnonzero(np.r_[True, np.diff(hashes[order]) != 0]) if len(order) else np.empty(0, int)
        place = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
        order = order[place < self.most_points]
        tasks, counts = np.unique(hashes[order], return_counts=True)
        kept = min(self.most_tasks, max(1, int(np.searchsorted(np.cumsum(counts), self.most_rows // 2, "right"))))
        if kept < len(tasks):
            self.limit = int(tasks[kept - 1])
            order = order[hashes[order] <= np.uint64(self.limit)]
        self.names = {int(value): self.names[int(value)] for value in tasks[:kept]}
        self.parts = [(hashes[order], keys[order], rows[order], x[order], y[order])]
        self.held = len(order)


def stream_tasks(
    folder: Path,
    columns: Columns,
    most_tasks: int = MOST_TASKS,
    most_points: int = MOST_POINTS,
    most_rows: int = MOST_ROWS,
) -> TaskTable:
    """A sample of the tasks of all Parquet files in a folder and the folders in it; all tasks if there are few."""
    if columns.group is not None:
        raise InputError(f"--split-by {columns.group} needs one file; {folder} is a folder")
    sample = _Sample(most_tasks, most_points, most_rows)
    seen = dropped = 0
    chance = np.random.default_rng(0)  # which rows of a long task are kept
    for frame, origin in _frames(folder, columns):
        rows = np.arange(seen, seen + len(frame))
        seen += len(frame)
        x, y = _numbers(frame, columns.x, origin, dates=True), _numbers(frame, columns.y, origin)
        named, hashes, empty = _names(frame, columns.task)
        whole = ~(np.isnan(x).any(1) | np.isnan(y).any(1) | empty)
        dropped += int((~whole).sum())
        keys = chance.random(len(frame), dtype=np.float32)
        sample.add(named, *(column[whole] for column in (hashes, keys, rows, x, y)))
    if not seen:
        raise InputError(f"{folder} has 0 rows in its Parquet files; expected at least one")
    if not sample.held:
        raise InputError(f"{folder}: each of its {seen} rows has an empty cell; nothing is left")
    sample.compact()
    tasks = tuple(_tasks(sample))
    # Hashes are uniform: the share of all tasks that was kept is the share of hashes.
    in_all = None if sample.limit == LARGEST_HASH else round(len(tasks) * LARGEST_HASH / sample.limit)
    return TaskTable(tasks, seen, dropped, in_all)


def _frames(folder: Path, columns: Columns) -> Iterator[tuple["pd.DataFrame", str]]:
    try:
        import pyarrow as pa
        from pyarrow import dataset
    except ImportError:
        raise InputError(f"{folder}: reading Parquet needs pyarrow; pip install pyarrow") from None
    files = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{folder} holds no Parquet file; expected some that end in {' or '.join(SUFFIXES)}")
    wanted = [*([columns.task] if columns.task else []), *columns.x, *columns.y]
    try:
        table = dataset.dataset(files, format="parquet")
        for name in wanted:
            if name not in table.schema.names:
                raise InputError(f"{folder}: {unknown_name('column', name, table.schema.names)}")
        batches = table.to_batches(
            columns=wanted, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        for batch in batches:
            yield batch.to_pandas(), str(folder)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{folder} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _names(frame: "pd.DataFrame", task: str | None) -> tuple[dict[int, str], UInt64[np.ndarray, " row"], Any]:
    """The tasks of a batch by their hashes, the hash of every row, and which rows name no task."""
    import pandas as pd

    if task is None:
        return {0: ""}, np.zeros(len(frame), np.uint64), np.zeros(len(frame), bool)
    codes, found = pd.factorize(frame[task])  # a name is stripped, compared and hashed once, however many rows it has
    cells = pd.Series(found)
    names = cells.astype(str).str.strip()
    empty = np.append(empty_names(cells, names), True)
    hashes = np.append(pd.util.hash_array(names.to_numpy(object), categorize=False), np.uint64(0))
    whole = [index for index in range(len(names)) if not empty[index]]
    return {int(hashes[index]): names[index] for index in whole}, hashes[codes], empty[codes]


def _tasks(sample: _Sample) -> Iterator[TableTask]:
    hashes, _, rows, x, y = sample.parts[0]
    bounds = np.flatnonzero(np.diff(hashes)) + 1
    for part in np.split(np.arange(len(hashes)), bounds):
        order = part[np.argsort(rows[part])]
        numbers: Float[np.ndarray, "point x"] = x[order]
        yield TableTask(sample.names[int(hashes[part[0]])], numbers, y[order], rows[order])
