"""The JSON file of a suite: one process at a time writes it, and a later one goes on with its rows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nvdp.bench.timing import machine
from nvdp.errors import InputError
from nvdp.experiments.entries import read_entries
from nvdp.experiments.schemas import BENCH
from nvdp.system import locked


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Let one process alone write a file: a lock, which ends with the process.

    The lock is on a file beside it, as each save puts a new file in its place.

    Args:
        path: The file; its folder must exist.

    Raises:
        InputError: If another process holds the lock.

    >>> with only_writer(Path("rows.json")), only_writer(Path("rows.json")):
    ...     pass
    Traceback (most recent call last):
    nvdp.errors.InputError: rows.json is in use by another nvdp bench; wait until it ends, or choose another file
    """
    real = path.resolve()  # two names of one file share a lock
    beside = real.with_name(f".{real.name}.lock")
    with beside.open("w") as file:
        if not _is_locked(file, beside):
            raise InputError(f"{path} is in use by another nvdp bench; wait until it ends, or choose another file")
        try:
            yield
        finally:
            beside.unlink(missing_ok=True)


def _is_locked(file: IO[str], path: Path) -> bool:
    """Lock an open file; False if another process holds the lock, or has just removed the file under this name."""
    try:
        return locked(file) and os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def earlier_rows(path: Path, threads: int) -> list[dict[str, Any]]:
    """Rows of the suite quality that were measured before.

    Args:
        path: Of ``nvdp bench --suite quality --json``.
        threads: Of PyTorch, for the rows that are to be added.

    Returns:
        Its rows.

    Raises:
        InputError: If the file is damaged, of another suite, or measured otherwise.
    """
    result = read_entries(path, BENCH["quality"], "suite", "machine", "rows")
    rows: list[dict[str, Any]] = [dict(row) for row in result["rows"]]
    on = result["machine"]
    here = machine(False) | {"threads": threads}
    for name in ("processor", "threads", "torch"):
        if on.get(name) != here[name]:
            was, now = on.get(name), here[name]
            raise InputError(f"{path} was measured with {name} '{was}', here it is '{now}'; choose another file")
    keys = [(row["model"], row["recipe"], row["budget"]) for row in rows]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"{path} has two rows of {twice[0][0]}, {twice[0][1]}, {twice[0][2]:g} s; leave one out")
    return rows
