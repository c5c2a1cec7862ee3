"""The states of many tasks in one SQLite file: one row a task, whole or absent, each with a checksum.

What was written survives the death of the process at any moment: a transaction of a write-ahead log is done when it
returns. Other processes may read, and write in turn, at the same time.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError, check_format
from nvdp.loading import Predictor
from nvdp.models.base import MetaModel, RegressionModel
from nvdp.models.state import PointError, TaskState, encoder_fingerprint, feature_sums
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, as_points

STORE_VERSION, OLD_VERSION = 3, 2  # the old one's checksums do not cover the names of tasks
PAGE_BYTES = 8_192  # seven rows of 128 features
BUSY_SECONDS = 60
ROWS_AT_ONCE = 1_000  # in one SELECT
TASKS_AT_ONCE, POINTS_AT_ONCE = 1_000, 10_000  # that are encoded together
_SCHEMA = """
CREATE TABLE store (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE task (id TEXT PRIMARY KEY, count INTEGER NOT NULL, sums BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
States = tuple[Float[Tensor, "task feature"], Int[Tensor, " task"]]


class StateFile:
    """States of `features` sums each, all made by one encoder from points in one set of units.

    `made_by` is the encoder's fingerprint and the units as text.
    """

    def __init__(self, path: Path, features: int, made_by: tuple[bytes, str], power_safe: bool) -> None:
        self.path, self._features, self._made_by = path, features, made_by
        self._version, self._checked = STORE_VERSION, False
        self._compare(read_about(path))  # before anything is written, as the file may be something else
        with one_line(path):
            self.db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open(power_safe)
            except BaseException:
                self.db.close()
                raise

    def _open(self, power_safe: bool) -> None:
        self.db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
        with self.transaction():
            about = _about(self.db, self.path)
            if not about:
                for statement in _SCHEMA.strip().splitlines():
                    self.db.execute(statement)
                encoder, units = self._made_by
                about = {"version": STORE_VERSION, "encoder": encoder, "features": self._features, "units": units}
                self.db.executemany("INSERT INTO store VALUES (?, ?)", about.items())
        self._compare(about)
        self._version = about["version"]
        if self._version == OLD_VERSION:
            self.check()  # its checksums do not cover the names

    def _compare(self, about: dict[str, Any]) -> None:
        """Refuse states of another encoder or of points in other units."""
        encoder, units = self._made_by
        if about and about["encoder"] != encoder:
            raise InputError(
                f"{self.path} holds states of the encoder {about['encoder'].hex()}; this model's is {encoder.hex()}"
            )
        if about and about["units"] != units:
            raise InputError(f"{self.path} holds states of points in other units: {about['units']}; now {units}")

    def check(self) -> None:
        """Compare the index with the table, once: damage there would make a known task look like a new one."""
        if not self._checked:
            with one_line(self.path):
                _check_structure(self.db, self.path)
            self._checked = True

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and alone: a state is read and written back with no other writer in between."""
        with one_line(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def read(self, names: Sequence[str]) -> States:
        """Feature sums and counts of tasks; zeros for one that is not there."""
        rows: dict[str, tuple[int, bytes, int]] = {}
        with one_line(self.path):
            for start in range(0, len(names), ROWS_AT_ONCE):
                part = names[start : start + ROWS_AT_ONCE]
                marks = ",".join("?" * len(part))
                found = self.db.execute(f"SELECT id, count, sums, checksum FROM task WHERE id IN ({marks})", part)
                rows.update((name, row) for name, *row in found)
        if len(rows) < len(set(names)):
            self.check()
        counts, sums = torch.zeros(len(names), dtype=torch.int64), np.zeros((len(names), self._features))
        for index, name in enumerate(names):
            if name in rows:
                count, data, checksum = rows[name]
                if not _is_whole(name, count, data, checksum, self._version) or len(data) != 8 * self._features:
                    raise InputError(f"{self.path}: the state of task '{name}' is damaged")
                counts[index], sums[index] = count, np.frombuffer(data, "<f8")
        return torch.from_numpy(sums), counts

    def write(self, names: Sequence[str], states: States) -> None:
        """Put states in the place of what was there; inside a `transaction`."""
        sums, counts = states
        rows = zip(names, counts.tolist(), sums.numpy().astype("<f8"), strict=True)
        self.db.executemany(
            "INSERT INTO task VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET count = excluded.count, sums = excluded.sums, checksum = excluded.checksum",
            (
                (name, count, data := row.tobytes(), _checksum(name, count, data, self._version))
                for name, count, row in rows
            ),
        )

    def count(self, name: str) -> int:
        """How many points of a task have been seen."""
        return int(self.read([name])[1])

    def __len__(self) -> int:
        self.check()
        with one_line(self.path):
            return int(self.db.execute("SELECT COUNT(*) FROM task").fetchone()[0])

    def __iter__(self) -> Iterator[str]:
        self.check()
        with one_line(self.path):
            for (name,) in self.db.execute("SELECT id FROM task ORDER BY rowid"):
                yield name

    def close(self) -> None:
        """Write the log into the file and close it."""
        self.db.close()


def store_stats(path: Path) -> dict[str, float]:
    """Tasks and points of a store, and its size on disk, the log of recent writes included; needs no model.

    Every state is compared with its checksum.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; `nvdp store observe` makes it")
    about = read_about(path)
    if not about:
        raise InputError(f"{path} is empty; `nvdp store observe` makes a store")
    tasks = points = 0
    with one_line(path), closing(_reader(path)) as db:
        _check_structure(db, path)
        for name, count, data, checksum in db.execute("SELECT id, count, sums, checksum FROM task"):
            if not _is_whole(name, count, data, checksum, about["version"]):
                raise InputError(f"{path}: the state of task '{name}' is damaged")
            tasks, points = tasks + 1, points + count
    size = sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())
    return {"tasks": tasks, "points": points, "bytes": size, "bytes_per_task": round(size / max(tasks, 1), 1)}


def read_about(path: Path) -> dict[str, Any]:
    """What a store says about itself, without changing its file; {} for a file that is absent or empty."""
    if not path.exists() or not path.stat().st_size:
        return {}
    with one_line(path), closing(_reader(path)) as db:
        return _about(db, path)


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)


