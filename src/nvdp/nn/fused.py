"""The conditional-dropout layer of eq. 2 and its KL, eq. 4, with hand-derived gradients or low-rank products.

:func:`fused_local_noise` and :func:`low_rank_local_noise` compute what
:class:`~nvdp.nn.dropout_linear.LocalNoise` does, :func:`fused_kl` the KL divergence of one layer: all for
affine rate bounds, with the experts of :class:`~nvdp.nn.rates.LayerRates` and the noise as arguments.
In formulas ε is the floor, s = 1 − 2ε, u = s(a) s(c), b = s(b), and P = ε + s u bᵀ, for biases ε + s b s(c).
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nvdp.nn.grids import KL_FACTORS, PLAIN, Grids, parameter_gradients
from nvdp.nn.products import affine, outer

VARIANCE_FLOOR = 1e-10  # keeps the gradient of √ finite where an input is zero
NUMBERS_AT_ONCE = 2**19  # of each of the KL's eight grids: bounds memory; smaller pieces cost more calls than they save


def fused_local_noise(
    inputs: Float[Tensor, "task point k"],
    weight: Float[Tensor, "k d"],
    bias: Float[Tensor, " d"],
    rows: Float[Tensor, "task k"],
    columns: Float[Tensor, "task d"],
    layer: Float[Tensor, "task 1"],
    noise: Float[Tensor, "task point d"],
    floor: float,
    grids: Grids = PLAIN,
) -> Float[Tensor, "task point d"]:
    """A(1−P)θ + √(A² P(1−P)θ²) ∘ noise, biases included, differentiable once in everything but the noise.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> inputs, noise = torch.ones(2, 5, 3), torch.zeros(2, 5, 4)
    >>> fused_local_noise(inputs, torch.ones(3, 4), torch.ones(4), *experts, noise, 0.01)[0, 0]
    tensor([2.7350, 2.7350, 2.7350, 2.7350])
    """
    return _LocalNoise.apply(grids, floor, inputs, weight, bias, rows, columns, layer, noise)


def low_rank_local_noise(
    inputs: Float[Tensor, "task point k"],
    weight: Float[Tensor, "k d"],
    bias: Float[Tensor, " d"],
    rows: Float[Tensor, "task k"],
    columns: Float[Tensor, "task d"],
    layer: Float[Tensor, "task 1"],
    noise: Float[Tensor, "task point d"],
    floor: float,
) -> Float[Tensor, "task point d"]:
    """The same for wide layers: no array of tasks × K × D numbers; five products with θ or θ² replace two.

    A(1−P)θ = (1−ε) Aθ − s ((A∘u)θ)∘b, and P(1−P) = ε(1−ε) + s² (u bᵀ − u² b²ᵀ) splits the variance alike.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> inputs, noise = torch.ones(2, 5, 3), torch.zeros(2, 5, 4)
    >>> low_rank_local_noise(inputs, torch.ones(3, 4), torch.ones(4), *experts, noise, 0.01)[0, 0]
    tensor([2.7350, 2.7350, 2.7350, 2.7350])
    """
    span = 1 - 2 * floor
    u, b, squared_weight = (rows * layer)[:, None], columns[:, None], weight.square()

    def times(points: Tensor, matrix: Tensor) -> Tensor:
        # One plain product: a batched one would form the matrix's gradient task by task before summing it.
        return (points.reshape(-1, len(matrix)) @ matrix).view(*points.shape[:2], -1)

    keep_bias = (1 - floor - span * columns * layer)[:, None]
    mean = (1 - floor) * times(inputs, weight) - span * b * times(inputs * u, weight) + keep_bias * bias

    squares = inputs.square()
    linear, quadratic = times(squares * u, squared_weight), times(squares * u.square(), squared_weight)
    variance = floor * (1 - floor) * times(squares, squared_weight) + span**2 * b * (linear - b * quadratic)
    variance = variance + keep_bias * (1 - keep_bias) * bias.square()
    # The difference of two sums may round to just below zero.
    return torch.addcmul(mean, (variance.clamp_min(0) + VARIANCE_FLOOR).sqrt(), noise)


def fused_kl(
    q_rows: Float[Tensor, "task k"],
    q_columns: Float[Tensor, "task d"],
    q_layer: Float[Tensor, "task 1"],
    p_rows: Float[Tensor, "task k"],
    p_columns: Float[Tensor, "task d"],
    p_layer: Float[Tensor, "task 1"],
    floor: float,
    grids: Grids = PLAIN,
) -> Float[Tensor, " task"]:
    """Σ KL(N((1−P)θ, P(1−P)θ²) ‖ N((1−P̂)θ, P̂(1−P̂)θ²)) over one layer's weights and biases, eq. 4; θ cancels.

    q gives P and p gives P̂. The memory needed grows with tasks × (K + D), however wide the layer is.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> fused_kl(*experts, *experts, 0.01)
    tensor([0., 0.])
    """
    vectors = (q_rows, q_columns, q_layer, p_rows, p_columns, p_layer)
    with_gradients = torch.is_grad_enabled() and any(vector.requires_grad for vector in vectors)
    return _DropoutKL.apply(grids, floor, with_gradients, *vectors)


def _expert_gradients(grid: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """G b and Gᵀu for each task, both with the vector on the left: the fast case of a batched product."""
    return torch.bmm(b[:, None], grid.mT)[:, 0], torch.bmm(u[:, None], grid)[:, 0]


class _LocalNoise(torch.autograd.Function):
    """With K = 1 − P, M = Kθ, X = Pθ and V = XM: out = AM + σ ∘ noise, σ² = A²V, and for an output gradient g

    h = g ∘ noise / σ,  ∂A = g Mᵀ + A ∘ (h Vᵀ),  ∂M = Aᵀg,  2 ∂V = (A²)ᵀh.
    """

    @staticmethod
    def forward(ctx: Any, grids: Grids, floor: float, *tensors: Tensor) -> Tensor:
        inputs, weight, bias, rows, columns, layer, noise = tensors
        minus_su = rows * (layer * (2 * floor - 1))
        mean_weight, variance_weight, kept = grids.weights(weight, minus_su, columns, floor)
        keep_bias = (columns * (layer * (2 * floor - 1))).add_(1 - floor)
        mean_bias = keep_bias * bias
        dropped_bias = bias - mean_bias
        variance_bias = mean_bias * dropped_bias
        squares = inputs.square()
        std = affine(squares, variance_weight, variance_bias.add_(VARIANCE_FLOOR)).sqrt_()
        outputs = affine(inputs, mean_weight, mean_bias).addcmul_(std, noise)
        noise_over_std = torch.div(noise, std, out=std)  # all that the gradient needs of the two
        of_bias, of_weight = (keep_bias, dropped_bias), (mean_weight, variance_weight, *kept)
        ctx.save_for_backward(*tensors[:-1], squares, noise_over_std, minus_su, *of_bias, *of_weight)
        ctx.grids, ctx.floor = grids, floor
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, rows, columns, layer, squares, noise_over_std, minus_su, *saved = ctx.saved_tensors
        keep_bias, dropped_bias, mean_weight, variance_weight, *kept = saved
        h = gradient * noise_over_std

        inputs_gradient = None
        if ctx.needs_input_grad[2]:
            inputs_gradient = torch.bmm(h, variance_weight.mT).mul_(inputs)
            inputs_gradient.baddbmm_(gradient, mean_weight.mT)

        mean_gradient, h_sums = outer(inputs, gradient), outer(squares, h)
        weight_gradient, grid = ctx.grids.gradients(
            weight, minus_su, columns, ctx.floor, tuple(kept), mean_gradient, h_sums
        )
        bias_gradient, bias_grid = parameter_gradients(
            keep_bias, dropped_bias, bias, gradient.sum(1), h.sum(1), 1 - 2 * ctx.floor
        )
        u_gradient, b_gradient = _expert_gradients(grid, rows * layer, columns)
        columns_gradient = b_gradient.addcmul_(bias_grid, layer)
        layer_gradient = (u_gradient * rows).sum(-1, True).add_((bias_grid * columns).sum(-1, True))
        gradients = (weight_gradient, bias_gradient, u_gradient.mul_(layer), columns_gradient, layer_gradient)
        return None, None, inputs_gradient, *gradients, None


class _DropoutKL(torch.autograd.Function):
    """One number per task, so the gradient is worked out beside it and only its vectors are kept."""

    @staticmethod
    def forward(ctx: Any, grids: Grids, floor: float, with_gradients: bool, *vectors: Tensor) -> Tensor:
        rows, columns, layers = vectors[::3], vectors[1::3], vectors[2::3]
        # A bias is a weight whose row expert is one: it becomes one more row of the grid.
        us = [torch.cat([row * layer, layer], dim=-1) for row, layer in zip(rows, layers, strict=True)]
        at_once = max(1, NUMBERS_AT_ONCE // columns[0].numel())
        if us[0].shape[1] <= at_once:
            twice_kl, *sides = _kl_of_rows(grids, us, columns, floor, with_gradients)
        else:
            twice_kl, *sides = _kl_in_pieces(grids, us, columns, floor, with_gradients, at_once)
        if with_gradients:
            gradients: list[Tensor] = []
            for row, layer, (u_gradient, b_gradient) in zip(rows, layers, sides, strict=True):
                of_rows, of_bias = u_gradient[:, :-1], u_gradient[:, -1:]
                gradients += [of_rows * layer, b_gradient, (of_rows * row).sum(-1, True).add_(of_bias)]
            ctx.widths = [gradient.shape[1] for gradient in gradients]
            ctx.save_for_backward(torch.cat(gradients, dim=-1))
        return twice_kl.mul_(0.5).clamp_(min=0)  # rounding may leave a KL of nothing just below it

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        return None, None, None, *(saved * gradient[:, None]).split(ctx.widths, dim=-1)


def _kl_of_rows(
    grids: Grids, us: Sequence[Tensor], columns: Sequence[Tensor], floor: float, with_gradients: bool
) -> list[Any]:
    """[2 KL, (∂KL/∂u, ∂KL/∂b) of q, the same of p] over the grid of all rows given."""
    twice_kl, *sides = grids.kl(us[0], columns[0], us[1], columns[1], floor, with_gradients)
    gradients = []
    for grid, u, b, factor in zip(sides, us, columns, KL_FACTORS, strict=False):
        of_u, of_b = _expert_gradients(grid, u, b)
        scale = factor * (1 - 2 * floor)  # ∂P/∂(u bᵀ) = s
        gradients.append((of_u.mul_(scale), of_b.mul_(scale)))
    return [twice_kl, *gradients]


def _kl_in_pieces(
    grids: Grids,
    us: Sequence[Tensor],
    columns: Sequence[Tensor],
    floor: float,
    with_gradients: bool,
    at_once: int,
) -> list[Any]:
    """The same, a few rows at a time: the grids of a wide layer are never whole."""
    twice_kl = columns[0].new_zeros(len(columns[0]))
    # Made before the loop: small results kept from each turn would fragment the memory the grids reuse.
    sides = [(torch.zeros_like(u), torch.zeros_like(b)) for u, b in zip(us, columns, strict=True)]
    for start in range(0, us[0].shape[1], at_once):
        rows = slice(start, start + at_once)
        piece, *gradients = _kl_of_rows(grids, [u[:, rows] for u in us], columns, floor, with_gradients)
        twice_kl += piece
        for (u_gradient, b_gradient), (of_rows, of_columns) in zip(sides, gradients, strict=False):
            u_gradient[:, rows] = of_rows
            b_gradient += of_columns
    return [twice_kl, *sides]
