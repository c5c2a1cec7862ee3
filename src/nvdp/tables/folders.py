"""Predictions for folders of Parquet files, however many tasks they hold: in processes of this machine or on Ray.

Contexts and queries are first sorted into parts by the hashes of their tasks' names, so that the rows of a task are in
one part. A part fits into memory, is predicted as a whole and becomes one file. On a cluster Ray Data gives the parts
to its workers; a part whose worker died is predicted again by another one.
"""

import math
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdp.cluster import connected
from nvdp.data.streams import batches_of_folder, columns_of_folder, data_files, first_rows, parquet_rows, task_hashes
from nvdp.data.tables import Columns, TableTask, TaskTable
from nvdp.errors import FarNote, InputError, Note, NothingLeftError
from nvdp.loading import load
from nvdp.processes import in_processes
from nvdp.system import new_folder, terminated_as_exit, write_whole
from nvdp.tables.notes import data_notes
from nvdp.tables.predict import contexts_of, no_predictions, predictions, queries_of, with_predictions
from nvdp.units import ContextUnits

if TYPE_CHECKING:
    import pandas as pd

PART_ROWS = 25_000  # of contexts and queries together
MOST_PARTS = 1_000  # files that are open at once
WHOLE = [("U" * unsigned, bits) for unsigned in (0, 1) for bits in (8, 16, 32, 64)]  # types of whole numbers
NUMBER = re.compile(r"-?\d[\d.,e+-]*")
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

    rows: int = 0  # predicted
    tasks: int = 0
    context_rows: int = 0  # without an empty cell
    without: int = 0  # tasks without a context
    left_out: int = 0  # rows with an empty cell, of contexts and queries
    parts: int = 0  # that hold queries
    first_without: str = ""  # by name
    notes: str = ""  # what a user should know of each part, a line for each

    def __add__(self, other: "Answered") -> "Answered":
        first = min(filter(None, (self.first_without, other.first_without)), default="")
        notes = "\n".join(sorted(self.notes.splitlines() + other.notes.splitlines()))  # in any order of parts the same
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return Answered(**counts, first_without=first, notes=notes)

    def in_words(self) -> list[str]:
        """One note of each kind: notes that differ in numbers alone are of one kind.

        >>> Answered(parts=3, notes="7 of 9 points lie outside\\n2 of 8 points lie outside").in_words()
        ['2 of 8 points lie outside (in one part; such notes on 2 of 3 parts)']
        """
        kinds: dict[str, list[str]] = {}
        for note in sorted(self.notes.splitlines()):
            kinds.setdefault(NUMBER.sub("", note), []).append(note)
        told = []
        for notes in kinds.values():
            same = len(set(notes)) == 1 and len(notes) == self.parts
            told.append(
                notes[0] + ("" if same else f" (in one part; such notes on {len(notes)} of {self.parts} parts)")
            )
        return told


