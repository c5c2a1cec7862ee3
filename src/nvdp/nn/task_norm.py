"""Representations normalised over tasks: what differs between tasks is what the rates have to depend on."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

MOMENTUM = 0.02  # of the running averages, after as many batches
EPSILON = 1e-5


class TaskNorm(nn.Module):
    """Every feature of r with mean 0 and variance 1 across the tasks of a training batch, by running averages later.

    The representations of two contexts differ by a few per cent of what they share. Rates computed from such an r
    move together, all down, before they can tell tasks apart, and there their sigmoids hold them: the posterior is
    blind to its context. Normalised, the difference is all that is left of r.

    >>> norm, r = TaskNorm(1), torch.tensor([[1.0], [3.0]])
    >>> norm(r)[0].flatten(), norm.eval()(r)[0].flatten()
    (tensor([-1.0000,  1.0000]), tensor([-1.0000,  1.0000]))
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("batches", torch.zeros(()))

    def forward(
        self, context: Float[Tensor, "task r"], *others: Float[Tensor, "task r"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """All representations under the context's statistics: equal sets stay equal, and a task is its context."""
        mean, variance = self.mean, self.variance
        if self.training and len(context) > 1:  # one task has no variance
            variance, mean = torch.var_mean(context, 0, correction=0)
            self._follow(mean.detach(), variance.detach())
        scale = torch.rsqrt(variance + EPSILON)
        return tuple((r - mean) * scale for r in (context, *others))

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        self.batches += 1
        share = (1 / self.batches).clamp(min=MOMENTUM)  # the first batches count alike, not as strays from zero
        self.mean.lerp_(mean.to(self.mean), share)
        self.variance.lerp_(variance.to(self.variance), share)
