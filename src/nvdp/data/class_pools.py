"""Images, or their features, by class: episodes are drawn from them. Decoded images are cached as mapped arrays."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib import format as npy
from torch import Tensor

from nvdp.data.image_files import SUFFIXES, check_split, open_picture, picture_channels, read_pictures
from nvdp.data.public.fetch import cache_folder
from nvdp.data.source import DataConfig
from nvdp.errors import InputError
from nvdp.randomness import derived_seed
from nvdp.system import write_whole

QUARTER_TURNS = 4


@dataclass(frozen=True, eq=False)
class ClassPool:
    """The points of a split, sorted by class.

    `points` are uint8 images (image, row, column, channel) or float features (image, feature), perhaps mapped from a
    file. With `turned`, every class rotated by 90, 180 and 270 degrees is a further class: class r · C + c shows class
    c after r quarter turns.

    >>> pool = ClassPool(np.zeros((5, 2, 2, 1), np.uint8), np.array([2, 3]), ("a", "b"), turned=True)
    >>> pool.classes, pool.name(3), pool.vectors(np.array([3]), np.array([[2, 0]])).shape
    (8, 'b turned by 90°', torch.Size([1, 2, 4]))
    """

    points: np.ndarray
    counts: Int[np.ndarray, " class"]  # images of each class
    names: Sequence[str]
    turned: bool = False

    @property
    def classes(self) -> int:
        """How many classes there are, turned ones included."""
        return len(self.names) * (QUARTER_TURNS if self.turned else 1)

    @property
    def features(self) -> int:
        """Numbers of a point."""
        return int(np.prod(self.points.shape[1:]))

    @property
    def class_counts(self) -> Int[np.ndarray, " any_class"]:
        """Images of each class, turned ones included."""
        return np.tile(self.counts, self.classes // len(self.names))

    def digest(self) -> str:
        """What identifies the points and their classes."""
        named = repr((list(self.names), self.counts.tolist(), self.turned, self.points.shape, str(self.points.dtype)))
        found = hashlib.blake2b(named.encode(), digest_size=16)
        for start in range(0, len(self.points), PART):
            found.update(np.ascontiguousarray(self.points[start : start + PART]).data)
        return found.hexdigest()

    def name(self, index: int) -> str:
        """The name of a class."""
        turns, base = divmod(index, len(self.names))
        return f"{self.names[base]} turned by {90 * turns}°" if turns else self.names[base]

    def vectors(
        self, classes: Int[np.ndarray, " *group"], places: Int[np.ndarray, "*group image"]
    ) -> Float[Tensor, "*group image feature"]:
        """The images at these places of these classes: intensities in [0, 1], channel by channel; or the features."""
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        turns, base = np.divmod(classes, len(self.names))
        rows = (starts[base][..., None] + places).ravel()
        if self.points.ndim == 2:
            return torch.from_numpy(self.points[rows].astype(np.float32, copy=False)).reshape(*places.shape, -1)
        return image_vectors(self.points[rows], np.repeat(turns.ravel(), places.shape[-1])).reshape(*places.shape, -1)

    def at(self, rows: Int[np.ndarray, " row"]) -> tuple[Float[Tensor, "row feature"], Int[np.ndarray, " row"]]:
        """Images by their place among all images, class by class, turned ones included; and their classes."""
        counts = self.class_counts
        ends = np.cumsum(counts)
        classes = np.searchsorted(ends, rows, side="right")
        return self.vectors(classes, (rows - (ends - counts)[classes])[:, None])[:, 0], classes

    def every_class(self, batch: int) -> "list[tuple[int, np.ndarray]]":
        """All images as (class, places) in order of the classes, at most `batch` places at a time."""
        return [
            (index, np.arange(start, min(start + batch, count)))
            for index, count in enumerate(self.class_counts.tolist())
            for start in range(0, count, batch)
        ]


def image_vectors(images: np.ndarray, turns: Int[np.ndarray, " image"] | None = None) -> Float[Tensor, "image feature"]:
    """Images as rows of intensities in [0, 1], channel by channel, each after so many quarter turns.

    >>> turned = image_vectors(np.array([[[[255], [0]], [[0], [0]]]], np.uint8), np.array([1]))
    >>> turned.tolist()  # the top left corner goes to the bottom left
    [[0.0, 0.0, 1.0, 0.0]]
    """
    if turns is not None and turns.any():
        images = images.copy()
        for turn in range(1, QUARTER_TURNS):
            these = turns == turn
            images[these] = np.rot90(images[these], turn, axes=(1, 2))
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    return torch.from_numpy(np.divide(planes, 255, dtype=np.float32))


class ClassSource(Protocol):
    """Square images (or their features) by class, in three splits that share no class."""

    @property
    def name(self) -> str:
        """The name of the task."""
        ...

    @property
    def size(self) -> int:
        """Rows, and columns, of an image."""
        ...

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        ...

    @property
    def features(self) -> int:
        """Numbers of a point as episodes show it."""
        ...

    def split(self, name: str) -> ClassPool:
        """The classes of "train", "validation" or "test"."""
        ...


DIGEST_BYTES = 32
BLOCK = 1 << 22


def cached_array(
    path: Path, origin: str, shape: tuple[int, ...], dtype: str, make: Callable[[], Iterator[np.ndarray]]
) -> np.ndarray:
    """The array at `path`, made from the parts that `make` yields if it is not there, damaged, or of another origin.

    If the folder cannot be written to, the array stays in memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place, made = Path(folder) / "squares.npy", []
    ...     parts = lambda: (made.append(k) or np.full((2, 3), k, np.uint8) for k in range(2))
    ...     both = [cached_array(place, "v1", (4, 3), "uint8", parts).sum().item() for _ in range(2)]
    >>> both, made
    ([6, 6], [0, 1])
    """
    if (array := read_cached(path, origin, shape, dtype)) is not None:
        return array
    if not _writable(path.parent):
        return np.concatenate(list(make()))
    write_whole(path, lambda beside: _write(beside, origin, shape, dtype, make()))
    array = read_cached(path, origin, shape, dtype)
    if array is None:
        raise InputError(f"{path} was damaged while it was written: is the disk in order?")
    return array


def read_cached(path: Path, origin: str, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
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
    # Not into a mapped file: on a full disk that ends the process.
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


SHARE = 0.15  # of the classes is for validation, and as much for testing
FEWEST_CLASSES = 3  # of a folder: one for each split
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
    """The classes of each split.

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
    images = cached_array(cache_folder() / "decoded" / f"classes-{key}.npy", repr(state), shape, "uint8", parts)
    return ClassPool(images, np.array([len(part) for part in classes.values()]), tuple(classes))


def first_file(classes: Classes) -> Path:
    """The first picture of the first class that has any."""
    return next(part[0] for part in classes.values() if part)


def _channels(first: Path, config: DataConfig) -> int:
    return config.channels or picture_channels(open_picture(first, str(first)))


@cache
def _split(config: DataConfig, folder: Path, split: str) -> ClassPool:
    classes = class_files(folder)
    if empty := [name for name, files in classes.items() if not files]:
        raise InputError(f"class '{empty[0]}' of {folder} has 0 pictures; add some, or remove its folder")
    if len(classes) < FEWEST_CLASSES:
        raise InputError(f"{folder} has {len(classes)} classes; expected at least {FEWEST_CLASSES}, one for each split")
    chosen = {name: classes[name] for name in split_classes(list(classes))[split]}
    return pool_of_files(chosen, config, first_file(classes), f"{folder.resolve()} {split}")
