"""A prediction: at every point a mixture of Gaussians, one component for each sampled function."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtr, ndtri

from nvdp.errors import InputError
from nvdp.nn.likelihoods import gaussian_log_prob
from nvdp.tasks import as_tensor

BISECTIONS = 40


@dataclass(frozen=True)
class Prediction:
    """Means and standard deviations of every sampled function; one component if mean parameters were used.

    >>> p = Prediction(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    >>> p.mean.shape, p.std.shape, round(p.quantile(0.95)[0].item(), 3)
    (torch.Size([3, 1]), torch.Size([3, 1]), 1.645)
    """

    functions: Float[Tensor, "sample *task point y"]
    stds: Float[Tensor, "sample *task point y"]

    @property
    def mean(self) -> Float[Tensor, "*task point y"]:
        """Predictive mean."""
        return _copy(self.functions[0]) if len(self.functions) == 1 else self.functions.mean(0)

    @property
    def std(self) -> Float[Tensor, "*task point y"]:
        """Predictive standard deviation: noise and disagreement of the functions together."""
        if len(self.functions) == 1:
            return _copy(self.stds[0])
        return (self.stds.square().mean(0) + self.functions.var(0, correction=0)).sqrt()

    @property
    def spread(self) -> Float[Tensor, "*task point y"]:
        """Standard deviation across the sampled functions alone; zero if the posterior has collapsed."""
        return self.functions.std(0, correction=0)

    def log_prob(self, y: Any) -> Float[Tensor, "sample *task point y"]:
        """log p(y | x, φ) under each sampled function, for a y at every point."""
        return gaussian_log_prob(self._values(y), self.functions, self.stds)

    def cdf(self, y: Any) -> Float[Tensor, "*task point y"]:
        """P(Y ≤ y) under the mixture, for a y at every point."""
        return ndtr((self._values(y) - self.functions) / self.stds).mean(0)

    def _values(self, y: Any) -> Float[Tensor, "*task point y"]:
        y, expected = as_tensor(y, "y").to(self.functions), self.functions.shape[1:]
        if y.dim() == 1 and expected[-1] == 1:
            y = y[:, None]
        if y.shape != expected:
            raise InputError(f"y has shape {tuple(y.shape)}; the prediction has {tuple(expected)}")
        return y

    def quantile(self, level: float) -> Float[Tensor, "*task point y"]:
        """The value below which `level` of the predictive mass lies."""
        if not 0 < level < 1:
            raise InputError(f"the quantile's level is {level}; expected a number between 0 and 1")
        normal = self.functions + self.stds * ndtri(torch.tensor(level, dtype=self.stds.dtype))
        if len(normal) == 1:
            return normal[0]
        low, high = normal.amin(0), normal.amax(0)  # the mixture's quantile lies between its components'
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def sample(self, generator: torch.Generator | int = 0) -> Float[Tensor, "sample *task point y"]:
        """One noisy observation of each sampled function at every point, drawn from a generator or a seed."""
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator(self.stds.device).manual_seed(generator)
        noise = torch.randn(self.functions.shape, generator=generator, dtype=self.stds.dtype, device=self.stds.device)
        return torch.addcmul(self.functions, self.stds, noise)


def _copy(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.contiguous_format)
