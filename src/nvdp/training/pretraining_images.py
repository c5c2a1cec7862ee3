"""The images that an extractor learns from: in an order of their own for each epoch, or as episodes, and augmented."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.class_pools import QUARTER_TURNS, ClassPool
from nvdp.nn.views import affine
from nvdp.randomness import derived_generator, derived_seed
from nvdp.training.config import PretrainConfig

# Largest affine maps of a warp of 1: radians, shear, and moves in halves of an image; scales change by ±1.
LARGEST_TURN, LARGEST_SHEAR, LARGEST_MOVE = 1.3, 1.5, 0.75
GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue look
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


def cropped(
    images: Float[Tensor, "image channel row column"], most: float, generator: torch.Generator
) -> Float[Tensor, "image channel row column"]:
    """Parts of images at random places, enlarged to the whole; a part has from `1 - most` to 1 of either side."""
    sides = 1 - most * torch.rand(len(images), 2, generator=generator)
    within = 1 - 1 / images.shape[-1]  # so that no corner of a crop lies beyond the middle of an image's last pixel
    centres = within * (1 - sides) * (2 * torch.rand(len(images), 2, generator=generator) - 1)
    return affine(images, torch.cat([torch.diag_embed(sides), centres[..., None]], -1))


def recoloured(
    images: Float[Tensor, "image channel row column"], most: float, generator: torch.Generator
) -> Float[Tensor, "image channel row column"]:
    """Images whose brightness, contrast and saturation change by factors of their own from `1 - most` to `1 + most`."""
    factors = 1 + most * (2 * torch.rand(3, len(images), 1, 1, 1, generator=generator) - 1)
    brighter = images * factors[0]
    contrasted = torch.lerp(brighter.mean((1, 2, 3), keepdim=True), brighter, factors[1])
    if images.shape[1] == len(GREY):
        grey = torch.einsum("ncij,c->nij", contrasted, images.new_tensor(GREY))[:, None]
        contrasted = torch.lerp(grey, contrasted, factors[2])
    return contrasted.clamp(0, 1)


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
            # Left and right of the upright image change places: on an image on its side these are top and bottom.
            lying = classes // len(self.pool.names) % 2 == 1
            mirrored = torch.where(lying[:, None, None, None], images.flip(-2), images.flip(-1))
            images = torch.where(flip[:, None, None, None], mirrored, images)
        if config.crops:
            images = cropped(images, config.crops, derived_generator(config.seed, "crops", step))
        if config.colours:
            images = recoloured(images, config.colours, derived_generator(config.seed, "colours", step))
        if config.warps:
            images = warped(images, config.warps, generator)
        if config.shifts:
            images = shifted(images, config.shifts, generator)
        return images.flatten(1), classes

    @property
    def labelled_pool(self) -> ClassPool:
        """The training classes, with `turns` in all four directions."""
        return replace(self.pool, turned=True) if self.config.turns else self.pool

    def _episode(self, step: int) -> Batch:
        """Images of some classes, `per_class` of each one after another."""
        config, pool = self.config, self.pool
        random = np.random.default_rng(derived_seed(config.seed, "episode", step))
        classes = random.choice(pool.classes, min(config.batch // config.per_class, pool.classes), replace=False)
        counts = pool.class_counts[classes]
        places = np.stack([random.choice(count, config.per_class, replace=False) for count in counts])
        return pool.vectors(classes, places).flatten(0, 1), torch.from_numpy(np.repeat(classes, config.per_class))

    def _plain(self, step: int) -> Batch:
        config, pool = self.config, self.labelled_pool
        images = int(self.pool.counts.sum() if config.turns else self.pool.class_counts.sum())
        size = min(config.batch, images)
        epoch, place = divmod(step, images // size)
        order = torch.randperm(images, generator=derived_generator(config.seed, "epoch", epoch))
        rows = order[place * size : (place + 1) * size]
        if config.turns:
            generator = derived_generator(config.seed, "turns", step)
            turned = torch.rand(size, generator=generator) < config.turns
            rows = rows + images * torch.randint(1, QUARTER_TURNS, (size,), generator=generator) * turned
        vectors, classes = pool.at(rows.numpy())
        return vectors, torch.from_numpy(classes)
