"""One process at a time in a run's folder: two that train the same run would write over each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvdp.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows, where runs are not guarded
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; it ends with the process, however that ends."""
    if fcntl is None:
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is being trained by another process") from None
        yield
