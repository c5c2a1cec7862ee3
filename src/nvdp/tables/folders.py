"""Predictions for folders of Parquet files, however many tasks they hold: in processes of this machine or on Ray.

Contexts and queries are first sorted into parts by the hashes of their tasks' names, so that the rows of a task are in
one part. A part fits into memory, is predicted as a whole and becomes one file. On a cluster Ray Data gives the parts
to its workers; a part whose worker died is predicted again by another one.
"""

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdp.cluster import connected
from nvdp.data.streams import batches_of_folder, first_rows, parquet_rows, task_hashes
from nvdp.data.tables import Columns, TaskTable
from nvdp.errors import FarNote, InputError, NothingLeftError
from nvdp.loading import load
from nvdp.processes import in_processes
from nvdp.system import new_folder, terminated_as_exit, write_whole
from nvdp.tables.notes import data_notes
from nvdp.tables.predict import contexts_of, no_predictions, predictions, queries_of, with_predictions
from nvdp.units import ContextUnits

if TYPE_CHECKING:
    import pandas as pd

PART_ROWS, MOST_PARTS = 25_000, 1_000  # of contexts and queries together; files that are open at once
Shown = Callable[[int, int], None]  # is told how many parts of how many are done


@dataclass(frozen=True)
class Question:
    """What to predict: everything that a worker needs to know."""

    model: str  # a pretrained name, or a folder
    columns: Columns
    samples: int = 0


@dataclass(frozen=True)
class Job:
    """What workers share."""

    question: Question
    context: str  # the folders, for errors
    at: str
    scratch: str  # where the rows are, sorted into parts
    place: str  # where predictions go
    parts: int


@dataclass(frozen=True)
class Answered:
    """Counts of a part, or of all parts."""

    rows: int = 0
    tasks: int = 0
    without: int = 0  # tasks without a context
    left_out: int = 0  # rows with an empty cell, of contexts and queries
    parts: int = 0
    noted: int = 0  # parts of which a user should know something
    notes: str = ""  # about one of these parts, a line for each

    def __add__(self, other: "Answered") -> "Answered":
        counts = {name: value + getattr(other, name) for name, value in asdict(self).items() if name != "notes"}
        # The order in which parts are done makes no difference.
        return Answered(**counts, notes=min(filter(None, (self.notes, other.notes)), default=""))


def predict_folder(
    question: Question,
    context: Path,
    at: Path,
    out: Path,
    executor: str = "local",
    address: str | None = None,
    cpus: int = 1,
    shown: Shown = lambda done, parts: None,
) -> Answered:
    """Predict all rows of a folder; memory does not grow with their number.

    Args:
        question: The model and the columns, among them that of tasks.
        context: A folder of Parquet files: rows to predict from.
        at: A folder of Parquet files: rows to predict.
        out: A new folder. Its files have the rows of `at` with their predictions, all rows of a task in one file.
        executor: "local" or "ray".
        address: Of a Ray cluster whose nodes share the folders; without one, a cluster is started on this machine.
        cpus: Of this machine: parts that are predicted side by side, or the CPUs of a cluster that is started here.
        shown: Is told about progress.

    Returns:
        Counts over all parts.
    """
    columns = question.columns
    if columns.task is None:
        raise InputError(f"{context} is a folder of many tasks; name their column with --task")
    for folder in (context, at):
        if out.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{out} is inside {folder}, whose files are read; choose another --out")
    if columns.dates is None and not columns.given:  # of a pretrained model: the contexts say which inputs are dates
        columns = columns.learned(first_rows(context, columns), str(context))
        question = replace(question, columns=columns)
    inputs = [str(columns.task), *columns.x]
    parts = min(MOST_PARTS, max(1, math.ceil((parquet_rows(context) + parquet_rows(at)) / PART_ROWS)))
    with terminated_as_exit(), new_folder(out) as place, TemporaryDirectory(dir=place, prefix="parts-") as scratch:
        _sorted_into(parts, context, inputs[0], Path(scratch) / "context", [*inputs, *columns.y, *columns.given])
        _sorted_into(parts, at, inputs[0], Path(scratch) / "at", None, inputs)
        job = Job(question, str(context), str(at), scratch, str(place), parts)
        total = Answered()
        with closing(_answers(job, executor, address, cpus)) as answers:
            for number, each in enumerate(answers, 1):
                total += each
                shown(number, parts)
        if not total.rows:
            raise InputError(f"{at}: each of its rows has an empty cell; nothing is left")
    return total


