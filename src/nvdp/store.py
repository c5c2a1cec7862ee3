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
from nvdp.models.state import TaskState, encoder_fingerprint, feature_sums
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, as_points

STORE_VERSION = 2
PAGE_BYTES = 8_192  # seven rows of 128 features
BUSY_SECONDS = 60
ROWS_AT_ONCE = 1_000  # in one SELECT
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
        self.path, self._features = path, features
        with one_line(path):
            self.db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open(*made_by, power_safe)
            except BaseException:
                self.db.close()
                raise

    def _open(self, encoder: bytes, units: str, power_safe: bool) -> None:
        self.db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
        with self.transaction():
            tables = {name for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                for statement in _SCHEMA.strip().splitlines():
                    self.db.execute(statement)
                new = {"version": STORE_VERSION, "encoder": encoder, "features": self._features, "units": units}
                self.db.executemany("INSERT INTO store VALUES (?, ?)", new.items())
                return
        if tables != {"store", "task"}:
            raise InputError(f"{self.path} is an SQLite file of something else: it has the tables {sorted(tables)}")
        about: dict[str, Any] = dict(self.db.execute("SELECT key, value FROM store"))
        check_format(self.path, about.get("version"), STORE_VERSION, "observe the points again")
        if about["encoder"] != encoder:
            raise InputError(
                f"{self.path} holds states of the encoder {about['encoder'].hex()}; this model's is {encoder.hex()}"
            )
        if about["units"] != units:
            raise InputError(f"{self.path} holds states of points in other units: {about['units']}; now {units}")

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
        counts, sums = torch.zeros(len(names), dtype=torch.int64), np.zeros((len(names), self._features))
        for index, name in enumerate(names):
            if name in rows:
                count, data, checksum = rows[name]
                if len(data) != 8 * self._features or _checksum(count, data) != checksum:
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
            ((name, count, data := row.tobytes(), _checksum(count, data)) for name, count, row in rows),
        )

    def count(self, name: str) -> int:
        """How many points of a task have been seen."""
        with one_line(self.path):
            row = self.db.execute("SELECT count FROM task WHERE id = ?", [name]).fetchone()
        return int(row[0]) if row else 0

    def __len__(self) -> int:
        with one_line(self.path):
            return int(self.db.execute("SELECT COUNT(*) FROM task").fetchone()[0])

    def __iter__(self) -> Iterator[str]:
        with one_line(self.path):
            for (name,) in self.db.execute("SELECT id FROM task ORDER BY rowid"):
                yield name

    def close(self) -> None:
        """Write the log into the file and close it."""
        self.db.close()


def store_stats(path: Path) -> dict[str, float]:
    """Tasks and points of a store, and its size on disk, the log of recent writes included; needs no model."""
    if not path.exists():
        raise InputError(f"{path} does not exist; `nvdp store observe` makes it")
    with one_line(path), closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
        tasks, points = db.execute("SELECT COUNT(*), COALESCE(SUM(count), 0) FROM task").fetchone()
    size = sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())
    return {"tasks": tasks, "points": points, "bytes": size, "bytes_per_task": round(size / max(tasks, 1), 1)}


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Errors of SQLite as one line about the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"{path} cannot be used as a store of tasks: {error}") from None


def _checksum(count: int, data: bytes) -> int:
    return zlib.crc32(data, count & 0xFFFFFFFF)


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
        names = list(dict.fromkeys(map(_task_name, tasks)))
        place = {name: index for index, name in enumerate(names)}
        owner = [place[task] for task in tasks]
        added, points = self._sums(owner, xs, ys, len(names))
        with self._file.transaction():
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
        seen = counts.tolist()
        return [seen[index] for index in owner]

    def _sums(self, owner: Sequence[int], xs: Sequence[Any], ys: Sequence[Any], tasks: int) -> States:
        """Feature sums of each task; all points are encoded as one set, so that none is padding."""
        if not owner:
            return torch.zeros(0, self._features, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        units = self.predictor.units
        sets = [(as_points(units.x_in(x), "x"), as_points(units.y_in(y), "y")) for x, y in zip(xs, ys, strict=True)]
        if len(sets) == 1:
            return feature_sums(self.model, PointSet.of(*sets[0]))
        for x, y in sets:
            if len(x) != len(y):
                raise InputError(f"x holds {len(x)} points and y {len(y)}; they must agree for every task")
        widths = {(x.shape[1], y.shape[1]) for x, y in sets}
        if len(widths) > 1:
            raise InputError(f"tasks of one store must share their (x, y) widths; got {sorted(widths)}")
        sizes = torch.tensor([len(x) for x, _ in sets])
        x, y = (torch.cat([each[part] for each in sets])[:, None] for part in (0, 1))  # each point a set of its own
        features, _ = feature_sums(self.model, PointSet.of(x, y))
        index = torch.repeat_interleave(torch.tensor(owner), sizes)
        sums = torch.zeros(tasks, self._features, dtype=torch.float64).index_add_(0, index, features)
        return sums, torch.bincount(index, minlength=tasks)

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
    return task
