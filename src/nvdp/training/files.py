"""Files that are whole or absent: written beside their place, flushed to disk, then renamed."""

import os
from collections.abc import Callable
from pathlib import Path

from nvdp.errors import InputError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary path beside `path`, then rename it into place.

    Whatever goes wrong, `path` is either as it was before or complete.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole."""

    def write(beside: Path) -> None:
        beside.write_text(text)

    write_whole(path, write)
