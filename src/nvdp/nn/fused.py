"""The conditional-dropout layer of eq. 2 and its KL, eq. 4, with hand-derived gradients or low-rank products.

:func:`fused_local_noise` and :func:`low_rank_local_noise` compute what
:class:`~nvdp.nn.dropout_linear.LocalNoise` does, :func:`fused_kl` the KL divergence of one layer: all for
affine rate bounds, with the experts of :class:`~nvdp.nn.rates.LayerRates` and the noise as arguments.
In formulas ε is the floor, s = 1 − 2ε, u = s(a) s(c), b = s(b), and P = ε + s u bᵀ, for biases ε + s b s(c).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

VARIANCE_FLOOR = 1e-10  # keeps the gradient of √ finite where an input is zero
NUMBERS_AT_ONCE = 2**17  # of each of the KL's eight grids: 2²⁰ together, and most of it stays in cache


def fused_local_noise(
    inputs: Float[Tensor, "task point k"],
    weight: Float[Tensor, "k d"],
    bias: Float[Tensor, " d"],
    rows: Float[Tensor, "task k"],
    columns: Float[Tensor, "task d"],
    layer: Float[Tensor, "task 1"],
    noise: Float[Tensor, "task point d"],
    floor: float,
) -> Float[Tensor, "task point d"]:
    """A(1−P)θ + √(A² P(1−P)θ²) ∘ noise, biases included, differentiable once in everything but the noise.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> inputs, noise = torch.ones(2, 5, 3), torch.zeros(2, 5, 4)
    >>> fused_local_noise(inputs, torch.ones(3, 4), torch.ones(4), *experts, noise, 0.01)[0, 0]
    tensor([2.7350, 2.7350, 2.7350, 2.7350])
    """
    return _LocalNoise.apply(floor, inputs, weight, bias, rows, columns, layer, noise)


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
) -> Float[Tensor, " task"]:
    """Σ KL(N((1−P)θ, P(1−P)θ²) ‖ N((1−P̂)θ, P̂(1−P̂)θ²)) over one layer's weights and biases, eq. 4; θ cancels.

    q gives P and p gives P̂. The memory needed grows with tasks × (K + D), however wide the layer is.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> fused_kl(*experts, *experts, 0.01)
    tensor([0., 0.])
    """
    vectors = (q_rows, q_columns, q_layer, p_rows, p_columns, p_layer)
    with_gradients = torch.is_grad_enabled() and any(vector.requires_grad for vector in vectors)
    return _DropoutKL.apply(floor, with_gradients, *vectors)


def _rate_grid(scaled_rows: Tensor, columns: Tensor, floor: float) -> Tensor:
    """P = ε + s u bᵀ; not by addcmul, which does not vectorise with two broadcast arguments."""
    return torch.mul((scaled_rows * (1 - 2 * floor))[:, :, None], columns[:, None, :]).add_(floor)


def _times_complement(factor: Tensor, x: Tensor) -> Tensor:
    """factor · x (1 − x) in one pass over memory: that is what the gradient of a sigmoid is."""
    return torch.ops.aten.sigmoid_backward(factor, x)


def _expert_gradients(grid: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """G b and Gᵀu for each task, both with the vector on the left: the fast case of a batched product."""
    return torch.bmm(b[:, None], grid.mT)[:, 0], torch.bmm(u[:, None], grid)[:, 0]


class _LocalNoise(torch.autograd.Function):
    """With M = (1−P)θ and V = P(1−P)θ²: out = AM + σ ∘ noise, σ² = A²V, and for an output gradient g

    h = g ∘ noise / σ,  ∂A = g Mᵀ + A ∘ (h Vᵀ),  ∂M = Aᵀg,  ∂V = ½ (A²)ᵀh.
    """

    @staticmethod
    def forward(ctx: Any, floor: float, *tensors: Tensor) -> Tensor:
        inputs, weight, bias, rows, columns, layer, noise = tensors
        rates = _rate_grid(rows * layer, columns, floor)
        bias_rates = columns * layer * (1 - 2 * floor) + floor
        variance_bias = _times_complement(bias.square(), bias_rates).add_(VARIANCE_FLOOR)
        variance_weight = _times_complement(weight.square(), rates)
        std = torch.baddbmm(variance_bias[:, None], inputs.square(), variance_weight).sqrt_()
        mean_bias = torch.addcmul(bias, bias_rates, bias, value=-1)
        mean_weight = torch.addcmul(weight, rates, weight, value=-1, out=rates)
        outputs = torch.baddbmm(mean_bias[:, None], inputs, mean_weight).addcmul_(std, noise)
        noise_over_std = torch.div(noise, std, out=std)  # all that the gradient needs of the two
        ctx.save_for_backward(inputs, weight, bias, rows, columns, layer, noise_over_std)
        ctx.floor = floor
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, rows, columns, layer, noise_over_std = ctx.saved_tensors
        u, span = rows * layer, 1 - 2 * ctx.floor
        # Made again rather than kept: two passes cost less than tasks × K × D numbers held until now.
        rates, bias_rates = _rate_grid(u, columns, ctx.floor), columns * layer * span + ctx.floor
        h = gradient * noise_over_std

        inputs_gradient = None
        if ctx.needs_input_grad[1]:
            inputs_gradient = torch.bmm(h, _times_complement(weight.square(), rates).mT).mul_(inputs)
            inputs_gradient.baddbmm_(gradient, torch.addcmul(weight, rates, weight, value=-1).mT)

        mean_gradient, h_sums = torch.bmm(inputs.mT, gradient), torch.bmm(inputs.square().mT, h)
        weight_gradient, grid = _parameter_gradients(rates, weight, mean_gradient, h_sums, span)
        bias_gradient, bias_grid = _parameter_gradients(bias_rates, bias, gradient.sum(1), h.sum(1), span)

        u_gradient, b_gradient = _expert_gradients(grid, u, columns)
        columns_gradient = b_gradient.addcmul_(bias_grid, layer)
        layer_gradient = (u_gradient * rows).sum(-1, True) + (bias_grid * columns).sum(-1, True)
        gradients = (weight_gradient, bias_gradient, u_gradient * layer, columns_gradient, layer_gradient)
        return None, inputs_gradient, *gradients, None


def _parameter_gradients(
    rates: Tensor, theta: Tensor, mean_gradient: Tensor, h_sums: Tensor, span: float
) -> tuple[Tensor, Tensor]:
    """∂θ = Σ_tasks (1−P)(∂M + P T) and s ∂P = −s θ (∂M + (P−½) T) with T = 2θ ∂V = θ (A²)ᵀh.

    ∂M and (A²)ᵀh are overwritten.
    """
    t = h_sums.mul_(theta)
    half_way = mean_gradient.addcmul_(rates, t).sub_(t, alpha=0.5)  # ∂M + (P−½) T
    whole_way = t.mul_(0.5).add_(half_way)  # ∂M + P T
    theta_gradient = whole_way.addcmul_(whole_way, rates, value=-1).sum(0)
    return theta_gradient, half_way.mul_(-span * theta)


def _twice_kl(p: Tensor, p_hat: Tensor, with_gradients: bool) -> tuple[Tensor, ...]:
    """2 KL summed over the grid and, if wanted, 2 ∂KL/∂P and 2 ∂KL/∂P̂ on it.

    With d = P − P̂, v = P(1−P), e = d/v̂, δ = (v − v̂)/v̂ = e (1 − P − P̂), these forms lose no digits near d = 0:
    2 KL = δ − log(1+δ) + d e,  2 ∂KL/∂P = e (1 − P − P̂ + 2PP̂)/v,  2 ∂KL/∂P̂ = −e (1 − 2v̂)/v̂ = e (2 − 1/v̂).
    """
    one = p.new_ones(())
    over_v_hat = _times_complement(one, p_hat).reciprocal_()
    d = p - p_hat
    e = d * over_v_hat
    complement = torch.rsub(p, 1).sub_(p_hat)  # 1 − P − P̂
    delta = complement * e
    twice_kl = d.mul_(e).add_(delta)
    twice_kl = twice_kl.sub_(delta.log1p_()).sum((1, 2))
    if not with_gradients:
        return (twice_kl,)
    p_gradient = complement.addcmul_(p, p_hat, value=2).mul_(e).div_(_times_complement(one, p))
    p_hat_gradient = over_v_hat.neg_().add_(2).mul_(e)
    return twice_kl, p_gradient, p_hat_gradient


class _DropoutKL(torch.autograd.Function):
    """One number per task, so the gradient is worked out beside it and only its six vectors are kept."""

    @staticmethod
    def forward(ctx: Any, floor: float, with_gradients: bool, *vectors: Tensor) -> Tensor:
        columns, layers = vectors[1::3], vectors[2::3]
        # A bias is a weight whose row expert is one: it becomes one more row of the grid.
        experts = [torch.nn.functional.pad(rows, (0, 1), value=1.0) for rows in vectors[::3]]
        scaled_rows = [rows * layer for rows, layer in zip(experts, layers, strict=True)]

        twice_kl = columns[0].new_zeros(len(columns[0]))
        # Made before the loop: small results kept from each turn would fragment the memory the grids reuse.
        u_gradients = [torch.zeros_like(u) for u in scaled_rows]
        b_gradients = [torch.zeros_like(b) for b in columns]
        at_once = max(1, NUMBERS_AT_ONCE // columns[0].numel())
        for start in range(0, scaled_rows[0].shape[1], at_once):
            us = [u[:, start : start + at_once] for u in scaled_rows]
            rates = [_rate_grid(u, b, floor) for u, b in zip(us, columns, strict=True)]
            chunk_kl, *rate_gradients = _twice_kl(rates[0], rates[1], with_gradients)
            twice_kl += chunk_kl
            for side, gradient in enumerate(rate_gradients):
                u_gradient, b_gradient = _expert_gradients(gradient, us[side], columns[side])
                u_gradients[side][:, start : start + at_once] = u_gradient
                b_gradients[side] += b_gradient

        if with_gradients:
            saved, scale = [], 0.5 * (1 - 2 * floor)  # half of 2 KL, and ∂P/∂(u bᵀ) = s
            for side in range(2):
                u_gradient = u_gradients[side].mul_(scale)
                layer_gradient = (u_gradient * experts[side]).sum(-1, True)
                saved += [u_gradient[:, :-1] * layers[side], b_gradients[side].mul_(scale), layer_gradient]
            ctx.save_for_backward(*saved)
        return twice_kl.mul_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient[:, None] * saved for saved in ctx.saved_tensors)
