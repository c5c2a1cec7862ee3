"""Work on arrays of tasks × K × D numbers, one for each weight and task: most of a step beside its products.

:data:`PLAIN` does it by PyTorch's own calls, in place where safe; :mod:`nvdp.nn.compiled_grids` does the same in one
pass over each array, where there is a C++ compiler. Formulas as in :mod:`nvdp.nn.fused`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Kept = tuple[Tensor, ...]
KL_FACTORS = (0.5, 1.0)  # of the gradients of KL by P and P̂: cheaper on what is made from the grids than on these


@dataclass(frozen=True)
class Grids:
    """The three pieces of work, for P = ε + s u bᵀ with u (task × K), b (task × D) and ε the floor."""

    weights: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Kept]]
    """(θ, −s u, b, ε) ↦ M = (1−P)θ, V = P(1−P)θ², and what the gradient is to find again."""
    gradients: Callable[[Tensor, Tensor, Tensor, float, Kept, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(θ, −s u, b, ε, kept, ∂M, H) ↦ ∂θ and s ∂P, with H = (A²)ᵀh = 2 ∂V; ∂M and H may be overwritten."""
    kl: Callable[[Tensor, Tensor, Tensor, Tensor, float, bool], tuple[Tensor, ...]]
    """(u, b, û, b̂, ε, with gradients) ↦ 2 KL of each task and, if wanted, 2 ∂KL/∂P and ∂KL/∂P̂: see `KL_FACTORS`."""


def rate_grid(u: Tensor, b: Tensor, floor: float) -> Tensor:
    """P = ε + s u bᵀ; not by addcmul, which does not vectorise with two broadcast arguments."""
    return torch.mul((u * (1 - 2 * floor))[:, :, None], b[:, None, :]).add_(floor)


def plain_weights(theta: Tensor, minus_su: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor, Kept]:
    """M and V; keeps 1 − P and X = Pθ."""
    keep = torch.mul(minus_su[:, :, None], b[:, None, :]).add_(1 - floor)
    mean = keep * theta
    dropped = theta - mean
    return mean, mean * dropped, (keep, dropped)


def plain_gradients(
    theta: Tensor, minus_su: Tensor, b: Tensor, floor: float, kept: Kept, mean_gradient: Tensor, h_sums: Tensor
) -> tuple[Tensor, Tensor]:
    """∂θ and s ∂P; the experts are in what was kept."""
    keep, dropped = kept
    return parameter_gradients(keep, dropped, theta, mean_gradient, h_sums, 1 - 2 * floor)


def parameter_gradients(
    keep: Tensor, dropped: Tensor, theta: Tensor, mean_gradient: Tensor, h_sums: Tensor, span: float
) -> tuple[Tensor, Tensor]:
    """∂θ = Σ_tasks K W and s ∂P = −s θ (W − ½ θ H) with H = (A²)ᵀh and W = ∂M + X H; ∂M and H are overwritten."""
    w = mean_gradient.addcmul_(dropped, h_sums)
    rates_gradient = torch.addcmul(w, h_sums, theta, value=-0.5, out=h_sums).mul_(-span * theta)
    return w.mul_(keep).sum(0), rates_gradient


def plain_kl(
    u: Tensor, b: Tensor, u_hat: Tensor, b_hat: Tensor, floor: float, with_gradients: bool
) -> tuple[Tensor, ...]:
    """2 KL summed over the grid and, if wanted, 2 ∂KL/∂P and ∂KL/∂P̂ on it (half of the other, by one call).

    With d = P − P̂, v = P(1−P) and e = d/v̂:
    2 KL = e (1 − 2P̂) − log(v/v̂),  2 ∂KL/∂P = e (1 − P − P̂ + 2PP̂)/v,  2 ∂KL/∂P̂ = 2e − e/v̂.
    All are exactly 0 for P = P̂. Gradients lose no digits near it; the sum of first-order terms leaves the value an
    error of some 1e-7 a weight.
    """
    tasks, p, p_hat = len(u), rate_grid(u, b, floor), rate_grid(u_hat, b_hat, floor)
    v, v_hat = torch.addcmul(p, p, p, value=-1), torch.addcmul(p_hat, p_hat, p_hat, value=-1)
    e = torch.sub(p, p_hat).div_(v_hat)
    ratio = torch.div(v, v_hat)
    quadratic = e.sum((1, 2)).sub_(torch.linalg.vecdot(e.view(tasks, -1), p_hat.view(tasks, -1)), alpha=2)
    twice_kl = quadratic.sub_(_sum_of_logs(ratio.view(tasks, -1), floor))
    if not with_gradients:
        return (twice_kl,)
    either = torch.add(p, p_hat, out=ratio).addcmul_(p, p_hat, value=-2)  # P + P̂ − 2PP̂
    p_gradient = torch.addcmul(e, e, either, value=-1, out=either).div_(v)
    return twice_kl, p_gradient, torch.addcdiv(e, e, v_hat, value=-0.5, out=v_hat)


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
