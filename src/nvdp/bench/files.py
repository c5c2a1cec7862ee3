"""The JSON file of a suite: one process at a time writes it, and a later one goes on with its rows."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nvdp.bench.timing import machine
from nvdp.errors import InputError
from nvdp.system import locked

ROW = {"model", "recipe", "budget", "seconds", "steps", "LL"}  # of suite quality


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


def earlier_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of the suite quality that were measured before.

    Args:
        path: Of ``nvdp bench --suite quality --json``.

    Returns:
        Its rows.

    Raises:
        InputError: If the file is damaged, of another suite or of another processor.
    """
    try:
        result = json.loads(path.read_text())
    except (ValueError, RecursionError):
        result = None
    rows = result.get("rows") if isinstance(result, dict) and result.get("suite") == "quality" else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= ROW for row in rows):
        raise InputError(f"{path} is no file of nvdp bench --suite quality, or a damaged one; --resume needs one")
    if not isinstance(on := result.get("machine"), dict):
        raise InputError(f"{path} does not say on which machine it was measured; choose another file")
    measured, here = on.get("processor"), machine(False)["processor"]
    if measured != here:
        raise InputError(f"{path} was measured on '{measured}', this is '{here}'; choose another file")
    return rows
