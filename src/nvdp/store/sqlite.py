"""States of tasks in one SQLite file: one row a task, whole or absent, each with a checksum.

What was written survives the death of the process at any moment: a transaction of a write-ahead log is done when it
returns. Other processes may read, and write in turn, at the same time.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nvdp.errors import InputError
from nvdp.store.states import (
    OLD_VERSION,
    STORE_VERSION,
    MadeBy,
    Row,
    States,
    check_about,
    compare,
    is_whole,
    rows_of,
    states_of,
)

PAGE_BYTES = 16_384  # three rows of 512 features; smaller pages hold one
BUSY_SECONDS = 60
ROWS_AT_ONCE = 1_000  # in one SELECT
_SCHEMA = """
CREATE TABLE store (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE task (id TEXT PRIMARY KEY, count INTEGER NOT NULL, sums BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class StateFile:
    """States of `features` sums each, all made by one encoder from points in one set of units.

    `made_by` is the encoder's fingerprint and the units as text.
    """

    def __init__(self, path: Path, features: int, made_by: MadeBy, power_safe: bool) -> None:
        self.place, self._features, self._made_by = path, features, made_by
        self._version, self._checked = STORE_VERSION, False
        compare(read_about(path), made_by, path)  # before anything is written, as the file may be something else
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
            about = _about(self.db, self.place)
            if not about:
                for statement in _SCHEMA.strip().splitlines():
                    self.db.execute(statement)
                encoder, units = self._made_by
                about = {"version": STORE_VERSION, "encoder": encoder, "features": self._features, "units": units}
                self.db.executemany("INSERT INTO store VALUES (?, ?)", about.items())
        compare(about, self._made_by, self.place)
        self._version = about["version"]
        if self._version == OLD_VERSION:
            self.check()  # its checksums do not cover the names

    def check(self) -> None:
        """Compare the index with the table, once: damage there would make a known task look like a new one."""
        if not self._checked:
            with one_line(self.place):
                _check_structure(self.db, self.place)
            self._checked = True

    @contextmanager
    def transaction(self, names: Sequence[str] = ()) -> Iterator[None]:
        """All or nothing, and alone: states are read and written back with no other writer in between."""
        with one_line(self.place):
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
        rows: dict[str, Row] = {}
        with one_line(self.place):
            for start in range(0, len(names), ROWS_AT_ONCE):
                part = names[start : start + ROWS_AT_ONCE]
                marks = ",".join("?" * len(part))
                found = self.db.execute(f"SELECT id, count, sums, checksum FROM task WHERE id IN ({marks})", part)
                rows.update((row[0], row) for row in found)
        if len(rows) < len(set(names)):
            self.check()
        return states_of(names, rows.values(), self._features, self.place, self._version)

    def write(self, names: Sequence[str], states: States) -> None:
        """Put states in the place of what was there; inside a `transaction`."""
        self.db.executemany(
            "INSERT INTO task VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET count = excluded.count, sums = excluded.sums, checksum = excluded.checksum",
            rows_of(names, states, self._version),
        )

    def __len__(self) -> int:
        self.check()
        with one_line(self.place):
            return int(self.db.execute("SELECT COUNT(*) FROM task").fetchone()[0])

    def __iter__(self) -> Iterator[str]:
        self.check()
        with one_line(self.place):
            for (name,) in self.db.execute("SELECT id FROM task ORDER BY rowid"):
                yield name

    def close(self) -> None:
        """Write the log into the file and close it."""
        self.db.close()


def file_stats(path: Path) -> dict[str, float]:
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
            if not is_whole(name, count, data, checksum, about["version"]):
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
    return check_about(dict(db.execute("SELECT key, value FROM store")), path)


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
