"""The conditional-dropout layer (eq. 2) and its KL (eq. 4) with hand-derived gradients: most of a training step.

An :class:`Engine` computes both. `FUSED` is this file. `AUTOGRAD` is the straightforward version,
:func:`nvdp.nn.dropout.local_noise` and :func:`nvdp.nn.rates.network_kl`; the tests hold `FUSED` to it. Training uses
:mod:`nvdp.nn.compiled` by default, where the loops of this file are in C.

Notation, for one task. A are the layer's inputs (point × K), θ its weights (K × D), ε the rate floor, s = 1 − 2ε,
u = s(a) s(c) and b = s(b) the experts, z the noise. All products but AM, A²V and those with transposes are by element::

    P = ε + s u bᵀ        dropout rates
    M = (1−P) θ           mean of the weights
    X = Pθ = θ − M        dropped part of the weights
    V = P(1−P) θ² = X M   variance of the weights
    σ = √(A²V)
    B = AM + σ z          output (local reparameterisation)

A bias is a weight whose input and row expert are 1: its rate is ε + s b s(c).

Gradients. Write ∂Y for the derivative of the loss by Y, and G = ∂B. From ∂σ = G z and dσ = d(σ²)/2σ, with H = G z/σ::

    ∂A = G Mᵀ + A (H Vᵀ)       ∂M = AᵀG       ∂V = ½ S  with  S = (A²)ᵀH

M and V depend on θ and P. With W = ∂M + X S::

    ∂θ = (1−P) ∂M + 2P(1−P)θ ∂V = (1−P) W,  summed over tasks
    ∂P = −θ ∂M + (1−2P)θ² ∂V    = −θ (W − ½ θ S)
    ∂u = s ∂P b,  ∂b = s ∂Pᵀu;  then  ∂s(a) = ∂u s(c)  and  ∂s(c) = Σ ∂u s(a),  with the biases' share added

The KL of q (rates P) from p (rates P̂), with v = P(1−P), v̂ = P̂(1−P̂) and e = (P − P̂)/v̂, is per weight::

    2 KL      = v/v̂ − 1 + (P − P̂)²/v̂ − log(v/v̂) = e (1 − 2P̂) − log(v/v̂)
    2 ∂KL/∂P  = (1−2P̂)/v̂ − (1−2P)/v = e (1 − P − P̂ + 2PP̂)/v
    2 ∂KL/∂P̂  = 2e − e/v̂

θ cancels. All three are exactly 0 for P = P̂. The gradients lose no digits near it; the sum of first-order terms leaves
the value an error of about 1e-7 per weight.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from nvdp.errors import InputError
from nvdp.nn.dropout import (
    NARROW,
    VARIANCE_FLOOR,
    BasisFunction,
    DropoutLinear,
    LocalNoiseFunction,
    affine,
    local_noise,
    target_basis,
)
from nvdp.nn.rates import LayerRates, experts_of, network_kl

GRID_LIMIT = 2**24  # tasks × K × D beyond which the grid of rates is never formed
KL_CHUNK = 2**20  # numbers of both sides' grids at a time: bounds memory; smaller chunks cost more calls than they save


@dataclass(frozen=True)
class Engine:
    """How the computations that dominate a training step are done."""

    name: str
    local_noise: LocalNoiseFunction
    kl: Callable[[Sequence[LayerRates], Sequence[LayerRates]], Float[Tensor, " task"]]
    basis: BasisFunction = target_basis


def fastest_local_noise(
    layer: DropoutLinear,
    inputs: Float[Tensor, "task point k"],
    rates: LayerRates,
    noise: Float[Tensor, "task point d"],
    compute: Callable[..., Tensor] | None = None,
) -> Float[Tensor, "task point d"]:
    """B = AM + σz: hand-derived gradients, or low-rank products for wide layers; by autograd if P has no low rank.

    `compute` replaces `fused_local_noise`.
    """
    if not rates.low_rank:
        return local_noise(layer, inputs, rates, noise)
    k, d = layer.shape
    compute = low_rank_local_noise if len(inputs) * k * d > GRID_LIMIT else compute or fused_local_noise
    precision = layer.weight.dtype  # the hand-derived gradients expect one precision throughout
    inputs, noise = inputs.to(precision), noise.to(precision)
    # Entering autocast's context costs more than a small product: only where autocast is on.
    autocast = torch.is_autocast_enabled(inputs.device.type)
    with torch.autocast(inputs.device.type, enabled=False) if autocast else nullcontext():
        experts = (rates.rows, rates.columns, rates.layer)
        return compute(inputs, layer.weight, layer.bias, *experts, noise, rates.bounds.floor)


def fastest_kl(
    q: Sequence[LayerRates], p: Sequence[LayerRates], compute: Callable[..., Tensor] | None = None
) -> Float[Tensor, " task"]:
    """KL(q ‖ p) over all layers with its hand-derived gradient; by autograd if P has no low rank.

    `compute` replaces `fused_kl`.
    """
    if not q[0].low_rank:
        return network_kl(q, p)
    q_experts, p_experts = experts_of(q), experts_of(p)
    if q_experts.shape != p_experts.shape:
        shapes = tuple(q_experts.shape), tuple(p_experts.shape)
        raise InputError(f"the posteriors have experts of shapes {shapes[0]} and {shapes[1]}; expected the same tasks")
    return (compute or fused_kl)(q_experts, p_experts, [layer.shape for layer in q], q[0].bounds.floor)


AUTOGRAD = Engine("autograd", local_noise, network_kl)
FUSED = Engine("fused", fastest_local_noise, fastest_kl)


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
    """B = AM + σz from the experts s(a), s(b), s(c), differentiable once in everything but the noise.

    >>> experts = torch.full((2, 3), 0.5), torch.full((2, 4), 0.5), torch.ones(2, 1)
    >>> inputs, noise = torch.ones(2, 5, 3), torch.zeros(2, 5, 4)
    >>> fused_local_noise(inputs, torch.ones(3, 4), torch.ones(4), *experts, noise, 0.01)[0, 0]
    tensor([2.7350, 2.7350, 2.7350, 2.7350])
    """
    return _LocalNoise.apply(floor, inputs, weight, bias, rows, columns, layer, noise)


class _LocalNoise(torch.autograd.Function):
    """B and its gradients, by the formulas at the top of this file; arrays of task × K × D are reused in place."""

    @staticmethod
    def forward(ctx: Any, floor: float, *tensors: Tensor) -> Tensor:
        inputs, weight, bias, rows, columns, layer, noise = tensors
        minus_layer = layer * (2 * floor - 1)
        minus_su = rows * minus_layer
        mean_weight, variance_weight = _mean_and_variance(weight, minus_su, columns, floor)  # M and V
        keep_bias = (columns * minus_layer).add_(1 - floor)
        mean_bias = keep_bias * bias
        dropped_bias = bias - mean_bias
        variance_bias = mean_bias * dropped_bias
        std = affine(inputs.square(), variance_weight, variance_bias.add_(VARIANCE_FLOOR)).sqrt_()
        outputs = affine(inputs, mean_weight, mean_bias).addcmul_(std, noise)
        noise_over_std = torch.div(noise, std, out=std)  # z/σ is all that the gradient needs of the two
        # M and V are computed again in the backward pass: that is faster than reading megabytes from outside the cache.
        ctx.save_for_backward(*tensors[:-1], noise_over_std, minus_su, keep_bias, dropped_bias)
        ctx.floor = floor
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, rows, columns, layer, noise_over_std, minus_su, *of_bias = ctx.saved_tensors
        keep_bias, dropped_bias = of_bias
        span = 1 - 2 * ctx.floor
        keep = torch.mul(minus_su[:, :, None], columns[:, None, :]).add_(1 - ctx.floor)  # 1 − P
        mean_weight = keep * weight
        dropped = weight - mean_weight
        h = gradient * noise_over_std

        inputs_gradient = None
        if ctx.needs_input_grad[1]:
            inputs_gradient = torch.bmm(h, (dropped * mean_weight).mT).mul_(inputs)
            inputs_gradient.baddbmm_(gradient, mean_weight.mT)
        del mean_weight  # before the next arrays of its size are made

        mean_gradient, h_sums = outer_products(inputs, gradient), outer_products(inputs.square(), h)  # ∂M and S
        w, rates_gradient = _rate_gradients(dropped, weight, mean_gradient, h_sums, span)
        weight_gradient = w.mul_(keep).sum(0)

        bias_w, bias_rates_gradient = _rate_gradients(dropped_bias, bias, gradient.sum(1), h.sum(1), span)
        u_gradient, b_gradient = _times_experts(rates_gradient, rows * layer, columns)
        columns_gradient = b_gradient.addcmul_(bias_rates_gradient, layer)
        layer_gradient = (u_gradient * rows).sum(-1, True).add_((bias_rates_gradient * columns).sum(-1, True))
        bias_gradient = bias_w.mul_(keep_bias).sum(0)
        gradients = (weight_gradient, bias_gradient, u_gradient.mul_(layer), columns_gradient, layer_gradient)
        return None, inputs_gradient, *gradients, None


def _mean_and_variance(theta: Tensor, minus_su: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """M = (1−ε − s u bᵀ) θ and V = M (θ − M)."""
    mean = torch.mul(minus_su[:, :, None], b[:, None, :]).add_(1 - floor).mul_(theta)
    return mean, torch.sub(theta, mean).mul_(mean)


def _rate_gradients(
    dropped: Tensor, theta: Tensor, mean_gradient: Tensor, h_sums: Tensor, span: float
) -> tuple[Tensor, Tensor]:
    """W = ∂M + X S and s ∂P = −s θ (W − ½ θ S); ∂M and S are overwritten."""
    w = mean_gradient.addcmul_(dropped, h_sums)
    return w, torch.addcmul(w, h_sums, theta, value=-0.5, out=h_sums).mul_(-span * theta)


def outer_products(
    inputs: Float[Tensor, "task point k"], gradient: Float[Tensor, "task point d"]
) -> Float[Tensor, "task k d"]:
    """AᵀG of every task."""
    if gradient.shape[-1] > NARROW:
        return torch.bmm(inputs.mT, gradient)
    return torch.bmm(gradient.mT.contiguous(), inputs).mT


def _times_experts(
    grid: Float[Tensor, "task k d"], u: Float[Tensor, "task k"], b: Float[Tensor, "task d"]
) -> tuple[Float[Tensor, "task k"], Float[Tensor, "task d"]]:
    """Grid · b and gridᵀ · u of every task, both with the vector on the left, which is the fast layout."""
    return torch.bmm(b[:, None], grid.mT)[:, 0], torch.bmm(u[:, None], grid)[:, 0]


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
    """The same for wide layers, by autograd: no array of task × K × D; five products with θ or θ² replace two.

    P is a constant plus rank one, so mean and variance split::

        AM  = (1−ε) Aθ − s ((A u) θ) b
        A²V = ε(1−ε) A²θ² + s² b ((A²u) θ² − b (A²u²) θ²)

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
    q: Float[Tensor, "task expert"],
    p: Float[Tensor, "task expert"],
    shapes: Sequence[tuple[int, int]],
    floor: float,
) -> Float[Tensor, " task"]:
    """Σ KL over all layers' weights and biases, eq. 4. Memory grows with tasks × (K + D), however wide a layer is.

    Args:
        q: of each K × D layer in turn, K row experts, D column experts and the layer's own.
        p: the same of the other posterior.
        shapes: (K, D) of every layer.
        floor: ε.

    Returns:
        One number for each task.

    >>> fused_kl(torch.full((2, 8), 0.5), torch.full((2, 8), 0.5), [(3, 4)], 0.01)
    tensor([0., 0.])
    """
    with_gradients = torch.is_grad_enabled() and (q.requires_grad or p.requires_grad)
    return _DropoutKL.apply(floor, with_gradients, shapes, q, p)


