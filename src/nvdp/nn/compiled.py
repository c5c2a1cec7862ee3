"""The loops of :mod:`nvdp.nn.fused` in C: the engine `compiled`.

PyTorch does a formula such as that of the KL in a dozen passes over memory; a C loop (``kernels.c``) needs one. Matrix
products stay PyTorch's. Where the loops cannot be compiled (:mod:`nvdp.nn.kernels`), the engine is `fused`. Numbers
that are not float32 on a CPU are always computed by `fused`.
"""

import ctypes
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nvdp.errors import InputError, unknown_name
from nvdp.nn.dropout import NARROW, VARIANCE_FLOOR, DropoutLinear, target_basis
from nvdp.nn.fused import (
    AUTOGRAD,
    FUSED,
    Engine,
    fastest_kl,
    fastest_local_noise,
    fused_kl,
    fused_local_noise,
    outer_products,
)
from nvdp.nn.kernels import BLOCK, loaded_kernels
from nvdp.nn.rates import RateBounds


def compiled_local_noise(
    inputs: Float[Tensor, "task point k"],
    weight: Float[Tensor, "k d"],
    bias: Float[Tensor, " d"],
    rows: Float[Tensor, "task k"],
    columns: Float[Tensor, "task d"],
    layer: Float[Tensor, "task 1"],
    noise: Float[Tensor, "task point d"],
    floor: float,
) -> Float[Tensor, "task point d"]:
    """What :func:`nvdp.nn.fused.fused_local_noise` computes."""
    tensors = inputs, weight, bias, rows, columns, layer, noise
    if not _usable(*tensors):
        return fused_local_noise(*tensors, floor)
    (tasks, points, k), d = inputs.shape, len(bias)
    expected = (tasks, points, k), (k, d), (d,), (tasks, k), (tasks, d), (tasks, 1), (tasks, points, d)
    _check_shapes(tensors, expected)
    return _CompiledLocalNoise.apply(floor, *tensors)


def compiled_kl(
    q: Float[Tensor, "task expert"],
    p: Float[Tensor, "task expert"],
    shapes: Sequence[tuple[int, int]],
    floor: float,
) -> Float[Tensor, " task"]:
    """What :func:`nvdp.nn.fused.fused_kl` computes."""
    if not _usable(q, p):
        return fused_kl(q, p, shapes, floor)
    _check_shapes((q, p), ((len(q), sum(k + d + 1 for k, d in shapes)),) * 2)
    return _CompiledKL.apply(floor, shapes, q, p)


def compiled_basis(
    layer: DropoutLinear,
    inputs: Float[Tensor, "*sample task point k"],
    rows: Float[Tensor, "task point k"],
    columns: Float[Tensor, "task y"],
    bounds: RateBounds,
) -> Float[Tensor, "*sample task y point weight"]:
    """What :func:`nvdp.nn.dropout.target_basis` computes."""
    parts = inputs, rows, columns, layer.weight, layer.bias
    if inputs.dim() != 3 or bounds.kind != "affine" or not _usable(*parts):
        return target_basis(layer, inputs, rows, columns, bounds)
    (tasks, _, k), d = inputs.shape, columns.shape[1]
    weights = torch.cat([layer.weight, layer.bias[None]])[:, :d].mT
    _check_shapes((rows, columns, weights), (inputs.shape, (tasks, d), (d, k + 1)))
    return _CompiledBasis.apply(bounds.floor, *(part.contiguous() for part in (inputs, rows, columns, weights)))


COMPILED = Engine(
    "compiled",
    partial(fastest_local_noise, compute=compiled_local_noise),
    partial(fastest_kl, compute=compiled_kl),
    compiled_basis,
)
ENGINES = {engine.name: engine for engine in (COMPILED, FUSED, AUTOGRAD)}


