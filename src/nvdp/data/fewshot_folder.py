"""A folder of class folders as classes: a picture's class is the sub-folder it lies in.

Classes, not pictures, are split: 70 % train, 15 % validate and 15 % test, in the order of a hash of their names. So
the same names give the same split on every machine, and no class is in two of them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from nvdp.data.config import DataConfig
from nvdp.data.fetch import cache_folder
from nvdp.data.fewshot_cache import kept_array
from nvdp.data.fewshot_pool import ClassPool
from nvdp.data.image_files import open_picture, picture_channels
from nvdp.data.image_folder import SUFFIXES, read_pictures
from nvdp.data.image_sets import check_split
from nvdp.errors import InputError
from nvdp.randomness import derived_seed

SHARE = 0.15  # of the classes validates, and as many test
PART = 256  # pictures decoded at a time
Classes = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class FolderClasses:
    """The sub-folders of a folder as classes; pictures are cut to their central square and resized."""

    config: DataConfig
    name: str = "folder-of-classes"

    @property
    def size(self) -> int:
        """Rows, and columns."""
        return self.config.size

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return _channels(first_file(class_files(self._folder)), self.config)

    @property
    def features(self) -> int:
        """Numbers of an image."""
        return self.channels * self.size**2

    @property
    def _folder(self) -> Path:
        if self.config.folder is None:
            raise InputError("the task folder-of-classes needs a folder with a sub-folder for each class: --folder DIR")
        return Path(self.config.folder)

    def split(self, name: str) -> ClassPool:
        """The classes of a split."""
        check_split(name)
        return _split(self.config, self._folder, name)


def class_files(folder: Path) -> dict[str, list[Path]]:
    """The pictures of each class folder, in order of their names; a class without pictures is kept, as empty."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected one with a sub-folder of pictures for each class")
    folders = sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    classes = {
        inner.name: sorted(file for file in inner.rglob("*") if file.suffix.lower() in SUFFIXES) for inner in folders
    }
    if not any(classes.values()):
        raise InputError(
            f"{folder} holds {len(folders)} sub-folders and no picture in them; expected a sub-folder for each class"
        )
    return classes


def split_classes(names: Sequence[str]) -> dict[str, list[str]]:
    """Which classes train, validate and test.

    >>> {split: len(part) for split, part in split_classes([str(k) for k in range(20)]).items()}
    {'validation': 3, 'test': 3, 'train': 14}
    """
    order = sorted(names, key=lambda name: (derived_seed(0, "class folders", "split", name), name))
    few = max(1, round(SHARE * len(order)))
    parts = {"validation": order[:few], "test": order[few : 2 * few], "train": order[2 * few :]}
    return {split: sorted(part) for split, part in parts.items()}


def pool_of_files(classes: Classes, config: DataConfig, first: Path, place: str) -> ClassPool:
    """The pictures of classes, decoded once into the cache; `place` names them there.

    Without `channels`, all must be grey or in colour as the `first` one of the whole set is.
    """
    files = [file for part in classes.values() for file in part]
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.blake2b(repr((place, config)).encode(), digest_size=8).hexdigest()

    def parts() -> Iterator[np.ndarray]:
        pictures = read_pictures([first, *files], config)
        next(pictures)
        while part := list(islice(pictures, PART)):
            yield np.stack(part)

    shape = (len(files), config.size, config.size, _channels(first, config))
    images = kept_array(cache_folder() / "decoded" / f"classes-{key}.npy", repr(state), shape, "uint8", parts)
    return ClassPool(images, np.array([len(part) for part in classes.values()]), tuple(classes))


def first_file(classes: Classes) -> Path:
    """The first picture of the first class that has any."""
    return next(part[0] for part in classes.values() if part)


def _channels(first: Path, config: DataConfig) -> int:
    return config.channels or picture_channels(open_picture(first, str(first)))


@cache
def _split(config: DataConfig, folder: Path, split: str) -> ClassPool:
    classes = class_files(folder)
    chosen = {name: classes[name] for name in split_classes(list(classes))[split]}
    return pool_of_files(chosen, config, first_file(classes), f"{folder.resolve()} {split}")
