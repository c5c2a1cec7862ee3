"""An array kept on disk and read by memory mapping: whole or absent, made again when damaged or out of date.

The file is a .npy file followed by 32 bytes: the SHA-256 of what the array was made from and of its bytes. NumPy reads
such a file as any other. Several processes may make the same one at once; each writes beside it and renames.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from nvdp.errors import InputError
from nvdp.files import write_whole

DIGEST_BYTES = 32
BLOCK = 1 << 22


def kept_array(
    path: Path, origin: str, shape: tuple[int, ...], dtype: str, make: Callable[[], Iterator[np.ndarray]]
) -> np.ndarray:
    """The array at `path`, made from the parts that `make` yields if it is not there, damaged, or of another origin.

    In a folder that cannot be written to, the array stays in memory: that costs memory, nothing else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place, made = Path(folder) / "squares.npy", []
    ...     parts = lambda: (made.append(k) or np.full((2, 3), k, np.uint8) for k in range(2))
    ...     both = [kept_array(place, "v1", (4, 3), "uint8", parts).sum().item() for _ in range(2)]
    >>> both, made
    ([6, 6], [0, 1])
    """
    if (array := read_kept(path, origin, shape, dtype)) is not None:
        return array
    if not _writable(path.parent):
        return np.concatenate(list(make()))
    write_whole(path, lambda beside: _write(beside, origin, shape, dtype, make()))
    array = read_kept(path, origin, shape, dtype)
    if array is None:
        raise InputError(f"{path} was damaged while it was written: is the disk in order?")
    return array


def read_kept(path: Path, origin: str, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    """The array at `path`, mapped; None if it is not there, damaged, or of another origin."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        with path.open("rb") as file:
            file.seek(-DIGEST_BYTES, 2)
            expected = file.read()
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.dtype(dtype):
        return None
    if path.stat().st_size != array.offset + array.nbytes + DIGEST_BYTES:  # type: ignore[attr-defined]
        return None
    digest = hashlib.sha256(origin.encode())
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, len(flat), BLOCK):
        digest.update(flat[start : start + BLOCK].data)
    return array if digest.digest() == expected else None


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _write(beside: Path, origin: str, shape: tuple[int, ...], dtype: str, parts: Iterator[np.ndarray]) -> None:
    digest, rows = hashlib.sha256(origin.encode()), 0
    # Plain writing: to write into a mapped file of a full disk would end the process.
    with beside.open("wb") as file:
        npy.write_array_header_1_0(
            file, {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        )
        for part in parts:
            if part.shape[1:] != shape[1:] or part.dtype != np.dtype(dtype):
                raise ValueError(f"a part has shape {part.shape}, {part.dtype}; expected (…, {shape[1:]}), {dtype}")
            block = np.ascontiguousarray(part)
            rows += len(block)
            file.write(block.data)
            digest.update(block.data)
        if rows != shape[0]:
            raise ValueError(f"the parts hold {rows} rows; expected {shape[0]}")
        file.write(digest.digest())


def file_digest(path: Path) -> str:
    """The size and SHA-256 of a file, as an array's origin."""
    with path.open("rb") as file:
        return f"{path.stat().st_size} {hashlib.file_digest(file, 'sha256').hexdigest()}"
