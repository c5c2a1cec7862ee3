"""Representations normalised over tasks: what differs between tasks is what the rates have to depend on."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

MOMENTUM = 0.02  # of the running averages, after as many batches
RAMP = 1_000  # batches until values are those of the running averages
EPSILON = 1e-5
Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def moments_over_tasks(r: Float[Tensor, "task r"]) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Variance and mean."""
    variance, mean = torch.var_mean(r, 0, correction=0)
    return variance, mean


class TaskNorm(nn.Module):
    """Every feature of r with mean 0 and variance 1 across tasks, by running averages of both.

    The representations of two contexts differ by a few per cent of what they share. Rates computed from such an r
    move together, all down, before they can tell tasks apart, and there their sigmoids hold them: the posterior is
    blind to its context. Normalised, the difference is all that is left of r.

    A training batch is at first normalised by its own statistics and, over the first `RAMP` batches, more and more by
    the running averages, as later predictions are; the gradient stays that of the batch's own statistics, in which
    whatever all tasks have in common cancels (batch renormalisation, Ioffe 2017).

    >>> norm, r = TaskNorm(1), torch.tensor([[1.0], [3.0]])
    >>> norm(r)[0].flatten(), norm.eval()(r)[0].flatten()
    (tensor([-1.0000,  1.0000]), tensor([-1.0000,  1.0000]))
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.moments: Moments = moments_over_tasks  # another where the tasks of a step are shared by processes
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(
        self, context: Float[Tensor, "task r"], *others: Float[Tensor, "task r"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """All representations normalised; the running averages follow the context's."""
        if not self.training or len(context) < 2:  # one task has no variance
            scale = torch.rsqrt(self.variance + EPSILON)
            return tuple((r - self.mean) * scale for r in (context, *others))
        self._follow(*self.moments(context.detach()))
        return tuple(self._renormalised(r) for r in (context, *others))

    def _renormalised(self, r: Float[Tensor, "task r"]) -> Float[Tensor, "task r"]:
        variance, mean = self.moments(r)
        scale, running_scale = torch.rsqrt(variance + EPSILON), torch.rsqrt(self.variance + EPSILON)
        share = (self.batches / RAMP).clamp(max=1)  # of the running averages in the values
        stretch = (running_scale / scale).detach() ** share
        shift = ((mean - self.mean) * running_scale).detach() * share
        return torch.addcmul(shift, r - mean, scale * stretch)

    @torch.no_grad()
    def _follow(self, variance: Tensor, mean: Tensor) -> None:
        """Move the running averages, but not to what is not finite: the trainer skips such a step, they outlast it."""
        if not (mean.isfinite().all() and variance.isfinite().all()):
            return
        self.batches += 1
        share = (1 / self.batches).clamp(min=MOMENTUM).to(self.mean)  # the first batches count alike
        self.mean.lerp_(mean.to(self.mean), share)
        self.variance.lerp_(variance.to(self.variance), share)