def engine_named(name: str) -> Engine:
    """The engine of that name; `fused` in the place of `compiled` where this machine cannot compile it.

    >>> engine_named("fused") is FUSED
    True
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    return FUSED if name == COMPILED.name and isinstance(loaded_kernels(), str) else ENGINES[name]


def engine_in_use(name: str) -> str:
    """The name of the engine that is used when this one is asked for, and why if it is another.

    >>> engine_in_use("autograd")
    'autograd'
    """
    used = engine_named(name).name
    return used if used == name else f"{used} ({loaded_kernels()})"


def engine_of(model: nn.Module, name: str, device: torch.device, full_precision: bool) -> str | None:
    """The engine that computes a model's dropout layers in training if this one is asked for; None if it has none.

    >>> engine_of(nn.Linear(1, 1), "fused", torch.device("cpu"), True) is None
    True
    """
    if not any(isinstance(part, DropoutLinear) for part in model.modules()):
        return None
    rates = getattr(getattr(model, "config", None), "rates", None)
    if getattr(rates, "bounds", "affine") != "affine" or getattr(rates, "form", "product") != "product":
        return AUTOGRAD.name
    compiles = full_precision and device.type == "cpu"
    return engine_named(name).name if compiles or name != COMPILED.name else FUSED.name


def _usable(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors."""
    ours = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return ours and not isinstance(loaded_kernels(), str)


def _check_shapes(tensors: Sequence[Tensor], expected: Sequence[tuple[int, ...]]) -> None:
    """Refuse what the kernels, which trust these shapes, would read beyond its end."""
    for tensor, shape in zip(tensors, expected, strict=True):
        if tensor.shape != shape:
            raise InputError(f"a tensor has shape {tuple(tensor.shape)}; expected {shape}, as the others have")


def _call(name: str, *arguments: Tensor | float | ctypes.Array[Any]) -> None:
    """Call a function of the library; tensors are contiguous, but for experts, which have a stride."""
    values = [part.data_ptr() if isinstance(part, Tensor) else part for part in arguments]
    getattr(loaded_kernels(), name)(*values, torch.get_num_threads())


