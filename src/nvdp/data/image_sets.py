"""The images behind a task: a public set by its name, or any folder of pictures; read when first asked for."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from nvdp.data.celeba import CELEBA
from nvdp.data.fetch import cache_folder, locate, ways_to_provide
from nvdp.data.image_files import SPLITS, Images, Splits
from nvdp.data.mnist import MNIST
from nvdp.data.omniglot import OMNIGLOT
from nvdp.data.public_set import Found, PublicSet
from nvdp.errors import InputError, unknown_name
from nvdp.files import write_whole

PUBLIC_SETS: dict[str, PublicSet] = {s.name: s for s in (MNIST, OMNIGLOT, CELEBA)}


class ImageSource(Protocol):
    """Square images of one size, in three splits."""

    @property
    def name(self) -> str:
        """What the set is called."""
        ...

    @property
    def size(self) -> int:
        """Rows, and columns."""
        ...

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        ...

    def split(self, name: str) -> Images:
        """The images of "train", "validation" or "test"."""
        ...


@dataclass(frozen=True)
class PublicImages:
    """MNIST, Omniglot or CelebA, wherever this machine has it."""

    name: str

    @property
    def size(self) -> int:
        """Rows, and columns."""
        return public_set(self.name).size

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return public_set(self.name).channels

    def split(self, name: str) -> Images:
        """The images of a split; a set that is not here is told with the ways to provide it."""
        check_split(name)
        images = public_set(self.name)
        found = locate(images)
        if found is None:
            raise InputError(f"{self.name} is not on this machine: {ways_to_provide(images)}")
        return _read(images.name, found)[name]


def public_set(name: str) -> PublicSet:
    """The public set of that name."""
    if name not in PUBLIC_SETS:
        raise unknown_name("data set", name, PUBLIC_SETS)
    return PUBLIC_SETS[name]


def check_split(name: str) -> None:
    """Refuse a split that is not there."""
    if name not in SPLITS:
        raise unknown_name("split", name, SPLITS)


@cache
def _read(name: str, found: Found) -> Splits:
    images = PUBLIC_SETS[name]
    if found.is_npz or name == "mnist":
        return images.read(found)
    return prepared(name, found, lambda: images.read(found))


def prepared(name: str, found: Found, read: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Small pictures made once from many files, and kept in the cache as long as the files do not change."""
    state = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in found.paths]
    key = hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()
    path = cache_folder() / "prepared" / f"{name}-{key}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            return {part: file[part] for part in file.files}
    splits = read()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda beside: _save(beside, splits))
    except (OSError, InputError):  # a cache that cannot be written costs time, nothing else
        return splits
    return splits


def _save(path: Path, splits: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, **splits)  # type: ignore[arg-type]
