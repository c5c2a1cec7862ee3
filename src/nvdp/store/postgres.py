"""States of tasks on a PostgreSQL server, for several machines; `nvdp.store.sqlite` has the same in a file.

Writers of different tasks do not wait for each other; writers of the same task take turns. When a call returns, its
transaction is on the server's disk. After the server was restarted, the next call connects again.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

from nvdp.errors import InputError
from nvdp.store.states import STORE_VERSION, MadeBy, Row, States, check_about, compare, rows_of, states_of

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

Answer = TypeVar("Answer")
CONNECT_SECONDS = 10
LOCKS_AT_ONCE = 500  # a server's table of locks has room for several thousand
_SCHEMA = """
CREATE TABLE nvdp_store (key TEXT PRIMARY KEY, value BYTEA NOT NULL);
CREATE TABLE nvdp_task (id TEXT PRIMARY KEY, count BIGINT NOT NULL, sums BYTEA NOT NULL, checksum BIGINT NOT NULL);
"""


def is_url(place: object) -> bool:
    """Whether a store is on a server; a URL of something else is refused.

    >>> is_url("postgresql://db.example/trees"), is_url("trees.db")
    (True, False)
    """
    if str(place).startswith(("postgresql://", "postgres://")):
        return True
    if isinstance(place, str) and "://" in place:
        raise InputError(f"a store is a file or a URL postgresql://…; got {place.partition('://')[0]}://…")
    return False


class StateTable:
    """States of `features` sums each, all made by one encoder from points in one set of units.

    One database, or one schema of it (``?options=-csearch_path%3Dtrees``), holds one store.
    """

    def __init__(self, url: str, features: int, made_by: MadeBy) -> None:
        self.place, self._features, self._made_by = without_password(url), features, made_by
        self._url = url
        self._db: Connection[Any] | None = None
        self._inside = False  # a transaction, which ends with its connection
        self._connection()

    def _connection(self) -> "Connection[Any]":
        """The connection, made again if it was lost, but not inside a transaction."""
        if self._db is None or (self._db.closed and not self._inside):
            with one_line(self.place):
                self._db = connect(self._url)
                try:
                    self._open(self._db)
                except BaseException:
                    self._db.close()
                    raise
        return self._db

    def _open(self, db: "Connection[Any]") -> None:
        (schema,) = db.execute("SELECT current_schema()").fetchone() or (None,)
        if schema is None:
            raise InputError(f"{self.place} names a schema that is not there; make it with CREATE SCHEMA")
        self._key = _key(f"{schema}")
        self._name_key = f"{schema}/"
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", [self._key])  # one process makes the tables
            about = read_about(db, self.place)
            if not about:
                db.execute(_SCHEMA)
                encoder, units = self._made_by
                new = {"version": STORE_VERSION, "features": self._features, "units": units}
                values = [(key, str(value).encode()) for key, value in new.items()] + [("encoder", encoder)]
                db.cursor().executemany("INSERT INTO nvdp_store VALUES (%s, %s)", values)
                about = {**new, "encoder": encoder}
        compare(about, self._made_by, self.place)

    @contextmanager
    def transaction(self, names: Sequence[str]) -> Iterator[None]:
        """All or nothing, and alone with these tasks: no other writer comes between reading and writing them."""
        keys = sorted({_key(self._name_key + name) for name in names})
        with one_line(self.place):
            db = self._again_if_lost(lambda db: self._begin(db, keys))
            self._inside = True
            try:
                yield
                db.commit()
            except BaseException:
                if not db.closed:
                    db.rollback()
                raise
            finally:
                self._inside = False

    def _begin(self, db: "Connection[Any]", keys: list[int]) -> "Connection[Any]":
        """Begin a transaction and lock tasks, in one message to the server."""
        try:
            with db.pipeline():
                db.execute("BEGIN")
                if len(keys) > LOCKS_AT_ONCE:
                    db.execute("SELECT pg_advisory_xact_lock(%s)", [self._key])
                else:
                    db.execute("SELECT pg_advisory_xact_lock_shared(%s)", [self._key])
                    db.execute("SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key", [keys])
        except BaseException:
            if not db.closed:
                db.rollback()
            raise
        return db

    def _again_if_lost(self, call: "Callable[[Connection[Any]], Answer]") -> "Answer":
        """The answer to a call that changes nothing; asked again if the server was restarted since the last call."""
        with one_line(self.place):
            try:
                return call(self._connection())
            except driver().OperationalError:
                if self._inside or self._db is None or not self._db.closed:
                    raise
                return call(self._connection())

    def _execute(self, statement: LiteralString, *values: Any) -> "Cursor[Any]":
        """Of a statement that changes nothing. Binary: a server takes six times as long to read bytes as text."""
        return self._again_if_lost(lambda db: db.execute(statement, values, binary=True))

    def read(self, names: Sequence[str]) -> States:
        """Feature sums and counts of tasks; zeros for one that is not there."""
        statement: LiteralString = "SELECT id, count, sums, checksum FROM nvdp_task WHERE id = ANY(%b::text[])"
        found: list[Row] = self._execute(statement, list(names)).fetchall()
        return states_of(names, found, self._features, self.place, STORE_VERSION)

    def write(self, names: Sequence[str], states: States) -> None:
        """Put states in the place of what was there; inside a `transaction`."""
        columns = [list(column) for column in zip(*rows_of(names, states, STORE_VERSION), strict=True)]
        if not columns:
            return
        self._connection().execute(
            "INSERT INTO nvdp_task SELECT * FROM unnest(%b::text[], %b::bigint[], %b::bytea[], %b::bigint[]) "
            "ON CONFLICT (id) DO UPDATE "
            "SET count = excluded.count, sums = excluded.sums, checksum = excluded.checksum",
            columns,
        )

    def __len__(self) -> int:
        (count,) = self._execute("SELECT COUNT(*) FROM nvdp_task").fetchone() or (0,)
        return int(count)

    def __iter__(self) -> Iterator[str]:
        self._execute("SELECT 1")
        db = self._connection()
        with one_line(self.place), db.transaction(), db.cursor(name="tasks") as cursor:  # fetches names in parts
            for (name,) in cursor.execute("SELECT id FROM nvdp_task ORDER BY id"):
                yield name

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()


def table_stats(url: str) -> dict[str, float]:
    """Tasks and points of a store, and its size on the server; every state is compared with its checksum."""
    place = without_password(url)
    check_table_exists(url)
    with one_line(place), connect(url) as db:
        tasks = points = 0
        with db.transaction(), db.cursor(name="rows") as cursor:
            for row in cursor.execute("SELECT id, count, sums, checksum FROM nvdp_task"):
                states_of([row[0]], [row], len(row[2]) // 8, place, STORE_VERSION)
                tasks, points = tasks + 1, points + row[1]
        (size,) = db.execute("SELECT pg_total_relation_size('nvdp_task')").fetchone() or (0,)
    return {"tasks": tasks, "points": points, "bytes": size, "bytes_per_task": round(size / max(tasks, 1), 1)}


def check_table_exists(url: str) -> None:
    """Refuse a database in which no store was made yet."""
    place = without_password(url)
    with one_line(place), connect(url) as db:
        if not read_about(db, place):
            raise InputError(f"{place} has no store; `nvdp store observe` makes it")


def connect(url: str) -> "Connection[Any]":
    """A connection whose statements are transactions of their own."""
    before = url.partition("://")[2].rpartition("@")[0]
    if re.search(r"[@/?#\[\]]", before) or re.search(r"%(?![0-9a-fA-F]{2})|\s", url):  # an error would quote a part
        hint = "characters of a name or password that are none of letters and digits are written %25, %2F, %40 …"
        raise InputError(f"{without_password(url)} cannot be used as a store of tasks: {hint}")
    return driver().connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)


def driver() -> Any:
    """The module psycopg, which is an extra."""
    try:
        import psycopg
    except ImportError:
        raise InputError("a store on PostgreSQL needs psycopg: pip install 'nvdp[postgres]'") from None
    return psycopg


def read_about(db: "Connection[Any]", place: str) -> dict[str, Any]:
    """What a store says about itself; {} where there is none yet."""
    tables = db.execute("SELECT to_regclass('nvdp_store'), to_regclass('nvdp_task')").fetchone() or (None, None)
    if not any(tables):
        return {}
    if not all(tables):
        raise InputError(f"{place} is damaged: it has one of the tables nvdp_store and nvdp_task only")
    about: dict[str, Any] = dict(db.execute("SELECT key, value FROM nvdp_store").fetchall())
    if "encoder" in about:
        texts = {key: value.decode(errors="replace") for key, value in about.items() if key != "encoder"}
        numbers = {key: int(texts[key]) for key in ("version", "features") if texts.get(key, "").isdigit()}
        about = {"encoder": about["encoder"], **texts, **numbers}
    return check_about(about, place)


def without_password(url: str) -> str:
    """The address of a store as it may be shown, even if the URL is no good one.

    >>> without_password("postgresql://ann:secret@db.example/trees?password=secret&connect_timeout=3")
    'postgresql://ann@db.example/trees?connect_timeout=3'
    >>> without_password("postgresql://ann:se/c@ret@[::1/trees")
    'postgresql://ann@[::1/trees'
    """
    scheme, _, rest = url.partition("://")
    before, at, after = rest.rpartition("@")
    shown = f"{scheme}://{before.partition(':')[0]}{at}{after}"
    return re.sub(r"(?<=[?&])(ssl)?password=[^&]*&?", "", shown, flags=re.IGNORECASE).rstrip("?&")


@contextmanager
def one_line(place: str) -> Iterator[None]:
    """Errors of the server as one line about the store."""
    known = driver().Error
    try:
        yield
    except known as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{place} cannot be used as a store of tasks: {said}") from None


def _key(text: str) -> int:
    """The number of an advisory lock; two tasks that share one wait for each other, nothing else."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