def _same_stride(*experts: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Rows, columns and layer as slices of one array, as the rate network gives them, and its stride."""
    strides = {part.stride(0) for part in experts}
    if len(strides) > 1 or any(part.shape[1] > 1 and part.stride(1) != 1 for part in experts):
        experts = torch.cat(experts, dim=-1).split([part.shape[1] for part in experts], dim=-1)
    return experts, experts[0].stride(0)


def _product(inputs: Tensor, weight: Tensor) -> Tensor:
    """A W of every task, contiguous; the layout of :func:`nvdp.nn.dropout.affine`."""
    if weight.shape[-1] > NARROW:
        return torch.bmm(inputs, weight)
    return torch.bmm(weight.mT.contiguous(), inputs.mT).mT.contiguous()


class _CompiledLocalNoise(torch.autograd.Function):
    """B and its gradients; the arguments and formulas are those of `nvdp.nn.fused`."""

    @staticmethod
    def forward(ctx: Any, floor: float, *tensors: Tensor) -> Tensor:
        inputs, *others, noise = tensors
        weight, bias, rows, columns, layer = others
        ctx.floor = floor
        weight, bias = weight.contiguous(), bias.contiguous()
        experts, stride = _same_stride(rows, columns, layer)
        mean_weight, variance_weight = _weights(weight, experts, stride, floor)
        outputs, variance = _product(inputs, mean_weight), _product(inputs.square(), variance_weight)
        where: tuple[Any, ...] = bias, *experts[1:], stride, floor, VARIANCE_FLOOR, noise.contiguous()
        _call("nvdp_outputs", *outputs.shape, *where, outputs, variance, outputs.new_empty(2, *columns.shape))
        ctx.save_for_backward(inputs, weight, bias, *experts, variance)  # which now holds z/σ
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, *experts, noise_over_std = ctx.saved_tensors
        experts, stride = _same_stride(*experts)  # hooks on saved tensors may have changed it
        (tasks, points, k), d = inputs.shape, len(bias)
        gradient, h = gradient.contiguous(), torch.empty_like(noise_over_std)
        sums, h_sums = gradient.new_empty(2, tasks, d)
        _call("nvdp_noise_gradient", tasks, points, d, gradient, noise_over_std, h, sums, h_sums)

        inputs_gradient = None
        if ctx.needs_input_grad[1]:
            mean_weight, variance_weight = _weights(weight, experts, stride, ctx.floor)
            inputs_gradient = torch.bmm(h, variance_weight.mT).mul_(inputs)
            inputs_gradient.baddbmm_(gradient, mean_weight.mT)
            del mean_weight, variance_weight  # before the next arrays of their size are made

        of_weights = outer_products(inputs, gradient).contiguous(), outer_products(inputs.square(), h).contiguous()
        results = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in (weight, bias, *experts)]
        work = gradient.new_empty(-(-k // BLOCK), tasks, d)
        where = weight, bias, *experts, stride, ctx.floor
        _call("nvdp_gradients", tasks, k, d, *where, *of_weights, sums, h_sums, *results, work)
        return None, inputs_gradient, *results, None


def _weights(weight: Tensor, experts: Sequence[Tensor], stride: int, floor: float) -> tuple[Tensor, Tensor]:
    """M and V of every task."""
    mean, variance = (weight.new_empty(len(experts[0]), *weight.shape) for _ in range(2))
    _call("nvdp_weights", *mean.shape, weight, *experts, stride, floor, mean, variance)
    return mean, variance


class _CompiledBasis(torch.autograd.Function):
    """The basis functions of the weights of a layer, and their gradients."""

    @staticmethod
    def forward(ctx: Any, floor: float, *tensors: Tensor) -> Tensor:
        inputs, _, columns, _ = tensors
        (tasks, points, k), outputs = inputs.shape, columns.shape[1]
        ctx.sizes, ctx.floors = (tasks, points, k, outputs), (floor, VARIANCE_FLOOR)
        basis = inputs.new_empty(tasks, outputs, points, k + 1)
        _call("nvdp_basis", *ctx.sizes, *tensors, *ctx.floors, basis)
        ctx.save_for_backward(*tensors)
        return basis

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *others, weights = ctx.saved_tensors
        results = [torch.empty_like(part) for part in others]
        by_task = weights.new_empty(len(others[0]), *weights.shape)
        where = *ctx.sizes, *others, weights, *ctx.floors
        _call("nvdp_basis_gradients", *where, gradient.contiguous(), *results, by_task)
        return None, *results, by_task.sum(0)


class _CompiledKL(torch.autograd.Function):
    """The KL of every task; one loop computes it and its gradients by both sides, which takes no longer than by one."""

    @staticmethod
    def forward(ctx: Any, floor: float, shapes: Sequence[tuple[int, int]], *sides: Tensor) -> Tensor:
        q, p = (side if side.stride(1) == 1 else side.contiguous() for side in sides)
        (tasks, experts), widest = q.shape, max(d for _, d in shapes)
        sizes = (ctypes.c_long * (2 * len(shapes)))(*(size for shape in shapes for size in shape))
        # A logarithm is taken of a product of so many variances, each at least ε(1−ε), that float32 still holds it.
        together = max(1, int(-30 / math.log10(floor * (1 - floor))))
        kl, q_gradient, p_gradient = q.new_empty(tasks), q.new_empty(q.shape), q.new_empty(q.shape)
        work = q.new_empty(tasks, 4, widest)
        where = tasks, len(shapes), sizes, q, q.stride(0), p, p.stride(0), experts, floor, together
        _call("nvdp_kl", *where, kl, q_gradient, p_gradient, work, widest)
        ctx.save_for_backward(q_gradient, p_gradient)
        return kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(side * cotangent[:, None] for side in ctx.saved_tensors)
