"""Operators of PyTorch that ONNX does not have, written in those of ONNX.

Predictions in closed form need the slope of SiLU, and a fit's process needs Cholesky factors and what is solved by
them. The factors and their inverses are loops over the columns of a matrix.
"""

from typing import TYPE_CHECKING, Any

import torch
from onnxscript import DOUBLE, opset18, script

aten = torch.ops.aten
op: Any = opset18
if TYPE_CHECKING:
    Matrices = Any
else:
    Matrices = DOUBLE[...]


def silu_backward(gradient: Any, values: Any) -> Any:
    """The derivative of SiLU, times a gradient."""
    gate = op.Sigmoid(values)
    one = op.CastLike(op.Constant(value_float=1.0), values)
    slope = op.Mul(gate, op.Add(one, op.Mul(values, op.Sub(one, gate))))
    return op.Mul(gradient, slope)


@script()
def factor_of(a: Matrices) -> Matrices:
    """The lower Cholesky factor; a pivot that rounding makes negative is replaced by a small one."""
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    size = op.Squeeze(op.Shape(a, start=-1))
    places = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    smallest = op.CastLike(op.Constant(value_float=1e-12), a)
    factor = op.Sub(a, a)
    for step in range(size):
        here = op.Unsqueeze(step, zero)
        row = op.Gather(factor, here, axis=-2)
        column = op.Gather(a, here, axis=-1) - op.ReduceSum(factor * row, op.Constant(value_ints=[-1]))
        pivot = op.Max(op.Gather(column, here, axis=-2), smallest)
        below = op.CastLike(op.GreaterOrEqual(op.Unsqueeze(places, one), step), a)
        this = op.CastLike(op.Equal(places, step), a)
        factor = factor + column / op.Sqrt(pivot) * below * this
    return factor


@script()
def inverse_of(factor: Matrices) -> Matrices:
    """The inverse of a lower factor, row by row."""
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    size = op.Squeeze(op.Shape(factor, start=-1))
    places = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    inverse = op.Sub(factor, factor)
    for step in range(size):
        here = op.Unsqueeze(step, zero)
        row = op.Gather(factor, here, axis=-2)
        unit = op.CastLike(op.Equal(places, step), factor)
        place = op.CastLike(op.Equal(op.Unsqueeze(places, one), step), factor)
        inverse = inverse + (unit - op.MatMul(row, inverse)) / op.Gather(row, here, axis=-1) * place
    return inverse


def cholesky_ex(a: Any, upper: bool = False, check_errors: bool = False) -> tuple[Any, Any]:
    """The factor; that it has failed is never said."""
    return factor_of(a), op.Constant(value_int=0)


def solve_triangular(factor: Any, right: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """L⁻¹ B."""
    return op.MatMul(inverse_of(factor), right)


def cholesky_solve(right: Any, factor: Any, upper: bool = False) -> Any:
    """(L Lᵀ)⁻¹ B."""
    return op.MatMul(cholesky_inverse(factor), right)


def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    """(L Lᵀ)⁻¹."""
    inverse, axes = inverse_of(factor), list(range(len(factor.shape)))
    return op.MatMul(op.Transpose(inverse, perm=[*axes[:-2], axes[-1], axes[-2]]), inverse)


TRANSLATIONS: dict[Any, Any] = {
    aten.silu_backward.default: silu_backward,
    aten.linalg_cholesky_ex.default: cholesky_ex,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.cholesky_solve.default: cholesky_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
}
