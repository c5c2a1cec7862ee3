"""An image is a function from pixel coordinates to intensities; a few pixels are the context (image completion).

Coordinates are (row, column) in [0, 1]², intensities in [0, 1] with one output for each channel. Every image of a
batch has pixels of its own, S ~ U{3..197} of them the context and N ~ U{S+1..200} in all; when scored, all its
other pixels are targets.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from nvdp.data.image_sets import ImageSource
from nvdp.data.source import VALIDATION_CHUNK
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

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
    """Images as tasks of all their pixels, row by row, with the given ones as the context."""
    count, rows, columns, _ = images.shape
    x = pixel_coordinates(rows, columns).expand(count, -1, -1)
    return TaskBatch(x, pixel_values(images), is_context, torch.ones_like(is_context))


@dataclass(frozen=True)
class ImageTasks:
    """The pixels of a set of images as tasks; `split` is what is scored, training never sees it."""

    source: ImageSource
    split: str = "validation"

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
        most = min(MOST_POINTS, pixels)
        size = _context_sizes(tasks, pixels, generator)
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
        """All pixels of 64 images, S of them the context; no image comes twice before all have come once."""
        images = self.source.split(self.split)
        order = torch.randperm(len(images), generator=derived_generator(seed, self.name, self.split, "order"))
        chosen = order[(chunk * VALIDATION_CHUNK + torch.arange(VALIDATION_CHUNK)) % len(images)]
        generator = derived_generator(seed, self.name, self.split, chunk)
        pixels = self.source.size**2
        size = _context_sizes(VALIDATION_CHUNK, pixels, generator)
        return whole_images(images[chosen.numpy()], random_pixels(VALIDATION_CHUNK, pixels, size, generator))


def random_pixels(
    images: int, pixels: int, size: Tensor | int, generator: torch.Generator
) -> Bool[Tensor, "image pixel"]:
    """`size` random pixels of each image, as a mask."""
    return torch.rand(images, pixels, generator=generator).argsort(-1).argsort(-1) < size


def _context_sizes(tasks: int, pixels: int, generator: torch.Generator) -> Tensor:
    most = min(MOST_POINTS, pixels) - FEWEST_TARGETS
    return torch.randint(FEWEST_CONTEXT, most + 1, (tasks, 1), generator=generator)
