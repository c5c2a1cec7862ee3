"""Files that are whole or absent: written beside their place, flushed to disk, then renamed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from nvdp.errors import InputError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary path beside `path`, then rename it into place.

    Whatever goes wrong, `path` is either as it was before or complete.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # what the user's umask says; some writers are stricter
        write(beside)
        beside.chmod(mode)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        with suppress(OSError):  # after the rename there is nothing left to remove
            beside.unlink()


def unfinished(folder: Path) -> list[Path]:
    """Files in a folder whose writing was never finished, as its process was killed."""
    return [path for path in folder.glob(".*.part") if path.is_file()]


def remove_unfinished(folder: Path) -> None:
    """Remove them; the caller must be the only process that writes there."""
    for path in unfinished(folder):
        with suppress(OSError):
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole."""

    def write(beside: Path) -> None:
        beside.write_text(text)

    write_whole(path, write)


def write_new_text(path: Path, text: str) -> None:
    """Write a text file that must not exist yet, even if another process is about to write it too."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text)
        os.link(beside, path)
    except FileExistsError:
        raise InputError(f"{path} has just been written by another process") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink()
