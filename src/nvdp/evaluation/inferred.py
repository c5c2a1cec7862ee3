"""The GP that must infer its kernel: what a model of GP functions can attain.

It knows the family of kernels, as a trained model does, but not a task's ℓ and σ_f. These lie on a grid over their
uniform priors, each weighted by p(y of the context | ℓ, σ_f). Everything is float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.data.gp import LENGTH_SCALES, NOISE, SIGNAL_SCALES, GPTaskBatch, rbf
from nvdp.nn.likelihoods import HALF_LOG_TWO_PI, gaussian_log_prob
from nvdp.posteriors.prediction import Prediction

CELLS = (16, 8)  # of the grid over (ℓ, σ_f); twice as many change scores by less than 0.003
JITTER = 1e-8
FUNCTION_JITTER = 1e-6  # of a function's covariance, as a share of its variance: a smooth kernel is singular in float64
NUMBERS_AT_ONCE = 2**19  # in covariances of functions that are drawn together: bounds memory


@dataclass(frozen=True)
class GridPosterior:
    """What each kernel of the grid says of some points of one task, given its context; the noise is left out."""

    log_weight: Float[Tensor, "length signal"]
    mean: Float[Tensor, "length signal point"]
    variance: Float[Tensor, "length signal point"]  # of the function
    # For points together; of no points where none is asked for:
    reduction: Float[Tensor, "length signal context together"]  # its product over the context is what was learned
    prior: Float[Tensor, "length together together"]
    signal: Float[Tensor, " signal"]

    def covariance(self) -> Float[Tensor, "length signal point point"]:
        """Of the function at all points together."""
        prior = self.signal.square()[:, None, None] * self.prior[:, None]
        return prior - self.reduction.mT @ self.reduction

    def functions(self, samples: int, seed: int) -> Float[Tensor, "sample point"]:
        """For each sample a kernel by its weight, then a function of its posterior.

        The quantile among the weights and the noise are fixed, so functions move smoothly with the context.
        """
        generator = torch.Generator().manual_seed(seed)
        share = torch.rand(samples, generator=generator, dtype=torch.float64)
        points, by_signal = self.mean.shape[-1], len(self.signal)
        noise = torch.randn(samples, points, generator=generator, dtype=torch.float64).mT
        weight = self.log_weight.exp().flatten()
        chosen = torch.searchsorted(weight.cumsum(0), share).clamp(max=len(weight) - 1)
        functions = self.mean.flatten(0, 1)[chosen]
        for kernels in chosen.unique().split(max(1, NUMBERS_AT_ONCE // points**2)):
            length, signal = kernels // by_signal, kernels % by_signal
            variance, learned = self.signal[signal].square(), self.reduction[length, signal]
            covariance = variance[:, None, None] * self.prior[length]
            covariance.baddbmm_(learned.mT, learned, alpha=-1)
            covariance.diagonal(dim1=-2, dim2=-1).add_(FUNCTION_JITTER * variance[:, None])
            drawn = torch.linalg.cholesky(covariance) @ noise  # (kernel, point, sample)
            for place, kernel in enumerate(kernels):
                mine = chosen == kernel
                functions[mine] += drawn[place][:, mine].mT
        return functions


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
            std = (posterior.variance + NOISE**2).sqrt().clamp(min=self.smallest)
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

    def given(
        self,
        x: Float[Tensor, " context"],
        y: Float[Tensor, " context"],
        points: Float[Tensor, " point"],
        together: bool = True,
        correlation: Callable[[Tensor], Tensor] = rbf,
    ) -> GridPosterior:
        """What each kernel says of some points of one task, given its context; all are float64.

        Args:
            x: Inputs of the context.
            y: Its outputs.
            points: Inputs to predict at.
            together: Whether covariances between them will be asked for.
            correlation: ρ of the kernel.

        Returns:
            The posterior.
        """
        length, signal = (
            low + (high - low) * (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
            for (low, high), cells in zip((LENGTH_SCALES, SIGNAL_SCALES), self.cells, strict=True)
        )

        def between(a: Tensor, b: Tensor) -> Float[Tensor, "length m n"]:
            return correlation((a[:, None] - b) / length[:, None, None])

        values, vectors = torch.linalg.eigh(between(x, x))
        variance = signal.square()[:, None] * values.clamp(min=0)[:, None] + NOISE**2  # (ℓ, σ_f, context)
        turned = vectors.mT @ y  # (ℓ, context)
        evidence = -0.5 * (turned.square()[:, None] / variance + variance.log()).sum(-1)
        cross = vectors.mT @ between(x, points)  # (ℓ, context, point)
        square = signal.square()[:, None]  # (σ_f, 1)
        learned = square.square() * (variance.reciprocal() @ cross.square())  # (ℓ, σ_f, point)
        asked = points if together else points[:0]
        return GridPosterior(
            log_weight=evidence - torch.logsumexp(evidence, dim=(0, 1)),
            mean=square * ((turned[:, None] / variance) @ cross),
            variance=(square - learned).clamp(min=0),
            reduction=square[:, None] * cross[:, None, :, : len(asked)] / variance.sqrt()[..., None],
            prior=between(asked, asked),
            signal=signal,
        )

    def _posteriors(self, tasks: GPTaskBatch, every: bool = False) -> Iterator[tuple[GridPosterior, Tensor]]:
        """The posterior of each task and the outputs to score: of its targets, or of all its entries."""
        for x, y, known, wanted in zip(
            tasks.x.double()[..., 0], tasks.y.double()[..., 0], tasks.is_context, tasks.target.mask, strict=True
        ):
            scored = torch.ones_like(wanted) if every else wanted
            yield self.given(x[known], y[known], x[scored], not every, tasks.correlation), y[scored]

    def adapt(self, x: Float[np.ndarray, "context 1"], y: Float[np.ndarray, "context 1"]) -> "InferredPosterior":
        """The posterior of one task given a context, with the methods that posteriors of models have.

        >>> at = np.array([[0.0], [2.0]])
        >>> prediction = InferredGP().adapt(np.zeros((1, 1)), np.ones((1, 1))).predict(at)
        >>> prediction.mean.numpy().round(1).tolist(), bool(prediction.std[0] < 0.05), bool(prediction.std[1] > 0.5)
        ([[1.0], [0.0]], True, True)
        """
        return InferredPosterior(self, torch.from_numpy(x)[:, 0].double(), torch.from_numpy(y)[:, 0].double())


@dataclass(frozen=True)
class InferredPosterior:
    """The posterior over functions of one task; answers `predict` and `suggest` as posteriors of models do."""

    gp: InferredGP
    x: Float[Tensor, " context"]
    y: Float[Tensor, " context"]

    def predict(self, x: Float[np.ndarray, "query 1"], samples: int = 0, generator: int = 0) -> Prediction:
        """Mean and standard deviation of an observation at x, or functions drawn from the mixture.

        Args:
            x: Where to predict.
            samples: 0 for the moments of the mixture; otherwise the number of functions.
            generator: The seed of the functions.

        Returns:
            A prediction of one component, or of one for each function.
        """
        grid = self.gp.given(self.x, self.y, torch.from_numpy(x)[:, 0].double(), together=samples > 0)
        if samples:
            functions = grid.functions(samples, generator)[..., None]
            return Prediction(functions, torch.full_like(functions, NOISE))
        weight = grid.log_weight.exp()[..., None]
        mean = (weight * grid.mean).sum((0, 1))
        variance = (weight * (grid.variance + (grid.mean - mean).square())).sum((0, 1)) + NOISE**2
        return Prediction(mean[None, :, None], variance.sqrt()[None, :, None])

    def suggest(self, candidates: Float[np.ndarray, "query 1"], seed: int = 0) -> Int[Tensor, " 1"]:
        """The candidate at which functions differ most. That is exact: the seed changes nothing."""
        return self.predict(candidates).std[:, 0].argmax()[None]  # the noise is the same everywhere


def _whitened(posterior: GridPosterior, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Under each kernel, the standard deviation of each target given those before it, and its error in units of it."""
    covariance = posterior.covariance()
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise**2 + JITTER)
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, (y - posterior.mean)[..., None], upper=False)[..., 0]
    return factor.diagonal(dim1=-2, dim2=-1), white
