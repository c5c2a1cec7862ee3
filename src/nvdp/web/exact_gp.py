"""The exact posterior of the GP tasks. The kernel is unknown too, so the prediction averages over kernels.

Length scale and signal scale lie on a grid over their uniform priors. Each kernel is weighted by its marginal
likelihood, w ∝ p(y | x, ℓ, σ_f), and the prediction is the mixture Σ w p(y* | x*, x, y, ℓ, σ_f).
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.data.gp import LENGTH_SCALES, NOISE, SIGNAL_SCALES, rbf_kernel
from nvdp.posteriors.prediction import Prediction

CELLS = (8, 6)  # of the grid over (ℓ, σ_f)
NUMBERS_AT_ONCE = 2**19  # in covariances of functions that are drawn together: bounds memory
JITTER = 1e-6  # of a function's covariance, as a share of its variance: a smooth kernel is singular in float64


def _middles(bounds: tuple[float, float], cells: int) -> Float[Tensor, " cell"]:
    low, high = bounds
    return low + (high - low) * (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


class ExactGP:
    """Gaussian processes with all kernels of the grid, as a batch."""

    def __init__(self) -> None:
        grid = torch.cartesian_prod(_middles(LENGTH_SCALES, CELLS[0]), _middles(SIGNAL_SCALES, CELLS[1]))
        self.length_scale, self.signal_scale = grid.unbind(-1)

    def adapt(self, x: Float[np.ndarray, "context 1"], y: Float[np.ndarray, "context 1"]) -> "ExactPosterior":
        """The posterior given a context.

        >>> prediction = ExactGP().adapt(np.zeros((1, 1)), np.ones((1, 1))).predict(np.array([[0.0], [2.0]]))
        >>> prediction.mean.numpy().round(1).tolist(), bool(prediction.std[0] < 0.05), bool(prediction.std[1] > 0.5)
        ([[1.0], [0.0]], True, True)
        """
        return ExactPosterior(self, torch.from_numpy(x), torch.from_numpy(y))

    def kernel(self, x: Tensor, other: Tensor) -> Float[Tensor, "kernel _ _"]:
        """The covariances of all kernels between two sets of points."""
        count = len(self.length_scale)
        return rbf_kernel(x.expand(count, -1, -1), other.expand(count, -1, -1), self.length_scale, self.signal_scale)


class ExactPosterior:
    """The posterior over functions; answers `predict` and `suggest` as posteriors of models do."""

    def __init__(self, prior: ExactGP, x: Float[Tensor, "context 1"], y: Float[Tensor, "context 1"]) -> None:
        self.prior, self.x = prior, x
        covariance = prior.kernel(x, x)
        covariance.diagonal(dim1=-2, dim2=-1).add_(NOISE**2)
        self.factor = torch.linalg.cholesky(covariance)  # L of k(x, x) + noise = L Lᵀ
        self.whitened_y = torch.linalg.solve_triangular(self.factor, y.expand(len(covariance), -1, -1), upper=False)
        log_determinant = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        quadratic = self.whitened_y.square().sum((-2, -1))
        # log p(y | x) of every kernel.
        self.log_evidence = -0.5 * (quadratic + len(x) * math.log(2 * math.pi)) - log_determinant
        self.weight = torch.softmax(self.log_evidence, 0)

    def predict(self, x: Float[np.ndarray, "query 1"], samples: int = 0, generator: int = 0) -> Prediction:
        """Mean and standard deviation of an observation at x, or functions drawn from the mixture.

        Args:
            x: Where to predict.
            samples: 0 for the moments of the mixture; otherwise the number of functions.
            generator: The seed of the functions.

        Returns:
            A prediction of one component, or of one for each function.
        """
        at = torch.from_numpy(x)
        cross = self.prior.kernel(self.x, at)
        whitened = torch.linalg.solve_triangular(self.factor, cross, upper=False)  # L⁻¹ k(x, x*)
        means = (whitened * self.whitened_y).sum(-2)  # (kernel, query)
        if samples:
            functions = self._functions(at, whitened, means, samples, generator)[..., None]
            return Prediction(functions, torch.full_like(functions, NOISE))
        variances = self.prior.signal_scale[:, None] ** 2 - whitened.square().sum(-2)
        weight = self.weight[:, None]
        mean = (weight * means).sum(0)
        variance = (weight * (variances.clamp(min=0) + (means - mean).square())).sum(0) + NOISE**2
        return Prediction(mean[None, :, None], variance.sqrt()[None, :, None])

    def suggest(self, candidates: Float[np.ndarray, "query 1"], seed: int = 0) -> Int[Tensor, " 1"]:
        """The candidate at which functions differ most. That is exact: the seed changes nothing."""
        return self.predict(candidates).std[:, 0].argmax()[None]  # the noise is the same everywhere

    def _functions(
        self, at: Tensor, whitened: Tensor, means: Tensor, samples: int, seed: int
    ) -> Float[Tensor, "sample query"]:
        """For each sample a kernel by its weight, then a function of its posterior."""
        generator, prior = torch.Generator().manual_seed(seed), self.prior
        # The quantile among the weights and the noise are fixed, so functions move smoothly with the context.
        share = torch.rand(samples, generator=generator, dtype=torch.float64)
        noise = torch.randn(samples, len(at), generator=generator, dtype=torch.float64).mT
        chosen = torch.searchsorted(self.weight.cumsum(0), share).clamp(max=len(self.weight) - 1)
        functions = means[chosen]
        for kernels in chosen.unique().split(max(1, NUMBERS_AT_ONCE // len(at) ** 2)):
            scales = prior.length_scale[kernels], prior.signal_scale[kernels]
            points = at.expand(len(kernels), -1, -1)
            covariance = rbf_kernel(points, points, *scales)
            covariance.baddbmm_(whitened[kernels].mT, whitened[kernels], alpha=-1)
            covariance.diagonal(dim1=-2, dim2=-1).add_(JITTER * scales[1][:, None] ** 2)
            drawn = torch.linalg.cholesky(covariance) @ noise  # (kernel, query, sample)
            for place, kernel in enumerate(kernels):
                mine = chosen == kernel
                functions[mine] += drawn[place][:, mine].mT
        return functions
