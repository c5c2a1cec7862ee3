"""The KL of eq. 4 over all layers of a network, with its gradient worked out beside it; formulas as in `nvdp.nn.fused`.

q gives P and p gives P̂. Both have the same shapes: they are one array of twice as many tasks, q's first.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nvdp.nn.grids import KL_FACTORS, PLAIN, Grids
from nvdp.nn.products import times_experts

NUMBERS_AT_ONCE = 2**20  # of both sides' grids: bounds memory; smaller pieces cost more calls than they save


def fused_kl(
    q: Float[Tensor, "task expert"],
    p: Float[Tensor, "task expert"],
    shapes: Sequence[tuple[int, int]],
    floor: float,
    grids: Grids = PLAIN,
) -> Float[Tensor, " task"]:
    """Σ KL(N((1−P)θ, P(1−P)θ²) ‖ N((1−P̂)θ, P̂(1−P̂)θ²)) over all layers' weights and biases; θ cancels.

    `q` and `p` hold K rows, D columns and the layer's own expert of each K × D layer. The memory needed grows with
    tasks × (K + D), however wide a layer is.

    >>> fused_kl(torch.full((2, 8), 0.5), torch.full((2, 8), 0.5), [(3, 4)], 0.01)
    tensor([0., 0.])
    """
    with_gradients = torch.is_grad_enabled() and (q.requires_grad or p.requires_grad)
    return _DropoutKL.apply(grids, floor, with_gradients, shapes, q, p)


class _DropoutKL(torch.autograd.Function):
    """One number per task, so the gradient is worked out beside it and only its vectors are kept."""

    @staticmethod
    def forward(
        ctx: Any, grids: Grids, floor: float, with_gradients: bool, shapes: Sequence[tuple[int, int]], *sides: Tensor
    ) -> Tensor:
        experts = torch.cat(sides)
        gradient = torch.empty_like(experts) if with_gradients else None
        twice_kl, first = experts.new_zeros(len(experts) // 2), 0
        for k, d in shapes:
            own = slice(first, first + k + d + 1)
            twice_kl += _layer(grids, experts[:, own], k, floor, None if gradient is None else gradient[:, own])
            first = own.stop
        if gradient is not None:
            ctx.save_for_backward(gradient.mul_(1 - 2 * floor))  # ∂P/∂(u bᵀ) = s
        return twice_kl.mul_(0.5).clamp_(min=0)  # rounding may leave a KL of nothing just below it

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        factors = [factor * cotangent[:, None] for factor in KL_FACTORS]
        return None, None, None, None, *(side * f for side, f in zip(gradient.chunk(2), factors, strict=True))


def _layer(
    grids: Grids, experts: Float[Tensor, "side expert"], k: int, floor: float, gradient: Tensor | None
) -> Float[Tensor, " task"]:
    """2 KL of one layer; the gradient by its experts, up to factors, is written."""
    rows, b, layer = experts[:, :k], experts[:, k:-1], experts[:, -1:]
    u = torch.cat([rows * layer, layer], dim=-1)  # a bias is a weight whose row expert is one: one more row of the grid
    at_once = max(1, NUMBERS_AT_ONCE // b.numel())
    with_gradients = gradient is not None
    if k < at_once:
        twice_kl, sides = _at_once(grids, u, b, floor, with_gradients)
    else:
        twice_kl, sides = _in_pieces(grids, u, b, floor, with_gradients, at_once)
    if gradient is not None:
        of_u, of_b = sides
        of_rows, of_bias = of_u[:, :k], of_u[:, k:]
        torch.mul(of_rows, layer, out=gradient[:, :k])
        gradient[:, k:-1] = of_b
        torch.add((of_rows * rows).sum(-1, True), of_bias, out=gradient[:, -1:])
    return twice_kl


def _at_once(
    grids: Grids, u: Tensor, b: Tensor, floor: float, with_gradients: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """2 KL over the grid of all rows given, and the gradients by u and b up to factors, if wanted."""
    twice_kl, *grid = grids.kl(u, b, floor, with_gradients)
    return twice_kl, times_experts(grid[0], u, b) if grid else ()


def _in_pieces(
    grids: Grids, u: Tensor, b: Tensor, floor: float, with_gradients: bool, at_once: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The same, a few rows at a time: the grids of a wide layer are never whole."""
    twice_kl = b.new_zeros(len(b) // 2)
    # Made before the loop: small results kept from each turn would fragment the memory the grids reuse.
    of_u, of_b = torch.zeros_like(u), torch.zeros_like(b)
    pieces = -(-u.shape[1] // at_once)
    at_once = -(-u.shape[1] // pieces)  # all of about the same size
    for start in range(0, u.shape[1], at_once):
        rows = slice(start, start + at_once)
        piece, gradients = _at_once(grids, u[:, rows], b, floor, with_gradients)
        twice_kl += piece
        if gradients:
            of_u[:, rows] = gradients[0]
            of_b += gradients[1]
    return twice_kl, (of_u, of_b)
