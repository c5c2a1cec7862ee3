"""What networks see of a value: moved and scaled, so that coordinates of any range meet the same initialisation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class InputScale:
    """v ↦ (v − centre) · scale.

    A pixel's coordinates lie in [0, 1]²: all positive and close together, they leave a network little to tell points
    apart by. They are moved to [−2, 2]², as the inputs of the 1D tasks are.

    >>> import torch
    >>> InputScale(0.5, 4.0)(torch.tensor([0.0, 1.0]))
    tensor([-2.,  2.])
    """

    centre: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        """The values as networks see them."""
        if self.centre == 0 and self.scale == 1:
            return values
        return (values - self.centre) * self.scale


AS_GIVEN = InputScale()
