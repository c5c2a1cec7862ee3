"""Functions drawn from Gaussian processes with a random kernel, and the exact posterior as their oracle.

Kernel k(x, x') = σ_f² ρ(|x−x'|/ℓ) with ℓ ~ U(0.1, 0.6) and σ_f ~ U(0.1, 1) for each task, x in [−2, 2], observations
with a noise of standard deviation 0.02. ρ is exp(−d²/2) (RBF), or Matérn-5/2 in ``gp-tnp-matern``. Everything that
meets a Cholesky factor is float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

LENGTH_SCALES, SIGNAL_SCALES, DOMAIN = (0.1, 0.6), (0.1, 1.0), (-2.0, 2.0)
NOISE = 0.02
CONTEXT_SIZES, MOST_POINTS, GRID_POINTS = (3, 97), 100, 400
TNP_CONTEXT_SIZES, TNP_FEWEST_TARGETS, TNP_MOST_POINTS = (3, 46), 3, 49


def rbf(distance: Tensor) -> Tensor:
    """exp(−d²/2), of distances in units of the length scale."""
    return torch.exp(-0.5 * distance.square())


def matern(distance: Tensor) -> Tensor:
    """Matérn-5/2: (1 + √5 d + 5d²/3) exp(−√5 d), of distances in units of the length scale."""
    scaled = math.sqrt(5) * distance.abs()
    return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)


def kernel(
    x: Float[Tensor, "task m 1"],
    other: Float[Tensor, "task n 1"],
    length_scale: Float[Tensor, " task"],
    signal_scale: Float[Tensor, " task"],
    correlation: Callable[[Tensor], Tensor] = rbf,
) -> Float[Tensor, "task m n"]:
    """σ_f² ρ((x−x')/ℓ)."""
    distance = (x - other.mT) / length_scale.to(x.dtype)[:, None, None]
    return signal_scale.to(x.dtype).square()[:, None, None] * correlation(distance)


rbf_kernel = kernel  # without another correlation


@dataclass(frozen=True)
class GPTaskBatch(TaskBatch):
    """Tasks that remember the kernel they were drawn from."""

    length_scale: Float[Tensor, " task"]
    signal_scale: Float[Tensor, " task"]

    @staticmethod
    def correlation(distance: Tensor) -> Tensor:
        """ρ of the kernel."""
        return rbf(distance)

    @classmethod
    def drawn(cls, x: Tensor, is_context: Tensor, mask: Tensor, generator: torch.Generator) -> "GPTaskBatch":
        """Tasks with a random kernel, their functions observed at x."""
        tasks, points, _ = x.shape
        length_scale = _uniform(generator, LENGTH_SCALES, tasks)
        signal_scale = _uniform(generator, SIGNAL_SCALES, tasks)
        batch = cls(x.float(), torch.zeros(tasks, points, 1), is_context, mask, length_scale, signal_scale)
        covariance = batch.kernel(x, x)
        covariance.diagonal(dim1=-2, dim2=-1).add_(NOISE**2)
        white = torch.randn(tasks, points, 1, generator=generator, dtype=torch.float64)
        y = (torch.linalg.cholesky(covariance) @ white).float() * mask[..., None]
        return replace(batch, x=batch.x * mask[..., None], y=y)

    def kernel(self, x: Float[Tensor, "task m x"], other: Float[Tensor, "task n x"]) -> Float[Tensor, "task m n"]:
        """k(x, x') of each task."""
        return kernel(x, other, self.length_scale, self.signal_scale, self.correlation)

    def oracle(self, min_std: float = 0.0, fixed_std: float | None = None) -> Prediction:
        """The exact posterior predictive at every point, given the context and the true kernel.

        `min_std` floors σ as the models' likelihood does; `fixed_std` replaces it.
        """
        # The context's points first, padded to the largest context: a padded entry is a unit variance apart.
        most = int(self.is_context.sum(-1).max())
        index = self.is_context.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :most]
        real = self.is_context.gather(1, index)  # (task, context)
        x = self.x.double()
        x_context = x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
        y_context = self.y.double()[..., 0].gather(1, index) * real
        covariance = self.kernel(x_context, x_context) * (real[:, :, None] & real[:, None, :])
        covariance.diagonal(dim1=-2, dim2=-1).add_(torch.where(real, NOISE**2, 1.0).double())
        cross = self.kernel(x_context, x) * real[:, :, None]  # (task, context, point)
        factor = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(factor, cross, upper=False)
        whitened_y = torch.linalg.solve_triangular(factor, y_context[..., None], upper=False)
        mean = (whitened * whitened_y).sum(-2)
        variance = self.signal_scale[:, None] ** 2 - whitened.square().sum(-2) + NOISE**2
        std = variance.clamp(min=NOISE**2).sqrt().clamp(min=min_std)
        if fixed_std is not None:
            std = torch.full_like(std, fixed_std)
        return Prediction(mean[None, ..., None], std[None, ..., None])


class MaternTaskBatch(GPTaskBatch):
    """The same with a Matérn-5/2 kernel."""

    @staticmethod
    def correlation(distance: Tensor) -> Tensor:
        """ρ of the kernel."""
        return matern(distance)


@dataclass(frozen=True)
class GPTasks:
    """The paper's 1D regression tasks.

    >>> batch = GPTasks().training_batch(seed=0, step=0, tasks=16)
    >>> len(batch), batch.y.dtype
    (16, torch.float32)
    """

    name: ClassVar[str] = "gp"
    x_dim: ClassVar[int] = 1
    y_dim: ClassVar[int] = 1

    def training_batch(self, seed: int, step: int, tasks: int) -> GPTaskBatch:
        """S ~ U{3..97} context points and N ~ U{S+1..100} in all, the same for the tasks of a step."""
        generator = derived_generator(seed, "gp", "train", step)
        low, high = CONTEXT_SIZES
        size = int(torch.randint(low, high + 1, (), generator=generator))
        points = int(torch.randint(size + 1, MOST_POINTS + 1, (), generator=generator))
        x = _uniform(generator, DOMAIN, tasks, points, 1)
        is_context = (torch.arange(points) < size).expand(tasks, points).clone()
        return GPTaskBatch.drawn(x, is_context, torch.ones_like(is_context), generator)

    def validation_chunk(self, seed: int, chunk: int) -> GPTaskBatch:
        """Functions on a 400-point grid of which S ~ U{3..97} random points are the context."""
        generator = derived_generator(seed, "gp", "validation", chunk)
        x = torch.linspace(*DOMAIN, GRID_POINTS, dtype=torch.float64)
        x = x[None, :, None].expand(VALIDATION_CHUNK, -1, -1)
        low, high = CONTEXT_SIZES
        size = torch.randint(low, high + 1, (VALIDATION_CHUNK, 1), generator=generator)
        order = torch.rand(VALIDATION_CHUNK, GRID_POINTS, generator=generator).argsort(-1)
        is_context = order.argsort(-1) < size
        return GPTaskBatch.drawn(x, is_context, torch.ones_like(is_context), generator)


@dataclass(frozen=True)
class TNPTasks:
    """The tasks of Nguyen and Grover (2022): the same kernels, 3–46 context points and 3 targets up to 49 points.

    >>> chunk = TNPTasks().validation_chunk(seed=0, chunk=0)
    >>> int(chunk.mask.sum(-1).max()) <= 49, int(chunk.target.mask.sum(-1).min()) >= 3
    (True, True)
    """

    name: ClassVar[str] = "gp-tnp"
    x_dim: ClassVar[int] = 1
    y_dim: ClassVar[int] = 1
    batch: ClassVar[type[GPTaskBatch]] = GPTaskBatch

    def training_batch(self, seed: int, step: int, tasks: int) -> GPTaskBatch:
        """Sizes are the same for the tasks of a step."""
        generator = derived_generator(seed, self.name, "train", step)
        size, points = (int(number) for number in _tnp_sizes(generator, 1))
        x = _uniform(generator, DOMAIN, tasks, points, 1)
        is_context = (torch.arange(points) < size).expand(tasks, points).clone()
        return self.batch.drawn(x, is_context, torch.ones_like(is_context), generator)

    def validation_chunk(self, seed: int, chunk: int) -> GPTaskBatch:
        """Each task has sizes of its own."""
        generator = derived_generator(seed, self.name, "validation", chunk)
        sizes, points = (numbers[:, None] for numbers in _tnp_sizes(generator, VALIDATION_CHUNK))
        x = _uniform(generator, DOMAIN, VALIDATION_CHUNK, TNP_MOST_POINTS, 1)
        place = torch.arange(TNP_MOST_POINTS)
        return self.batch.drawn(x, place < sizes, place < points, generator)


@dataclass(frozen=True)
class MaternTNPTasks(TNPTasks):
    """The same with Matérn-5/2 kernels."""

    name: ClassVar[str] = "gp-tnp-matern"
    batch: ClassVar[type[GPTaskBatch]] = MaternTaskBatch


def _tnp_sizes(generator: torch.Generator, tasks: int) -> tuple[Tensor, Tensor]:
    """Context points, and points in all, of so many tasks."""
    low, high = TNP_CONTEXT_SIZES
    size = torch.randint(low, high + 1, (tasks,), generator=generator)
    most = TNP_MOST_POINTS - size  # targets
    targets = TNP_FEWEST_TARGETS + (torch.rand(tasks, generator=generator) * (most - TNP_FEWEST_TARGETS + 1)).long()
    return size, size + targets


def _uniform(generator: torch.Generator, bounds: tuple[float, float], *shape: int) -> Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)
