"""The machine: files that are written as a whole or not at all, memory, threads and devices."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def source_commit() -> str | None:
    """The commit of the source tree that this package runs from.

    Returns:
        What `git describe` says, with "-dirty" if files have changed since; None for an installed package.
    """
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    try:  # an installed copy may lie inside another repository, which does not track it
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], check=True, capture_output=True)
        described = subprocess.run([*git, "describe", "--always", "--dirty"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.decode().strip()


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks for reuse; True if it agreed. ``NVDP_KEEP_MEMORY=0`` opts out."""
    if os.environ.get("NVDP_KEEP_MEMORY", "1") == "0" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def use_threads(threads: int | None = None) -> int:
    """Set PyTorch's threads; by default one on a machine of up to four cores, where more are slower, else half."""
    if threads is None:
        cores = os.cpu_count() or 1
        threads = 1 if cores <= 4 else cores // 2
    if threads < 1:
        raise InputError(f"threads is {threads}; expected at least 1")
    torch.set_num_threads(threads)
    return threads


def chosen_device(device: str) -> torch.device:
    """The device of a name; auto is a GPU where there is one."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"cannot use the device {device}: {str(error).splitlines()[0]}") from None
