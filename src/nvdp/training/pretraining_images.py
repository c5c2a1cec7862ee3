"""The images that an extractor learns from: in an order of their own for each epoch, or as episodes, and augmented."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.class_pools import ClassPool
from nvdp.nn.views import affine
from nvdp.randomness import derived_generator, derived_seed
from nvdp.training.config import PretrainConfig

# Largest affine maps of a warp of 1: radians, shear, and moves in halves of an image; scales change by ±1.
LARGEST_TURN, LARGEST_SHEAR, LARGEST_MOVE = 1.3, 1.5, 0.75
Batch = tuple[Float[Tensor, "image vector"], Int[Tensor, " image"]]  # images as rows, and their classes


def shifted(
    images: Float[Tensor, "image channel row column"], most: int, generator: torch.Generator
) -> Float[Tensor, "image channel row column"]:
    """Images moved by up to `most` pixels on either axis; what comes in repeats the edge."""
    size = images.shape[-1]
    padded = F.pad(images, (most,) * 4, mode="replicate")
    corners = torch.randint(2 * most + 1, (len(images), 2), generator=generator).tolist()
    moved = [
        part[:, row : row + size, column : column + size] for part, (row, column) in zip(padded, corners, strict=True)
    ]
    return torch.stack(moved)


def warped(
    images: Float[Tensor, "image channel row column"], most: float, generator: torch.Generator
) -> Float[Tensor, "image channel row column"]:
    """Images under affine maps of their own; what comes in is 0."""

    def drawn(*shape: int) -> Tensor:
        return most * (2 * torch.rand(len(images), *shape, generator=generator) - 1)

    turn, scale, shear, move = LARGEST_TURN * drawn(), 1 + drawn(2), LARGEST_SHEAR * drawn(), LARGEST_MOVE * drawn(2)
    rows = [
        torch.stack([scale[:, 0] * turn.cos(), shear - turn.sin(), move[:, 0]], 1),
        torch.stack([turn.sin(), scale[:, 1] * turn.cos(), move[:, 1]], 1),
    ]
    return affine(images, torch.stack(rows, 1))


@dataclass(frozen=True)
class TrainingImages:
    """All images of the training classes in an order that each epoch shuffles anew, or episodes of them."""

    pool: ClassPool
    config: PretrainConfig

    def batch(self, step: int) -> Batch:
        """The images and classes of a step, augmented; without episodes, no image comes twice in an epoch."""
        vectors, classes = self._episode(step) if self.config.objective == "episodes" else self._plain(step)
        config, generator = self.config, derived_generator(self.config.seed, "augmentation", step)
        images = vectors.view(len(vectors), config.channels, config.size, config.size)
        if config.flips:
            flip = torch.rand(len(images), generator=derived_generator(config.seed, "flips", step)) < 0.5
            images = torch.where(flip[:, None, None, None], images.flip(-1), images)
        if config.warps:
            images = warped(images, config.warps, generator)
        if config.shifts:
            images = shifted(images, config.shifts, generator)
        return images.flatten(1), classes

    def _episode(self, step: int) -> Batch:
        """Images of some classes, `per_class` of each one after another."""
        config, pool = self.config, self.pool
        random = np.random.default_rng(derived_seed(config.seed, "episode", step))
        classes = random.choice(pool.classes, min(config.batch // config.per_class, pool.classes), replace=False)
        counts = pool.class_counts[classes]
        places = np.stack([random.choice(count, config.per_class, replace=False) for count in counts])
        return pool.vectors(classes, places).flatten(0, 1), torch.from_numpy(np.repeat(classes, config.per_class))

    def _plain(self, step: int) -> Batch:
        counts = self.pool.class_counts
        size = min(self.config.batch, int(counts.sum()))
        epoch, place = divmod(step, int(counts.sum()) // size)
        order = torch.randperm(int(counts.sum()), generator=derived_generator(self.config.seed, "epoch", epoch))
        vectors, classes = self.pool.at(order[place * size : (place + 1) * size].numpy())
        return vectors, torch.from_numpy(classes)
