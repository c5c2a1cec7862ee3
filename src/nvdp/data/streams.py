"""Folders of Parquet files, however large: read in batches, or a sample of their tasks in one pass.

The tasks whose names have the smallest hashes are kept, so that memory is bounded and the sample does not depend on
the order of the files.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, UInt64

from nvdp.data.table_files import SUFFIXES
from nvdp.data.tables import Columns, TableTask, TaskTable, empty_names, input_columns, number_columns, task_names
from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

MOST_TASKS = 20_000
MOST_POINTS = 400  # of one task: what scoring a task uses at most
MOST_ROWS = 1_000_000  # held while reading
BATCH_ROWS = 131_072
NAMELESS = re.compile(r"__index_level_\d+__")  # an index of pandas without a name
HIDDEN = (".", "_")  # first letters of files that are being written, and of notes of other programs
LARGEST_HASH = 2**64 - 1


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
    wanted = _wanted(folder, columns)
    sample = _Sample(most_tasks, most_points, most_rows)
    seen = dropped = 0
    chance = np.random.default_rng(0)  # which rows of a long task are kept
    for frame in (batch.to_pandas() for batch in batches_of_folder(folder, wanted)):
        rows = np.arange(seen, seen + len(frame))
        seen += len(frame)
        x, y = input_columns(frame, columns, str(folder)), number_columns(frame, columns.y, str(folder))
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


def first_rows(folder: Path, columns: Columns) -> "pd.DataFrame":
    """Rows of a folder to see what its columns hold: the first of which no column is all empty, if there are any."""
    import pandas as pd

    wanted = _wanted(folder, columns)
    first = pd.DataFrame(columns=wanted)
    for batch in batches_of_folder(folder, wanted):
        frame = batch.to_pandas()
        if not any(empty_names(frame[name], task_names(frame[name])).all() for name in wanted):
            return frame
        first = first if len(first) else frame
    return first


def _wanted(folder: Path, columns: Columns) -> list[str]:
    """The columns to read from a folder, which knows neither groups nor columns that are given."""
    if columns.group is not None:
        raise InputError(f"--split-by {columns.group} needs one file; {folder} is a folder")
    if columns.given:
        raise InputError(f"--given {','.join(columns.given)} needs one file; {folder} is a folder")
    return [*([columns.task] if columns.task else []), *columns.x, *columns.y]


def batches_of_folder(folder: Path, names: Sequence[str] | None, needed: Iterable[str] = ()) -> Iterator[Any]:
    """The rows of all Parquet files in a folder and the folders in it, in Arrow's batches.

    Args:
        folder: Where to look.
        names: Columns to read, which each file must have; all that any file has, if None.
        needed: Columns that each file must have besides.
    """
    with _arrow_errors(folder):
        import pyarrow as pa
        from pyarrow import dataset

        schemas = _schemas(folder)
        expected = (*(names or ()), *needed)
        for file, schema in schemas.items():  # a column that a file lacks would be read as empty cells
            if absent := [name for name in expected if name not in schema.names]:
                raise InputError(f"{file}: {unknown_name('column', absent[0], schema.names)}")
        read = columns_of_files(schemas) if names is None else names
        table = dataset.dataset(list(schemas), pa.schema([_field(name, schemas) for name in read]), format="parquet")
        for name in expected:
            if pa.types.is_nested(found := table.schema.field(name).type):
                raise InputError(f"{folder}: column '{name}' holds {found}; expected numbers, dates or words")
        batches = table.to_batches(batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False)
        yield from (batch for batch in batches if batch.num_rows)


def columns_of_folder(folder: Path) -> list[str]:
    """The columns that any Parquet file of a folder has."""
    with _arrow_errors(folder):
        return columns_of_files(_schemas(folder))


def columns_of_files(schemas: Mapping[str, Any]) -> list[str]:
    """The columns that any of some files has, but for an index of pandas without a name."""
    names = dict.fromkeys(name for schema in schemas.values() for name in schema.names)
    return [name for name in names if not NAMELESS.fullmatch(name)]


def parquet_rows(folder: Path) -> int:
    """How many rows the Parquet files of a folder have, at least one; their contents are not read."""
    with _arrow_errors(folder):
        from pyarrow import parquet

        rows = sum(parquet.read_metadata(file).num_rows for file in data_files(folder))
    if not rows:
        raise InputError(f"{folder} has 0 rows in its Parquet files; expected at least one")
    return rows


@contextmanager
def _arrow_errors(folder: Path) -> Iterator[None]:
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f"{folder}: reading Parquet needs pyarrow; pip install pyarrow") from None
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{folder} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def data_files(folder: Path) -> list[str]:
    """All Parquet files below a folder, through links too; names that begin with a point or _ are no data."""

    def refused(error: OSError) -> None:
        raise error

    found, seen = [], set()
    for place, folders, files in os.walk(folder, onerror=refused, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(HIDDEN)]
        if real not in seen:
            found += [os.path.join(place, name) for name in files if _is_data(name)]
        seen.add(real)
    if not found:
        raise InputError(f"{folder} holds no Parquet file; expected some that end in {' or '.join(SUFFIXES)}")
    return sorted(found)


def _is_data(name: str) -> bool:
    return not name.startswith(HIDDEN) and Path(name).suffix.lower() in SUFFIXES


def _schemas(folder: Path) -> dict[str, Any]:
    from pyarrow import parquet

    return {file: parquet.read_schema(file) for file in data_files(folder)}


def _field(name: str, schemas: Mapping[str, Any]) -> Any:
    """A column with a type that the numbers of all files have in common; an index of pandas is a column too."""
    import pyarrow as pa

    common, first = pa.schema([]), ""
    for file, schema in schemas.items():
        if name in schema.names:
            found = schema.field(name).type
            own = pa.schema([(name, found.value_type if pa.types.is_dictionary(found) else found)])
            try:
                common = pa.unify_schemas([common, own], promote_options="permissive")
            except pa.ArrowException:
                told = f"{file}: column '{name}' holds {found}, in {first} {common.field(0).type}"
                raise InputError(f"{told}; expected one type") from None
            first = first or file
    return common.field(0)


def task_hashes(cells: Any) -> UInt64[np.ndarray, " row"]:
    """A hash of the task that each cell of a column names.

    >>> import pandas as pd
    >>> a, b, again = task_hashes(pd.Series(["oak", "elm", " oak"]))
    >>> bool(a == again), bool(a == b)
    (True, False)
    """
    return _hashed(cells)[1]


def _names(frame: "pd.DataFrame", task: str | None) -> tuple[dict[int, str], UInt64[np.ndarray, " row"], Any]:
    """The tasks of a batch by their hashes, the hash of every row, and which rows name no task."""
    if task is None:
        return {0: ""}, np.zeros(len(frame), np.uint64), np.zeros(len(frame), bool)
    return _hashed(frame[task])


def _hashed(column: Any) -> tuple[dict[int, str], UInt64[np.ndarray, " row"], Any]:
    import pandas as pd

    codes, found = pd.factorize(column)  # a name is stripped, compared and hashed once, however many rows it has
    cells = pd.Series(found)
    names = task_names(cells)
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
