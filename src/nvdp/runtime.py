"""The machine: number of threads, and an allocator that keeps freed memory.

Temporaries of a megabyte go through mmap and fault on every step of a training run. Telling glibc to keep them makes
a step up to a third faster; elsewhere the call does nothing.
"""

import ctypes
import os
import platform

import torch

from nvdp.errors import InputError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


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
    """Set PyTorch's threads: as asked, or one on a machine of up to four cores, where more only get in the way."""
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
