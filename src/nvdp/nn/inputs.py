"""What networks see of a value: moved and scaled, so that any range meets the same initialisation, and its waves."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class InputScale:
    """v ↦ (v − centre) · scale, followed by sines and cosines of its first `waves` multiples of π/4, if any.

    A pixel's coordinates lie in [0, 1]²: all positive and close together, they leave a network little to tell points
    apart by. They are moved to [−2, 2]², as the inputs of the 1D tasks are. A function that changes quickly takes a
    network of ReLUs long to learn; waves are such functions from the start.

    >>> InputScale(0.5, 4.0)(torch.tensor([0.0, 1.0]))
    tensor([-2.,  2.])
    >>> InputScale(waves=2)(torch.tensor([[0.0]]))
    tensor([[0., 0., 0., 1., 1.]])
    """

    centre: float = 0.0
    scale: float = 1.0
    waves: int = 0

    def width(self, values: int) -> int:
        """How many numbers networks see of so many."""
        return values * (1 + 2 * self.waves)

    def __call__(self, values: Float[Tensor, "*batch value"]) -> Float[Tensor, "*batch seen"]:
        """The values as networks see them, in the last dimension."""
        if self.centre != 0 or self.scale != 1:
            values = (values - self.centre) * self.scale
        if not self.waves:
            return values
        frequencies = values.new_tensor([math.pi / 4 * k for k in range(1, self.waves + 1)])
        angles = (values[..., None] * frequencies).flatten(-2)
        return torch.cat([values, angles.sin(), angles.cos()], dim=-1)


AS_GIVEN = InputScale()
