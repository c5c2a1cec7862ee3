"""Normalisation of representations over tasks, which keeps the rates dependent on the context."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

MOMENTUM = 0.02  # smallest momentum of the running averages; the first 1/MOMENTUM batches count alike
RAMP = 1_000  # batches over which normalisation moves from the batch's statistics to the running averages
EPSILON = 1e-5
Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def moments_over_tasks(r: Float[Tensor, "task r"]) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Variance and mean."""
    variance, mean = torch.var_mean(r, 0, correction=0)
    return variance, mean


class TaskNorm(nn.Module):
    """Every feature of r with mean 0 and variance 1 across tasks, by running averages of both.

    Representations of two contexts differ by only a few per cent. Rates computed from them all fall together before
    they depend on the task, and then their sigmoids saturate: the posterior collapses. Normalisation leaves only the
    differences between tasks.

    A training batch is normalised by its own statistics at first and, over the first `RAMP` batches, more and more by
    the running averages, which predictions use. The gradient stays that of the batch's own statistics, so that
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
        self.moments: Moments = moments_over_tasks  # replaced where several processes share the tasks of a step
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
        """Update the running averages, unless a value is not finite: training skips such a step."""
        if not (mean.isfinite().all() and variance.isfinite().all()):
            return
        self.batches += 1
        share = (1 / self.batches).clamp(min=MOMENTUM).to(self.mean)  # the first batches count alike
        self.mean.lerp_(mean.to(self.mean), share)
        self.variance.lerp_(variance.to(self.variance), share)
