"""Gaussian likelihood p(y | x, φ) with σ = 0.1 + 0.9 softplus(·) learned, or σ = 1 fixed (appendix C)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_prob(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(y | mean, std²), element by element.

    >>> gaussian_log_prob(torch.zeros(()), torch.zeros(()), torch.ones(())).item()
    -0.91893...
    """
    return -0.5 * ((y - mean) / std).square() - std.log() - HALF_LOG_TWO_PI


class GaussianLikelihood(nn.Module):
    """Turns the last layer of a network into the mean and standard deviation of every output."""

    def __init__(self, y_dim: int, variance: str = "learned", min_std: float = 0.1) -> None:
        super().__init__()
        if variance not in ("learned", "fixed"):
            raise InputError(f"unknown variance '{variance}'; expected learned or fixed")
        self.y_dim, self.variance, self.min_std = y_dim, variance, min_std

    @property
    def outputs(self) -> int:
        """How many numbers the network must give for each point."""
        return 2 * self.y_dim if self.variance == "learned" else self.y_dim

    def forward(
        self, outputs: Float[Tensor, "*batch outputs"]
    ) -> tuple[Float[Tensor, "*batch y"], Float[Tensor, "*batch y"]]:
        """(mean, std) of each output."""
        if self.variance == "fixed":
            return outputs, torch.ones_like(outputs)
        mean, raw = outputs.split(self.y_dim, dim=-1)
        return mean, self.min_std + (1 - self.min_std) * F.softplus(raw)
