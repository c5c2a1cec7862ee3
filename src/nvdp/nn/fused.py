"""The conditional-dropout layer of eq. 2 with hand-derived gradients or low-rank products.

:func:`fused_local_noise` and :func:`low_rank_local_noise` compute what
:class:`~nvdp.nn.dropout.LocalNoise` does, for affine rate bounds, with the experts of
:class:`~nvdp.nn.rates.LayerRates` and the noise as arguments.
In formulas ε is the floor, s = 1 − 2ε, u = s(a) s(c), b = s(b), and P = ε + s u bᵀ, for biases ε + s b s(c).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nvdp.nn.grids import PLAIN, Grids, rate_gradients
from nvdp.nn.products import affine, outer, times_experts

VARIANCE_FLOOR = 1e-10  # keeps the gradient of √ finite where an input is zero


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


class _LocalNoise(torch.autograd.Function):
    """With K = 1 − P, M = Kθ, X = Pθ and V = XM: out = AM + σ ∘ noise, σ² = A²V, and for an output gradient g

    h = g ∘ noise / σ,  ∂A = g Mᵀ + A ∘ (h Vᵀ),  ∂M = Aᵀg,  2 ∂V = (A²)ᵀh.
    """

    @staticmethod
    def forward(ctx: Any, grids: Grids, floor: float, *tensors: Tensor) -> Tensor:
        inputs, weight, bias, rows, columns, layer, noise = tensors
        minus_layer = layer * (2 * floor - 1)
        minus_su = rows * minus_layer
        mean_weight, variance_weight = grids.weights(weight, minus_su, columns, floor)
        keep_bias = (columns * minus_layer).add_(1 - floor)
        mean_bias = keep_bias * bias
        dropped_bias = bias - mean_bias
        variance_bias = mean_bias * dropped_bias
        std = affine(inputs.square(), variance_weight, variance_bias.add_(VARIANCE_FLOOR)).sqrt_()
        outputs = affine(inputs, mean_weight, mean_bias).addcmul_(std, noise)
        noise_over_std = torch.div(noise, std, out=std)  # all that the gradient needs of the two
        # Not M and V: to read megabytes from beyond the cache again takes longer than to work them out again.
        ctx.save_for_backward(*tensors[:-1], noise_over_std, minus_su, keep_bias, dropped_bias)
        ctx.grids, ctx.floor = grids, floor
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, rows, columns, layer, noise_over_std, minus_su, *of_bias = ctx.saved_tensors
        keep_bias, dropped_bias = of_bias
        mean_weight, variance_weight = ctx.grids.weights(weight, minus_su, columns, ctx.floor)
        h = gradient * noise_over_std

        inputs_gradient = None
        if ctx.needs_input_grad[2]:
            inputs_gradient = torch.bmm(h, variance_weight.mT).mul_(inputs)
            inputs_gradient.baddbmm_(gradient, mean_weight.mT)

        mean_gradient, h_sums = outer(inputs, gradient), outer(inputs.square(), h)
        weight_gradient, grid = ctx.grids.gradients(
            weight, minus_su, columns, ctx.floor, mean_weight, mean_gradient, h_sums
        )
        bias_w, bias_grid = rate_gradients(dropped_bias, bias, gradient.sum(1), h.sum(1), 1 - 2 * ctx.floor)
        u_gradient, b_gradient = times_experts(grid, rows * layer, columns)
        columns_gradient = b_gradient.addcmul_(bias_grid, layer)
        layer_gradient = (u_gradient * rows).sum(-1, True).add_((bias_grid * columns).sum(-1, True))
        bias_gradient = bias_w.mul_(keep_bias).sum(0)
        gradients = (weight_gradient, bias_gradient, u_gradient.mul_(layer), columns_gradient, layer_gradient)
        return None, None, inputs_gradient, *gradients, None