COUNTS = [each.name for each in fields(Answered) if each.type is int]


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
    """Predict all rows of a folder, part by part; parts, and so memory, grow with their number beyond 25 million rows.

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
    columns, task = question.columns, question.columns.task
    if task is None:
        raise InputError(f"{context} is a folder of many tasks; name their column with --task")
    for folder in (context, at):
        places = {folder.resolve(), *(Path(file).resolve().parent for file in data_files(folder))}
        if any(out.resolve().is_relative_to(place) for place in places):
            raise InputError(f"{out} is inside {folder}, whose files are read; choose another --out")
    if columns.dates is None and not columns.given:  # of a pretrained model: the contexts say which inputs are dates
        columns = columns.learned(first_rows(context, columns), str(context))
        question = replace(question, columns=columns)
    inputs = [task, *columns.x]
    given = [name for name in columns.given if name in columns_of_folder(at)]
    parts = min(MOST_PARTS, math.ceil((parquet_rows(context) + parquet_rows(at)) / PART_ROWS))
    with terminated_as_exit(), new_folder(out) as place, TemporaryDirectory(dir=place, prefix="parts-") as scratch:
        _sorted_into(parts, context, task, Path(scratch) / "context", [*inputs, *columns.y, *columns.given])
        _sorted_into(parts, at, task, Path(scratch) / "at", None, [*inputs, *given])
        job = Job(question, str(context), str(at), scratch, str(place), parts)
        total = Answered()
        with closing(_answers(job, executor, address, cpus)) as answers:
            for number, each in enumerate(answers, 1):
                total += each
                shown(number, parts)
        for folder, rows in ((context, total.context_rows), (at, total.rows)):
            if not rows:
                raise InputError(f"{folder}: each of its rows has an empty cell; nothing is left")
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
    """The same with whole numbers that stay whole where one is missing."""
    import pandas as pd
    import pyarrow as pa

    whole = {getattr(pa, f"{sign.lower()}int{n}")(): getattr(pd, f"{sign}Int{n}Dtype")() for sign, n in WHOLE}
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
        job, columns = self.job, self.job.question.columns
        given, where = self._rows("context", part), f"{job.context} (part {part} of its rows)"
        known = _or_no_tasks(given, lambda: contexts_of(self.predictor, columns, given, where))
        whole = known.rows - known.dropped
        asked, where_asked = self._rows("at", part), f"{job.at} (part {part} of its rows)"
        if not len(asked):
            return Answered(context_rows=whole, left_out=known.dropped)
        contexts = {each.name: each for each in known.tasks}
        queries = _or_no_tasks(asked, lambda: queries_of(self.predictor, columns, asked, contexts, where_asked))
        predicted, warned = self._predicted(contexts, queries)
        rows, renamed = with_predictions(asked, predicted)
        name = Path(job.place) / f"part-{part:0{len(str(job.parts - 1))}d}.parquet"
        write_whole(name, lambda path: rows.to_parquet(path, index=False))
        without = [each.name for each in queries.tasks if each.name not in contexts]
        notes = [
            *data_notes(self.predictor.units, known.tasks, queries.tasks, columns),
            *warned,
            *filter(None, [renamed]),
        ]
        by_kind = {NUMBER.sub("", note): note for note in reversed(notes)}
        return Answered(
            rows=sum(map(len, predicted)),
            tasks=len(queries.tasks),
            context_rows=whole,
            without=len(without),
            left_out=queries.dropped + known.dropped,
            parts=1,
            first_without=min(without, default=""),
            notes="\n".join(by_kind.values()),
        )

    def _rows(self, kind: str, part: int) -> "pd.DataFrame":
        """The rows of a part, of contexts or of queries."""
        import pandas as pd
        from pyarrow.parquet import read_table

        file = Path(self.job.scratch) / kind / f"{part}.parquet"
        return _frame(read_table(file)) if file.exists() else pd.DataFrame()

    def _predicted(
        self, contexts: dict[str, TableTask], queries: TaskTable
    ) -> "tuple[list[pd.DataFrame], dict[str, None]]":
        """Predictions, and what was warned of meanwhile."""
        outputs, samples = self.job.question.columns.y, self.job.question.samples
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", Note)
            found = predictions(self.predictor, contexts, queries.tasks, outputs, samples)
        told: dict[str, None] = {}
        for each in warned:
            if not issubclass(each.category, Note):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
            elif each.category is not FarNote or isinstance(self.predictor.units, ContextUnits):
                told[str(each.message)] = None  # where contexts have units of their own; else `data_notes` tells
        return found or [no_predictions(outputs, self.predictor.widths.y)], told


def _or_no_tasks(frame: "pd.DataFrame", read: Callable[[], TaskTable]) -> TaskTable:
    """The tasks of the rows of a part, which may have no whole row: those of another part may."""
    try:
        return read() if len(frame) else TaskTable((), 0, 0)
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
