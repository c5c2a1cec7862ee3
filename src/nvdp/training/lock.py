"""One process at a time in a run's folder: two that train the same run would write over each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvdp.errors import InputError
from nvdp.training.run_folder import CONFIG

try:
    import fcntl
except ImportError:  # not on Windows, where runs are not guarded
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a lock on the run's configuration; it ends with the process, however that ends."""
    if fcntl is None:
        yield
        return
    with (folder / CONFIG).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is being trained by another process") from None
        yield
