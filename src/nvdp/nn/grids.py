"""Work on arrays of tasks × K × D numbers, one for each weight and task: most of a step beside its products.

:data:`PLAIN` does it by PyTorch's own calls, in place where safe; :mod:`nvdp.nn.compiled_grids` does the same in one
pass over each array, where there is a C++ compiler. Formulas as in :mod:`nvdp.nn.fused`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

KL_FACTORS = (0.5, 1.0)  # that are missing of the KL's gradients: cheaper on what is made from the grids than on these


@dataclass(frozen=True)
class Grids:
    """The three pieces of work, for P = ε + s u bᵀ with u (task × K), b (task × D) and ε the floor."""

    weights: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    """(θ, −s u, b, ε) ↦ M = (1−P)θ and V = P(1−P)θ²."""
    gradients: Callable[[Tensor, Tensor, Tensor, float, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(θ, −s u, b, ε, M, ∂M, H) ↦ ∂θ and s ∂P, with H = (A²)ᵀh = 2 ∂V; M, ∂M and H may be overwritten."""
    kl: Callable[[Tensor, Tensor, float, bool], tuple[Tensor, ...]]
    """(u then û, b then b̂, ε, with gradients) ↦ 2 KL of each task and, if wanted, 2 ∂KL/∂P then ∂KL/∂P̂."""


def rate_grid(u: Tensor, b: Tensor, floor: float) -> Tensor:
    """P = ε + s u bᵀ; not by addcmul, which does not vectorise with two broadcast arguments."""
    return torch.mul((u * (1 - 2 * floor))[:, :, None], b[:, None, :]).add_(floor)


def plain_weights(theta: Tensor, minus_su: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """M and V = M (θ − M)."""
    mean = torch.mul(minus_su[:, :, None], b[:, None, :]).add_(1 - floor).mul_(theta)
    return mean, torch.sub(theta, mean).mul_(mean)


def plain_gradients(
    theta: Tensor, minus_su: Tensor, b: Tensor, floor: float, mean: Tensor, mean_gradient: Tensor, h_sums: Tensor
) -> tuple[Tensor, Tensor]:
    """∂θ and s ∂P."""
    dropped = torch.sub(theta, mean, out=mean)
    w, rates_gradient = rate_gradients(dropped, theta, mean_gradient, h_sums, 1 - 2 * floor)
    keep = torch.mul(minus_su[:, :, None], b[:, None, :], out=dropped).add_(1 - floor)
    return w.mul_(keep).sum(0), rates_gradient


def rate_gradients(
    dropped: Tensor, theta: Tensor, mean_gradient: Tensor, h_sums: Tensor, span: float
) -> tuple[Tensor, Tensor]:
    """W = ∂M + X H, of which ∂θ = Σ_tasks K W, and s ∂P = −s θ (W − ½ θ H); ∂M and H are overwritten."""
    w = mean_gradient.addcmul_(dropped, h_sums)
    return w, torch.addcmul(w, h_sums, theta, value=-0.5, out=h_sums).mul_(-span * theta)


def plain_kl(u: Tensor, b: Tensor, floor: float, with_gradients: bool) -> tuple[Tensor, ...]:
    """2 KL summed over the grid and, if wanted, 2 ∂KL/∂P and ∂KL/∂P̂ on it (half of the other, by one call).

    With d = P − P̂, v = P(1−P) and e = d/v̂:
    2 KL = e (1 − 2P̂) − log(v/v̂),  2 ∂KL/∂P = e (1 − P − P̂ + 2PP̂)/v,  2 ∂KL/∂P̂ = 2e − e/v̂.
    All are exactly 0 for P = P̂. Gradients lose no digits near it; the sum of first-order terms leaves the value an
    error of some 1e-7 a weight.
    """
    tasks, rates = len(u) // 2, rate_grid(u, b, floor)
    p, p_hat = rates[:tasks], rates[tasks:]
    v, v_hat = torch.addcmul(rates, rates, rates, value=-1).chunk(2)
    e = torch.sub(p, p_hat).div_(v_hat)
    ratio = torch.div(v, v_hat)
    quadratic = e.sum((1, 2)).sub_(torch.linalg.vecdot(e.view(tasks, -1), p_hat.view(tasks, -1)), alpha=2)
    twice_kl = quadratic.sub_(_sum_of_logs(ratio.view(tasks, -1), floor))
    if not with_gradients:
        return (twice_kl,)
    either = torch.add(p, p_hat, out=ratio).addcmul_(p, p_hat, value=-2)  # P + P̂ − 2PP̂
    torch.addcmul(e, e, either, value=-1, out=p).div_(v)
    torch.addcdiv(e, e, v_hat, value=-0.5, out=p_hat)
    return twice_kl, rates


def _sum_of_logs(ratios: Float[Tensor, "task number"], floor: float) -> Float[Tensor, " task"]:
    """Σ log over each row, as the log of products of sixteen ratios, or of fewer where these might overflow.

    A ratio of variances is at most ¼ / ε(1−ε): 25 for the paper's floor of 0.01.
    """
    most = 0.25 / (floor * (1 - floor))
    for _ in range(4):
        most *= most
        half, odd = divmod(ratios.shape[1], 2)
        if odd or most > 1e30:
            break
        ratios = ratios[:, :half] * ratios[:, half:]
    return ratios.log().sum(1)


PLAIN = Grids(plain_weights, plain_gradients, plain_kl)