class _DropoutKL(torch.autograd.Function):
    """The KL is one number per task, so its gradient is computed in the forward pass and only vectors are kept.

    Both posteriors have the same shapes. They are one array of twice as many tasks, q's first.
    """

    @staticmethod
    def forward(
        ctx: Any, floor: float, with_gradients: bool, shapes: Sequence[tuple[int, int]], *sides: Tensor
    ) -> Tensor:
        experts = torch.cat(sides)
        gradient = torch.empty_like(experts) if with_gradients else None
        twice_kl, first = experts.new_zeros(len(experts) // 2), 0
        for k, d in shapes:
            own = slice(first, first + k + d + 1)
            twice_kl += _layer_kl(experts[:, own], k, floor, None if gradient is None else gradient[:, own])
            first = own.stop
        if gradient is not None:
            ctx.save_for_backward(gradient.mul_(1 - 2 * floor))  # ∂P/∂(u bᵀ) = s
        return twice_kl.mul_(0.5).clamp_(min=0)  # rounding may leave the KL of equal posteriors just below zero

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        # `_grid_kl` gives 2 ∂KL/∂P and ∂KL/∂P̂; the missing factors are cheaper here than on its grids.
        factors = 0.5 * cotangent[:, None], 1.0 * cotangent[:, None]
        return None, None, None, *(side * f for side, f in zip(gradient.chunk(2), factors, strict=True))


def _layer_kl(
    experts: Float[Tensor, "side expert"], k: int, floor: float, gradient: Tensor | None
) -> Float[Tensor, " task"]:
    """2 KL of one layer; the gradient by its experts, up to constant factors, is written into `gradient`."""
    rows, b, layer = experts[:, :k], experts[:, k:-1], experts[:, -1:]
    u = torch.cat([rows * layer, layer], dim=-1)  # a bias is a weight whose row expert is 1: one more row of the grid
    at_once = max(1, KL_CHUNK // b.numel())
    with_gradients = gradient is not None
    if k < at_once:
        twice_kl, sides = _rows_kl(u, b, floor, with_gradients)
    else:
        twice_kl, sides = _chunked_kl(u, b, floor, with_gradients, at_once)
    if gradient is not None:
        of_u, of_b = sides
        of_rows, of_bias = of_u[:, :k], of_u[:, k:]
        torch.mul(of_rows, layer, out=gradient[:, :k])
        gradient[:, k:-1] = of_b
        torch.add((of_rows * rows).sum(-1, True), of_bias, out=gradient[:, -1:])
    return twice_kl


def _rows_kl(u: Tensor, b: Tensor, floor: float, with_gradients: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """2 KL over the grid of all rows given, and the gradients by u and b up to constant factors, if wanted."""
    twice_kl, *grid = _grid_kl(u, b, floor, with_gradients)
    return twice_kl, _times_experts(grid[0], u, b) if grid else ()


def _chunked_kl(
    u: Tensor, b: Tensor, floor: float, with_gradients: bool, at_once: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The same, a few rows at a time: the grid of a wide layer is never whole."""
    twice_kl = b.new_zeros(len(b) // 2)
    # Allocated before the loop: small results kept from each turn would fragment the memory that the grids reuse.
    of_u, of_b = torch.zeros_like(u), torch.zeros_like(b)
    chunks = -(-u.shape[1] // at_once)
    at_once = -(-u.shape[1] // chunks)  # all of about the same size
    for start in range(0, u.shape[1], at_once):
        rows = slice(start, start + at_once)
        chunk, gradients = _rows_kl(u[:, rows], b, floor, with_gradients)
        twice_kl += chunk
        if gradients:
            of_u[:, rows] = gradients[0]
            of_b += gradients[1]
    return twice_kl, (of_u, of_b)


def _grid_kl(u: Tensor, b: Tensor, floor: float, with_gradients: bool) -> tuple[Tensor, ...]:
    """2 KL summed over the grid and, if wanted, 2 ∂KL/∂P and ∂KL/∂P̂ on it, one after the other in one array."""
    # Not by addcmul, which does not vectorise with two broadcast arguments.
    rates = torch.mul((u * (1 - 2 * floor))[:, :, None], b[:, None, :]).add_(floor)
    tasks = len(u) // 2
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
