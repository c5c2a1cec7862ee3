"""Likelihoods p(y | x, φ): Gaussian, σ = 0.1 + 0.9 softplus(·) learned or σ = 1 fixed (appendix C), and categorical.

Beyond the paper the noise may be a mixture of several Gaussians, for heavy tails and skewed or two-valued outputs.
Both have ``log_prob(outputs, y)``: one number for each point, from the outputs of a network.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
SHARED_START = -3.0  # initial value before softplus: a shared σ starts just above its floor


def gaussian_log_prob(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(y | mean, std²), element by element.

    >>> gaussian_log_prob(torch.zeros(()), torch.zeros(()), torch.ones(())).item()
    -0.91893...
    """
    return -0.5 * ((y - mean) / std).square() - std.log() - HALF_LOG_TWO_PI


class GaussianLikelihood(nn.Module):
    """Turns the last layer of a network into the mean and standard deviation of every output.

    Args:
        y_dim: outputs of a point.
        variance: "learned", or "fixed" for σ = 1.
        min_std: smallest learned σ.
        shared: a learned σ is the same at all points of all tasks, and the network gives means alone.
        components: Gaussians of the noise, equally probable. Each has an offset from the mean and a σ of its own; the
            offsets add up to 0.
    """

    def __init__(
        self,
        y_dim: int,
        variance: str = "learned",
        min_std: float = 0.1,
        shared: bool = False,
        components: int = 1,
    ) -> None:
        super().__init__()
        if variance not in ("learned", "fixed"):
            raise InputError(f"unknown variance '{variance}'; expected learned or fixed")
        if components > 1 and (shared or variance == "fixed"):
            raise InputError(f"{components} components of the noise need a σ that the network gives")
        self.y_dim, self.variance, self.min_std, self.components = y_dim, variance, min_std, components
        self.raw_std = nn.Parameter(torch.full((y_dim,), SHARED_START)) if shared and variance == "learned" else None

    @property
    def values(self) -> int:
        """Scalar outputs of one point."""
        return self.y_dim

    @property
    def outputs(self) -> int:
        """Width of the network's output: means, offsets of the components if there are several, raw σ."""
        if self.components > 1:
            return (1 + 2 * self.components) * self.y_dim
        return 2 * self.y_dim if self.variance == "learned" and self.raw_std is None else self.y_dim

    def noise(self, mean: Float[Tensor, "*batch y"]) -> Float[Tensor, "*batch y"]:
        """σ where it does not depend on the point."""
        if self.raw_std is None:
            return torch.ones_like(mean)
        return self._positive(self.raw_std).expand_as(mean)

    def _positive(self, raw: Tensor) -> Tensor:
        return self.min_std + (1 - self.min_std) * F.softplus(raw)

    def forward(
        self, outputs: Float[Tensor, "*batch outputs"]
    ) -> tuple[Float[Tensor, "*batch y"], Float[Tensor, "*batch y"]]:
        """(mean, std) of each output."""
        if self.outputs == self.y_dim:
            return outputs, self.noise(outputs)
        if self.components > 1:
            means, stds = self.mixture(outputs)
            variance = stds.square().mean(0) + means.var(0, correction=0)
            return outputs[..., : self.y_dim], variance.sqrt()
        mean, raw = outputs.split(self.y_dim, dim=-1)
        return mean, self._positive(raw)

    def mixture(
        self, outputs: Float[Tensor, "*batch outputs"]
    ) -> tuple[Float[Tensor, "component *batch y"], Float[Tensor, "component *batch y"]]:
        """(means, stds) of the components of each output, which are equally probable.

        >>> means, stds = GaussianLikelihood(1, components=3).mixture(torch.randn(5, 7))
        >>> means.shape, stds.shape
        (torch.Size([3, 5, 1]), torch.Size([3, 5, 1]))
        """
        if self.components == 1:
            mean, std = self(outputs)
            return mean[None], std[None]
        mean, rest = outputs[..., : self.y_dim], outputs[..., self.y_dim :]
        offsets, raw = rest.unflatten(-1, (2, self.components, self.y_dim)).movedim((-3, -2), (0, 1))
        return mean + offsets - offsets.mean(0), self._positive(raw)

    def log_prob(self, outputs: Float[Tensor, "*batch outputs"], y: Float[Tensor, "*batch y"]) -> Tensor:
        """log p(y | x, φ) of every point, summed over its values."""
        means, stds = self.mixture(outputs)
        by_component = gaussian_log_prob(y, means, stds)
        if self.components == 1:
            return by_component[0].sum(-1)
        return (torch.logsumexp(by_component, 0) - math.log(self.components)).sum(-1)


class CategoricalLikelihood(nn.Module):
    """Turns one logit for each class into the logarithms of their probabilities; y is one-hot.

    >>> CategoricalLikelihood().log_prob(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])).item()
    -0.69314...
    """

    values = components = 1  # a point has one label

    def forward(self, logits: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch class"]:
        """log p of every class."""
        return F.log_softmax(logits, dim=-1)

    def log_prob(
        self, outputs: Float[Tensor, "*batch class"], y: Float[Tensor, "*batch class"]
    ) -> Float[Tensor, "*batch"]:
        """log p of every point's own class."""
        return (self(outputs) * y).sum(-1)


Likelihood = GaussianLikelihood | CategoricalLikelihood
