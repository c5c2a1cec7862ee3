"""The file of a store: the states of tasks as rows of SQLite, whole or absent, each with a checksum.

What was written survives the death of the process at any moment: a transaction of a write-ahead log is done when it
returns. Other processes may read, and write in turn, at the same time.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError

STORE_VERSION = 1
PAGE_BYTES = 8_192  # seven rows of 128 features
BUSY_SECONDS = 60
ROWS_AT_ONCE = 1_000  # in one SELECT
_SCHEMA = """
CREATE TABLE store (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE task (id TEXT PRIMARY KEY, count INTEGER NOT NULL, sums BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
States = tuple[Float[Tensor, "task feature"], Int[Tensor, " task"]]


class StateFile:
    """States of `features` sums each, all made by the encoder of one fingerprint."""

    def __init__(self, path: Path, features: int, fingerprint: bytes, power_safe: bool) -> None:
        self.path, self._features = path, features
        with one_line(path):
            self.db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._open(fingerprint, power_safe)
            except BaseException:
                self.db.close()
                raise

    def _open(self, own: bytes, power_safe: bool) -> None:
        self.db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
        with self.transaction():
            tables = {name for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                for statement in _SCHEMA.strip().splitlines():
                    self.db.execute(statement)
                new = {"version": STORE_VERSION, "encoder": own, "features": self._features}
                self.db.executemany("INSERT INTO store VALUES (?, ?)", new.items())
                return
        if tables != {"store", "task"}:
            raise InputError(f"{self.path} is an SQLite file of something else: it has the tables {sorted(tables)}")
        about: dict[str, Any] = dict(self.db.execute("SELECT key, value FROM store"))
        if about.get("version") != STORE_VERSION:
            raise InputError(f"{self.path} has format version {about.get('version')}; this nvdp reads {STORE_VERSION}")
        if about["encoder"] != own:
            raise InputError(
                f"{self.path} holds states of the encoder {about['encoder'].hex()}; this model's is {own.hex()}"
            )

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
        """Write the log into the file and let go of it."""
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
    """What SQLite has to say, as one line about the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"{path} cannot be used as a store of tasks: {error}") from None


def _checksum(count: int, data: bytes) -> int:
    return zlib.crc32(data, count & 0xFFFFFFFF)
