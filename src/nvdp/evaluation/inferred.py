"""The GP that must infer its kernel: what a model of GP functions can attain.

It knows the family of kernels, as a trained model does, but not a task's ℓ and σ_f. These lie on a grid over their
uniform priors, each weighted by p(y of the context | ℓ, σ_f). Everything is float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import LENGTH_SCALES, NOISE, SIGNAL_SCALES, GPTaskBatch
from nvdp.nn.likelihoods import HALF_LOG_TWO_PI, gaussian_log_prob

CELLS = (16, 8)  # of the grid over (ℓ, σ_f); twice as many change scores by less than 0.003
JITTER = 1e-8


@dataclass(frozen=True)
class GridPosterior:
    """What each kernel of the grid says of some points of one task, given its context; the noise is left out."""

    log_weight: Float[Tensor, "length signal"]
    mean: Float[Tensor, "length signal point"]
    reduction: Float[Tensor, "length signal context point"]  # its square over the context is what was learned
    prior: Float[Tensor, "length together together"]  # of all points or, where none is asked for together, of none
    signal: Float[Tensor, " signal"]

    def variance(self) -> Float[Tensor, "length signal point"]:
        """Of the function at each point."""
        return (self.signal.square()[:, None] - self.reduction.square().sum(-2)).clamp(min=0)

    def covariance(self) -> Float[Tensor, "length signal point point"]:
        """Of the function at all points together."""
        prior = self.signal.square()[:, None, None] * self.prior[:, None]
        return prior - self.reduction.mT @ self.reduction


@dataclass(frozen=True)
class InferredGP:
    """A mixture of the exact posteriors under all kernels of a grid.

    Args:
        smallest: Smallest σ of an observation, as the models' likelihood has it; below 0.02 the tasks' own noise.
        cells: Of the grid, for ℓ and for σ_f.

    >>> from nvdp.data.gp import GPTasks
    >>> tasks = GPTasks().training_batch(seed=0, step=1, tasks=2)
    >>> knows = tasks.oracle(0.1).log_prob(tasks.y.double()).mean()
    >>> bool(abs(knows - InferredGP(smallest=0.1).log_prob(tasks).mean()) < 0.02)  # from 67 points it knows as much
    True
    """

    smallest: float = 0.0
    cells: tuple[int, int] = CELLS

    def log_prob(self, tasks: GPTaskBatch) -> Float[Tensor, "task point"]:
        """log p(y | context) of each point by itself, context points too; of padding, no meaning."""
        rows = []
        for posterior, y in self._posteriors(tasks, every=True):
            std = (posterior.variance() + NOISE**2).sqrt().clamp(min=self.smallest)
            by_kernel = gaussian_log_prob(y, posterior.mean, std)
            rows.append(torch.logsumexp(posterior.log_weight[..., None] + by_kernel, dim=(0, 1)))
        return torch.stack(rows)

    def joint_log_prob(self, tasks: GPTaskBatch) -> Float[Tensor, " task"]:
        """log p(y of all targets together | context) of each task, with σ or `smallest` as the noise."""
        noise = max(NOISE, self.smallest)
        values = []
        for posterior, y in self._posteriors(tasks):
            factor, white = _whitened(posterior, y, noise)
            by_kernel = (-0.5 * white.square() - factor.log() - HALF_LOG_TWO_PI).sum(-1)
            values.append(torch.logsumexp(posterior.log_weight + by_kernel, dim=(0, 1)))
        return torch.stack(values)

    def chain_log_prob(self, tasks: GPTaskBatch) -> Float[Tensor, " task"]:
        """Σ_i log p(y_i | context, y_1 … y_{i−1}) of each task's targets, each with σ of at least `smallest`.

        What a model can attain that is fed its targets back one by one. The Cholesky factor of all targets holds each
        one's standard deviation given those before it; the kernels' weights follow the targets too.
        """
        values = []
        for posterior, y in self._posteriors(tasks):
            std, white = _whitened(posterior, y, NOISE)
            told = -0.5 * white.square() - std.log() - HALF_LOG_TWO_PI  # (ℓ, σ_f, target): what updates the weights
            before = posterior.log_weight[..., None] + told.cumsum(-1) - told
            before = before - torch.logsumexp(before, dim=(0, 1))
            error = white * std
            by_kernel = gaussian_log_prob(error, torch.zeros_like(error), std.clamp(min=self.smallest))
            values.append(torch.logsumexp(before + by_kernel, dim=(0, 1)).sum())
        return torch.stack(values)

    def _posteriors(self, tasks: GPTaskBatch, every: bool = False) -> Iterator[tuple[GridPosterior, Tensor]]:
        """The posterior of each task and the outputs to score: of its targets, or of all its entries."""
        length, signal = (
            low + (high - low) * (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
            for (low, high), cells in zip((LENGTH_SCALES, SIGNAL_SCALES), self.cells, strict=True)
        )
        for x, y, known, wanted in zip(
            tasks.x.double()[..., 0], tasks.y.double()[..., 0], tasks.is_context, tasks.target.mask, strict=True
        ):
            points = x if every else x[wanted]

            def correlation(a: Tensor, b: Tensor) -> Float[Tensor, "length m n"]:
                return tasks.correlation((a[:, None] - b) / length[:, None, None])

            values, vectors = torch.linalg.eigh(correlation(x[known], x[known]))
            variance = signal.square()[:, None] * values.clamp(min=0)[:, None] + NOISE**2  # (ℓ, σ_f, context)
            turned = vectors.mT @ y[known]  # (ℓ, context)
            evidence = -0.5 * (turned.square()[:, None] / variance + variance.log()).sum(-1)
            cross = vectors.mT @ correlation(x[known], points)  # (ℓ, context, point)
            by_signal = signal.square()[:, None, None] * cross[:, None]  # (ℓ, σ_f, context, point)
            yield (
                GridPosterior(
                    log_weight=evidence - torch.logsumexp(evidence, dim=(0, 1)),
                    mean=((turned[:, None] / variance)[..., None, :] @ by_signal)[..., 0, :],
                    reduction=by_signal / variance.sqrt()[..., None],
                    prior=correlation(points, points) if not every else correlation(points[:0], points[:0]),
                    signal=signal,
                ),
                y if every else y[wanted],
            )


def _whitened(posterior: GridPosterior, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Under each kernel, the standard deviation of each target given those before it, and its error in units of it."""
    covariance = posterior.covariance()
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise**2 + JITTER)
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, (y - posterior.mean)[..., None], upper=False)[..., 0]
    return factor.diagonal(dim1=-2, dim2=-1), white