def _about(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return {}
    if tables != {"store", "task"}:
        raise InputError(f"{path} is an SQLite file of something else: it has the tables {sorted(tables)}")
    about: dict[str, Any] = dict(db.execute("SELECT key, value FROM store"))
    if about.get("version") != OLD_VERSION:
        check_format(path, about.get("version"), STORE_VERSION, "observe the points again")
    if set(about) != {"version", "encoder", "features", "units"} or not isinstance(about["encoder"], bytes):
        raise InputError(f"{path} is damaged: it does not say which encoder and units its states are of")
    return about


def _check_structure(db: sqlite3.Connection, path: Path) -> None:
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise InputError(f"{path} is damaged: {' '.join(str(found).split())}")


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Errors of SQLite as one line about the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"{path} cannot be used as a store of tasks: {error}") from None


def _checksum(name: str, count: int, data: bytes, version: int) -> int:
    before = "" if version == OLD_VERSION else name
    return zlib.crc32(data, zlib.crc32(before.encode(), count & 0xFFFFFFFF) if before else count & 0xFFFFFFFF)


def _is_whole(name: Any, count: Any, data: Any, checksum: Any, version: int) -> bool:
    types = isinstance(name, str) and isinstance(count, int) and isinstance(data, bytes)
    return types and count >= 0 and _checksum(name, count, data, version) == checksum


__all__ = ["TaskStore", "store_stats"]


