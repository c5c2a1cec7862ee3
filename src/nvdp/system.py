"""The machine: files that are written as a whole or not at all, memory, threads and devices."""

import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

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


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path] = (), force: bool = False) -> None:
    """Refuse to write over an input, and over any other file that exists unless `force` is given.

    Args:
        outputs: The files that a command is about to write.
        inputs: The files that it reads; these are never written over.
        force: Whether existing files may be replaced.

    >>> check_outputs([Path(__file__)])
    Traceback (most recent call last):
    nvdp.errors.InputError: .../system.py exists; add --force to replace it, or choose another name
    """
    read = [path for path in inputs if path.exists()]
    for path in outputs:
        if path.is_dir():
            raise InputError(f"{path} is a folder; expected the name of a file to write")
        if path.exists() and any(path.samefile(each) for each in read):
            raise InputError(f"{path} is an input of this command and is not overwritten; choose another name")
        if path.exists() and not force:
            raise InputError(f"{path} exists; add --force to replace it, or choose another name")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears complete or not at all: yields one beside it, which takes its name at the end.

    Whatever goes wrong, nothing is left; after a kill, a folder that the next call removes. `folder` must be new or
    empty.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out needs a folder")
    if os.path.ismount(folder):
        raise InputError(f"{folder} is a mount point, which cannot be replaced; choose a folder in it")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} already holds a run, a fitted model or other files; choose another --out")
    place = folder.resolve()  # of a link, the folder it leads to
    for left in place.parent.glob(f".{place.name}.*.part"):
        if left.is_dir():
            if _is_alive(left.name.split(".")[-2]):
                raise InputError(f"{folder} is being written by another process")
            shutil.rmtree(left, ignore_errors=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}") from None
    try:
        yield beside
        try:
            beside.rename(place)
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # of another user
        return True
    return int(process) != os.getpid()


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """While active, SIGTERM ends the process as Ctrl-C does: what is half done is removed first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def unfinished(folder: Path) -> list[Path]:
    """Files in a folder whose writing was never finished, as its process was killed."""
    return [path for path in folder.glob(".*.part") if path.is_file()]


def remove_unfinished(folder: Path) -> None:
    """Remove them; the caller must be the only process that writes there."""
    for path in unfinished(folder):
        with suppress(OSError):
            path.unlink()


def read_json(path: Path, *entries: str) -> Any:
    """What a JSON file holds, refused in one line if it cannot be read or is no object with these entries."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if entries and not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    if missing := [name for name in entries if name not in value]:
        raise InputError(f"{path} has no entry '{missing[0]}'")
    return value


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


def source_commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the source tree that this package runs from.

    Args:
        file: A file of that tree.

    Returns:
        What `git describe` says, with "-dirty" if files have changed since; None for an installed package.
    """
    here = file.absolute()
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


_ONEDNN_ISA, _WITHOUT_AMX, _NO_LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", "DEFAULT"
_BFLOAT16_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


def avoid_broken_amx(cpuinfo: Path = Path("/proc/cpuinfo"), trial: str = _BFLOAT16_PRODUCT) -> None:
    """Switch AMX off where the processor reports it but cannot run it, as in some virtual machines.

    There the first product in bfloat16 ends the process without a message. So one is tried in a process of its own,
    once: its outcome is kept in ``ONEDNN_MAX_CPU_ISA``, which further processes inherit. Call this before the first
    product or convolution of a process, as PyTorch reads the variable once.

    Args:
        cpuinfo: The file in which Linux lists what a processor announces.
        trial: Python code that dies by a signal where AMX does not work.
    """
    if _ONEDNN_ISA in os.environ or not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text():
        return
    tried = subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False)
    os.environ[_ONEDNN_ISA] = _WITHOUT_AMX if tried.returncode < 0 else _NO_LIMIT


def use_threads(threads: int | None = None) -> int:
    """Set PyTorch's threads; by default one on a machine of up to four cores, where more are slower, else half."""
    if threads is None:
        cores = os.cpu_count() or 1
        threads = 1 if cores <= 4 else cores // 2
    if threads < 1:
        raise InputError(f"threads is {threads}; expected at least 1")
    torch.set_num_threads(threads)
    return threads


def locked(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or the process ends; False if another process holds the lock.

    Windows has no such locks: there it is always True.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file, open(file.name) as other:
    ...     locked(file), locked(other)
    (True, False)
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Take denormal numbers, smaller than 1.2e-38 in magnitude, as zero while the block runs.

    The moving averages of a unit whose gradient has become zero shrink until they are denormal, and products with such
    numbers are slow. It holds for the calling thread: where PyTorch has more of them already, these work as before.

    >>> smallest = torch.tensor([1e-40])
    >>> with denormals_as_zero():
    ...     (smallest * 1).item()
    0.0
    >>> (smallest * 1).item() > 0
    True
    """
    smallest = torch.tensor([1e-40], dtype=torch.float32, device="cpu")
    before = (smallest * 1).item() == 0  # PyTorch can set it, but not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def chosen_device(device: str) -> torch.device:
    """The device of a name; auto is a GPU where there is one."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"cannot use the device {device}: {str(error).splitlines()[0]}") from None
