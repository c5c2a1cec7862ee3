"""The exact answer to the GP tasks: the kernel is unknown too, so its posterior is averaged over.

Length scale and signal scale lie on a grid over their uniform priors; each kernel is weighted by its marginal
likelihood, w ∝ p(y | x, ℓ, σ_f), and the prediction is the mixture Σ w p(y* | x*, x, y, ℓ, σ_f).
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import DOMAIN, LENGTH_SCALES, NOISE, SIGNAL_SCALES, rbf_kernel
from nvdp.errors import InputError
from nvdp.web.answers import Answer
from nvdp.web.limits import MAX_CONTEXT_EXACT, MAX_QUERY_EXACT
from nvdp.web.schemas import ModelEntry
from nvdp.web.units import check_reach

CELLS = (8, 6)  # of the grid over (ℓ, σ_f)
NUMBERS_AT_ONCE = 2**19  # of the covariances of functions that are drawn together: bounds memory
JITTER = 1e-6  # of a function's covariance, as a share of its variance: a smooth kernel is singular in float64


def _middles(bounds: tuple[float, float], cells: int) -> Float[Tensor, " cell"]:
    low, high = bounds
    return low + (high - low) * (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


class ExactGP:
    """All kernels of the grid at once, as a batch."""

    entry = ModelEntry(
        name="exact-gp",
        label="Exact GP",
        page="functions",
        model="exact-gp",
        task="gp",
        x_dim=1,
        y_dim=1,
        x_range=DOMAIN,
        most_context=MAX_CONTEXT_EXACT,
        has_rates=False,
    )

    def __init__(self) -> None:
        grid = torch.cartesian_prod(_middles(LENGTH_SCALES, CELLS[0]), _middles(SIGNAL_SCALES, CELLS[1]))
        self.length_scale, self.signal_scale = grid.unbind(-1)

    def answer(
        self,
        x: Float[np.ndarray, "context 1"],
        y: Float[np.ndarray, "context 1"],
        query: Float[np.ndarray, "query 1"],
        samples: int,
        seed: int,
    ) -> Answer:
        """The mixture's mean and deviation (of an observation), and functions drawn from it.

        >>> answer = ExactGP().answer(np.zeros((1, 1)), np.ones((1, 1)), np.array([[0.0], [2.0]]), 0, 0)
        >>> answer.mean.round(1).tolist(), bool(answer.std[0] < 0.05), bool(answer.std[1] > 0.5)
        ([[1.0], [0.0]], True, True)
        """
        if len(query) > MAX_QUERY_EXACT:
            raise InputError(f"query holds {len(query)} points; 'exact-gp' takes at most {MAX_QUERY_EXACT}")
        for name, values in (("x", x), ("y", y), ("query", query)):
            check_reach(name, values)
        kernels = len(self.length_scale)
        at, given = (torch.from_numpy(points).expand(kernels, -1, -1) for points in (query, x))
        whitened, whitened_y, log_weight = self._condition(given, torch.from_numpy(y), at)
        weight = torch.softmax(log_weight, 0)[:, None]  # (kernel, 1)
        means = (whitened * whitened_y).sum(-2)  # (kernel, query)
        variances = self.signal_scale[:, None] ** 2 - whitened.square().sum(-2)
        mean = (weight * means).sum(0)
        variance = (weight * (variances.clamp(min=0) + (means - mean).square())).sum(0) + NOISE**2
        functions = self._functions(at, whitened, means, weight[:, 0], samples, seed)
        return Answer(mean[:, None].numpy(), variance.sqrt()[:, None].numpy(), functions[..., None].numpy(), None)

    def _condition(self, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L⁻¹ k(x, x*), L⁻¹ y and log p(y | x) of every kernel, with L Lᵀ = k(x, x) + noise."""
        covariance = rbf_kernel(x, x, self.length_scale, self.signal_scale)
        covariance.diagonal(dim1=-2, dim2=-1).add_(NOISE**2)
        factor = torch.linalg.cholesky(covariance)
        cross = rbf_kernel(x, at, self.length_scale, self.signal_scale)
        whitened = torch.linalg.solve_triangular(factor, cross, upper=False)
        whitened_y = torch.linalg.solve_triangular(factor, y.expand(len(x), -1, -1), upper=False)
        log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        quadratic = whitened_y.square().sum((-2, -1))
        log_weight = -0.5 * (quadratic + x.shape[1] * math.log(2 * math.pi)) - log_determinant
        return whitened, whitened_y, log_weight

    def _functions(
        self, at: Tensor, whitened: Tensor, means: Tensor, weight: Tensor, samples: int, seed: int
    ) -> Float[Tensor, "sample query"]:
        """A kernel by its weight, then a function of its posterior, for each sample."""
        generator = torch.Generator().manual_seed(seed)
        # A fixed share of the way through the weights, and fixed noise: functions move smoothly with the context.
        share = torch.rand(samples, generator=generator, dtype=torch.float64)
        noise = torch.randn(samples, at.shape[1], generator=generator, dtype=torch.float64).mT
        chosen = torch.searchsorted(weight.cumsum(0), share).clamp(max=len(weight) - 1)
        functions = means[chosen]
        for kernels in chosen.unique().split(max(1, NUMBERS_AT_ONCE // at.shape[1] ** 2)):
            scales = self.length_scale[kernels], self.signal_scale[kernels]
            covariance = rbf_kernel(at[kernels], at[kernels], *scales)
            covariance.baddbmm_(whitened[kernels].mT, whitened[kernels], alpha=-1)
            covariance.diagonal(dim1=-2, dim2=-1).add_(JITTER * scales[1][:, None] ** 2)
            drawn = torch.linalg.cholesky(covariance) @ noise  # (kernel, query, sample)
            for place, kernel in enumerate(kernels):
                mine = chosen == kernel
                functions[mine] += drawn[place][:, mine].mT
        return functions