class TaskStore:
    """The states of any number of tasks in one file, under one model; points and predictions are in the user's units.

    One object serves one thread.

    Args:
        path: The file; made if it is not there.
        model: A `Predictor`, as `nvdp.load` gives it, or a regression model itself.
        power_safe: Also wait for the disk at each transaction, so that not even a power cut loses an acknowledged
            observation. Without it only a crash of the machine can, not that of the process.

    >>> import nvdp, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with TaskStore(Path(folder.name) / "patients.db", nvdp.load("gp-nvdp")) as store:
    ...     store.observe("anna", [0.0, 1.0], [0.3, 0.5])
    ...     store.observe("anna", [1.5], [0.2])
    ...     store.predict("anna", [0.5, 2.0]).mean.shape, len(store)
    2
    3
    (torch.Size([2, 1]), 1)
    >>> folder.cleanup()
    """

    def __init__(self, path: Path | str, model: Predictor | MetaModel, power_safe: bool = False) -> None:
        self.path, self.predictor = Path(path), Predictor.of(model)
        if not isinstance(self.predictor.model, RegressionModel):
            raise InputError(f"a store needs a model of regression; {self.predictor.model.config.name} is a classifier")
        self.model = self.predictor.model
        self._features = self.model.encoder.point_features
        TaskState.empty(self.model)  # refuses a model that is being trained
        made_by = encoder_fingerprint(self.model), json.dumps(self.predictor.units.to_dict())
        self._file = StateFile(self.path, self._features, made_by, power_safe)

    def observe(self, task: str, x: Any, y: Any) -> int:
        """Take in points of a task, new or known; returns how many it has seen. On return they are safe."""
        return self.observe_many([task], [x], [y])[0]

    def observe_many(self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any]) -> list[int]:
        """Take in points of several tasks at once, all or none; a task may be named more than once."""
        return self._add(tasks, xs, ys, 1)

    def forget(self, task: str, x: Any, y: Any) -> int:
        """Take points out again, as if they had never been observed; returns how many are left."""
        return self._add([task], [x], [y], -1)[0]

    def _add(self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any], sign: int) -> list[int]:
        if not len(tasks) == len(xs) == len(ys):
            raise InputError(f"{len(tasks)} tasks need as many x and y; got {len(xs)} and {len(ys)}")
        names = [_task_name(task) for task in tasks]
        starts = range(0, len(names), TASKS_AT_ONCE)
        added = self._sums(names, xs, ys, 0)  # before other writers have to wait
        seen: dict[str, int] = {}
        with self._file.transaction():
            for start in starts:
                seen |= self._change(*(self._sums(names, xs, ys, start) if start else added), sign)
        return [seen[name] for name in names]

    def _change(self, names: list[str], added: Tensor, points: Tensor, sign: int) -> dict[str, int]:
        """Add to the states of tasks, or take away; inside a transaction. How many points each has seen then."""
        sums, counts = self._file.read(names)
        sums, counts = sums + sign * added, counts + sign * points
        if (counts < 0).any():
            worst = int(counts.argmin())
            raise InputError(
                f"cannot forget {int(points[worst])} points of '{names[worst]}', which has seen "
                f"{int(counts[worst] + points[worst])}"
            )
        sums = sums * (counts > 0)[:, None]
        self.model.encoder.check_sums(sums)
        self._file.write(names, (sums, counts))
        return dict(zip(names, counts.tolist(), strict=True))

    def _sums(
        self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any], start: int
    ) -> tuple[list[str], Float[Tensor, "task feature"], Int[Tensor, " task"]]:
        """Names, feature sums and counts of up to `TASKS_AT_ONCE` of the tasks, from `start` on.

        Each point is encoded as a set of its own. A task may be named more than once. A point that cannot be
        remembered is told with its place in `tasks`.
        """
        part = slice(start, start + TASKS_AT_ONCE)
        names = list(dict.fromkeys(tasks[part]))
        place = {name: index for index, name in enumerate(names)}
        units, sets = self.predictor.units, []
        for name, raw_x, raw_y in zip(tasks[part], xs[part], ys[part], strict=True):
            x, y = as_points(units.x_in(raw_x), "x"), as_points(units.y_in(raw_y), "y")
            if len(x) != len(y):
                raise InputError(f"task '{name}': x holds {len(x)} points and y {len(y)}; they must agree")
            sets.append((x, y))
        widths = {(x.shape[1], y.shape[1]) for x, y in sets}
        if len(widths) > 1:
            raise InputError(f"tasks of one store must share their (x, y) widths; got {sorted(widths)}")
        sums = torch.zeros(len(names), self._features, dtype=torch.float64)
        if not sets:
            return names, sums, torch.zeros(0, dtype=torch.int64)
        sizes = torch.tensor([len(x) for x, _ in sets])
        owner = torch.repeat_interleave(torch.tensor([place[name] for name in tasks[part]]), sizes)
        points = PointSet.of(*(torch.cat([each[side] for each in sets])[:, None] for side in (0, 1)))
        for first in range(0, len(owner), POINTS_AT_ONCE):
            some = slice(first, first + POINTS_AT_ONCE)
            try:
                features, _ = feature_sums(self.model, PointSet(points.x[some], points.y[some], points.mask[some]))
            except PointError as error:
                flat = first + error.place[0]
                which = int(torch.searchsorted(sizes.cumsum(0), flat, right=True))
                number = flat - int(sizes[:which].sum())
                x, y = np.asarray(xs[start + which])[number], np.asarray(ys[start + which])[number]
                told = np.ravel(x).tolist(), np.ravel(y).tolist()
                raise PointError(*told, (start + which, number), f"task '{tasks[start + which]}': ") from None
            sums.index_add_(0, owner[some], features)
        for raw_x, raw_y in zip(xs[part], ys[part], strict=True):
            self.predictor.warn_far(raw_x, raw_y)
        return names, sums, torch.bincount(owner, minlength=len(names))

    def state(self, tasks: Sequence[str]) -> TaskState:
        """The states of several tasks, in the model's units; one that was never observed is empty."""
        return TaskState(self.model, *self._file.read(list(map(_task_name, tasks))))

    def posterior(self, task: str) -> Any:
        """The posterior of one task; the prior if it was never observed."""
        state = TaskState(self.model, *self._file.read([_task_name(task)]), single=True)
        return self.predictor.in_units(state.posterior())

    def predict(
        self, task: str, x: Any, samples: int = 0, generator: torch.Generator | int | None = None
    ) -> Prediction:
        """The prediction of one task at x (points, features); the prior's if it was never observed."""
        return self.posterior(task).predict(x, samples, generator)

    def predict_many(
        self, tasks: Sequence[str], x: Any, samples: int = 0, generator: torch.Generator | int | None = None
    ) -> Prediction:
        """Predictions of several tasks: all at one x (points, features), or at x of (tasks, points, features)."""
        if not tasks:
            raise InputError("predictions of 0 tasks were asked for; expected at least 1")
        return self.predictor.in_units(self.state(tasks).posterior()).predict(x, samples, generator)

    def count(self, task: str) -> int:
        """How many points of a task have been observed."""
        return self._file.count(_task_name(task))

    def __len__(self) -> int:
        return len(self._file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def close(self) -> None:
        """Write the log into the file and close it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _task_name(task: object) -> str:
    if not isinstance(task, str) or not task:
        raise InputError(f"a task is named by a text that is not empty; got {task!r}")
    if not task.isascii() and any("\ud800" <= letter <= "\udfff" for letter in task):
        raise InputError(f"a task is named by a text; {task!a} holds half a character and cannot be stored")
    return task
