"""Image completion: the pixels of an image are the points of a task (section 5.2).

Images come from a public set or from a folder of pictures, and are read on first use.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from nvdp.data.image_files import SUFFIXES, Images, Splits, check_split, open_picture, picture_channels, read_pictures
from nvdp.data.public.celeba import CELEBA
from nvdp.data.public.fetch import Found, PublicSet, locate, prepared, ways_to_provide
from nvdp.data.public.mnist import MNIST
from nvdp.data.public.omniglot import OMNIGLOT
from nvdp.data.source import VALIDATION_CHUNK, DataConfig
from nvdp.errors import InputError, unknown_name
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

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
        """The images of a split; if the set is not on this machine, the error says how to provide it."""
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


@cache
def _read(name: str, found: Found) -> Splits:
    images = PUBLIC_SETS[name]
    if found.is_npz or name == "mnist":
        return images.read(found)
    return prepared(name, found, lambda: images.read(found))


FEWEST, SHARE = 3, 10  # pictures a folder must hold; one tenth is for validation, another for testing


@dataclass(frozen=True)
class FolderImages:
    """The pictures of a folder and those inside it, each cut to its central square.

    All must be grey or all in colour, as the first one is, unless `channels` converts them.
    """

    config: DataConfig
    name: str = "images"

    @property
    def size(self) -> int:
        """Rows, and columns."""
        return self.config.size

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        if self.config.channels is not None:
            return self.config.channels
        first = picture_files(self.config)[0]
        return picture_channels(open_picture(first, str(first)))

    def split(self, name: str) -> Images:
        """The images of a split, the same for the same files."""
        check_split(name)
        return _read_folder(self.config)[name]


def picture_files(config: DataConfig) -> list[Path]:
    """The picture files of a folder in order of their names."""
    if config.folder is None:
        raise InputError("the task images needs a folder of pictures: --folder DIR")
    folder = Path(config.folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; the task images takes a folder of pictures")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if len(files) < FEWEST:
        raise InputError(
            f"{folder} holds {len(files)} pictures; expected at least {FEWEST} files ending in {', '.join(SUFFIXES)}"
        )
    return files


@cache
def _read_folder(config: DataConfig) -> Splits:
    images = np.stack(list(read_pictures(picture_files(config), config)))
    order = torch.randperm(len(images), generator=derived_generator(0, "folder of pictures", "split")).numpy()
    few = max(1, len(images) // SHARE)
    parts = {"validation": order[:few], "test": order[few : 2 * few], "train": order[2 * few :]}
    return {name: images[np.sort(part)] for name, part in parts.items()}


FEWEST_CONTEXT, MOST_POINTS, FEWEST_TARGETS = 3, 200, 3  # S ~ U{3..197} where an image has 200 pixels or more


def pixel_coordinates(rows: int, columns: int) -> Float[Tensor, "pixel 2"]:
    """(row, column) of every pixel in [0, 1]², row by row.

    >>> pixel_coordinates(2, 3)[:4].tolist()
    [[0.0, 0.0], [0.0, 0.5], [0.0, 1.0], [1.0, 0.0]]
    """
    row, column = torch.linspace(0, 1, rows), torch.linspace(0, 1, columns)
    return torch.cartesian_prod(row, column)


def pixel_values(images: UInt8[np.ndarray, "image row column channel"]) -> Float[Tensor, "image pixel channel"]:
    """Intensities in [0, 1] in the order of the coordinates, the channels of a pixel together."""
    count, _, _, channels = images.shape
    return torch.from_numpy(np.divide(images, 255, dtype=np.float32)).reshape(count, -1, channels)


def whole_images(
    images: UInt8[np.ndarray, "image row column channel"], is_context: Bool[Tensor, "image pixel"]
) -> TaskBatch:
    """Images as tasks of all their pixels, row by row; the given pixels are the context."""
    count, rows, columns, _ = images.shape
    x = pixel_coordinates(rows, columns).expand(count, -1, -1)
    return TaskBatch(x, pixel_values(images), is_context, torch.ones_like(is_context))


@dataclass(frozen=True)
class ImageTasks:
    """Pixels of a set of images as tasks; `split` is the split for scoring, never used for training.

    In a share `any_context` of the training steps contexts have up to all pixels of an image.
    """

    source: ImageSource
    split: str = "validation"
    any_context: float = 0.0

    @property
    def name(self) -> str:
        """The name of the set of images."""
        return self.source.name

    @property
    def x_dim(self) -> int:
        """Row and column."""
        return 2

    @property
    def y_dim(self) -> int:
        """The number of channels."""
        return self.source.channels

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Random training images with random pixels; padded to the largest N of the batch."""
        images = self.source.split("train")
        generator = derived_generator(seed, self.name, "train", step)
        chosen = torch.randint(len(images), (tasks,), generator=generator)
        pixels = self.source.size**2
        any_context = self.any_context > 0 and bool(torch.rand((), generator=generator) < self.any_context)
        most = pixels if any_context else min(MOST_POINTS, pixels)
        size = _context_sizes(tasks, most, generator)
        # N ~ U{S+1..most}, an image at a time: the share of the way from S to `most`, rounded up.
        share = 1 - torch.rand(tasks, 1, generator=generator, dtype=torch.float64)  # in (0, 1]
        points = size + ((most - size) * share).ceil().long()
        longest = int(points.max())
        order = torch.rand(tasks, pixels, generator=generator).argsort(-1)[:, :longest, None]  # (task, point, 1)
        position = torch.arange(longest)
        mask = position < points
        values = pixel_values(images[chosen.numpy()])
        x = pixel_coordinates(self.source.size, self.source.size)[order[..., 0]] * mask[..., None]
        y = values.gather(1, order.expand(-1, -1, values.shape[-1])) * mask[..., None]
        return TaskBatch(x, y, position < size, mask)

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """All pixels of 64 images, S of them the context; images repeat only after all have been used."""
        images = self.source.split(self.split)
        order = torch.randperm(len(images), generator=derived_generator(seed, self.name, self.split, "order"))
        chosen = order[(chunk * VALIDATION_CHUNK + torch.arange(VALIDATION_CHUNK)) % len(images)]
        generator = derived_generator(seed, self.name, self.split, chunk)
        pixels = self.source.size**2
        size = _context_sizes(VALIDATION_CHUNK, min(MOST_POINTS, pixels), generator)
        return whole_images(images[chosen.numpy()], random_pixels(VALIDATION_CHUNK, pixels, size, generator))


def random_pixels(
    images: int, pixels: int, size: Tensor | int, generator: torch.Generator
) -> Bool[Tensor, "image pixel"]:
    """`size` random pixels of each image, as a mask."""
    return torch.rand(images, pixels, generator=generator).argsort(-1).argsort(-1) < size


def _context_sizes(tasks: int, most: int, generator: torch.Generator) -> Tensor:
    return torch.randint(FEWEST_CONTEXT, most - FEWEST_TARGETS + 1, (tasks, 1), generator=generator)