def _sorted_into(
    parts: int, folder: Path, task: str, into: Path, names: list[str] | None, needed: Iterable[str] = ()
) -> None:
    """Write the rows of a folder to a file for each part that has any."""
    import pyarrow as pa
    from pyarrow import parquet

    into.mkdir()
    with ExitStack() as stack:
        writers: dict[int, Any] = {}
        for batch in batches_of_folder(folder, names, needed):
            table = pa.Table.from_batches([batch])
            place = (task_hashes(_frame(table.select([task]))[task]) % np.uint64(parts)).astype(int)
            order = np.argsort(place, kind="stable")
            table = table.take(order)
            found, starts = np.unique(place[order], return_index=True)
            for part, start, end in zip(found, starts, [*starts[1:], len(order)], strict=True):
                if part not in writers:
                    writer = parquet.ParquetWriter(into / f"{part}.parquet", table.schema)
                    writers[part] = stack.enter_context(writer)
                writers[part].write_table(table.slice(start, end - start))


def _frame(table: Any) -> "pd.DataFrame":
    """The same with whole numbers that stay whole where one is missing, so that a task has the same name everywhere."""
    import pandas as pd
    import pyarrow as pa

    whole = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}
    found: pd.DataFrame = table.to_pandas(types_mapper=whole.get)
    return found


class _Worker:
    """A loaded model that predicts parts."""

    def __init__(self, job: Job) -> None:
        self.job, self.predictor = job, load(job.question.model)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """As Ray Data asks: a batch of parts."""
        from nvdp.system import use_threads

        use_threads()
        answers = [asdict(self.predict(int(part))) for part in batch["id"]]
        return {name: np.array([each[name] for each in answers]) for name in answers[0]}

    def predict(self, part: int) -> Answered:
        """Predict the tasks of a part and write them; the file of a part appears whole."""
        from pyarrow.parquet import read_table

        job, columns, scratch = self.job, self.job.question.columns, Path(self.job.scratch)
        given, asked = (scratch / kind / f"{part}.parquet" for kind in ("context", "at"))
        if not asked.exists():
            return Answered()
        known, frame = TaskTable((), 0, 0), _frame(read_table(asked))
        if given.exists():
            rows_given = _frame(read_table(given))
            where = f"{job.context} (part {part} of its rows)"
            known = _whole_rows(rows_given, lambda: contexts_of(self.predictor, columns, rows_given, where))
        contexts = {each.name: each for each in known.tasks}
        where_asked = f"{job.at} (part {part} of its rows)"
        queries = _whole_rows(frame, lambda: queries_of(self.predictor, columns, frame, contexts, where_asked))
        with warnings.catch_warnings(record=True, action="always", category=FarNote) as warned:
            found = predictions(self.predictor, contexts, queries.tasks, columns.y, job.question.samples)
        own = isinstance(self.predictor.units, ContextUnits)  # each context has units of its own, and a note of its own
        told = [str(each.message) for each in warned if own or each.category is not FarNote]
        notes = [*data_notes(self.predictor.units, known.tasks, queries.tasks, columns), *told[:1]]
        rows, renamed = with_predictions(frame, found or [no_predictions(columns.y, self.predictor.widths.y)])
        notes += [renamed] if renamed else []
        name = Path(job.place) / f"part-{part:0{len(str(job.parts - 1))}d}.parquet"
        write_whole(name, lambda path: rows.to_parquet(path, index=False))
        without = sum(each.name not in contexts for each in queries.tasks)
        counts = without, queries.dropped + known.dropped, 1, int(bool(notes))
        return Answered(sum(map(len, found)), len(queries.tasks), *counts, "\n".join(notes))


def _whole_rows(frame: "pd.DataFrame", read: Callable[[], TaskTable]) -> TaskTable:
    """The tasks of a part, which may have no whole row: another part may."""
    try:
        return read()
    except NothingLeftError:
        return TaskTable((), len(frame), len(frame))


def _answers(job: Job, executor: str, address: str | None, cpus: int) -> Generator[Answered, None, None]:
    """The counts of each part, as it is done."""
    if executor == "ray":
        yield from _on_ray(job, address, cpus)
    elif min(cpus, job.parts) > 1:
        yield from in_processes(_predict_part, [(job, part) for part in range(job.parts)], min(cpus, job.parts))
    else:
        yield from map(_Worker(job).predict, range(job.parts))


def _predict_part(job: Job, part: int) -> Answered:
    return _worker(job).predict(part)


@cache
def _worker(job: Job) -> _Worker:
    """One for each process, so that a model is loaded once."""
    return _Worker(job)


def _on_ray(job: Job, address: str | None, cpus: int) -> Iterator[Answered]:
    with connected(address, cpus) as ray:
        workers = max(1, min(job.parts, int(ray.cluster_resources().get("CPU", 1))))
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = ray.data.range(
            job.parts, override_num_blocks=job.parts
        ).materialize()  # so that all CPUs are free to predict
        done = numbers.map_batches(
            _Worker, fn_constructor_args=(job,), batch_size=1, num_cpus=1, concurrency=(1, workers)
        )
        for row in done.iter_rows():
            yield Answered(**row)
