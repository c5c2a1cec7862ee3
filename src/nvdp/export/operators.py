"""Operations of PyTorch that its ONNX exporter does not have.

Fits around a hierarchical GP need Cholesky factors, which ONNX has not: two loops over the rows of a matrix take their
place.
"""

from typing import Any

import torch
from onnxscript import DOUBLE, opset18, script

op: Any = opset18


def silu_backward(gradient: Any, values: Any) -> Any:
    """The derivative of SiLU; predictions in closed form need the mean slope of an activation."""
    gate = op.Sigmoid(values)
    one = op.CastLike(op.Constant(value_float=1.0), values)
    slope = op.Mul(gate, op.Add(one, op.Mul(values, op.Sub(one, gate))))
    return op.Mul(gradient, slope)


@script(default_opset=op)
def lower_factor(matrix: DOUBLE) -> DOUBLE:
    """L of A = LLᵀ: column j is (a_j − L l_j) over the root of its entry j, where l_j is row j of L so far."""
    size = op.Gather(op.Shape(matrix), -1)
    numbers = op.Range(0, size, 1)
    factor = op.Mul(matrix, op.CastLike(0.0, matrix))
    for j in range(size):
        row = op.Unsqueeze(op.Gather(factor, j, axis=-2), [-1])
        column = op.Sub(op.Gather(matrix, j, axis=-1), op.Squeeze(op.MatMul(factor, row), [-1]))
        pivot = op.Sqrt(op.Gather(column, op.Unsqueeze(j, [0]), axis=-1))
        below = op.CastLike(op.GreaterOrEqual(numbers, j), matrix)
        here = op.CastLike(op.Equal(numbers, j), matrix)
        factor = op.Add(factor, op.Mul(op.Unsqueeze(op.Mul(op.Div(column, pivot), below), [-1]), here))
    return factor


@script(default_opset=op)
def solved(factor: DOUBLE, right: DOUBLE) -> DOUBLE:
    """X of LX = B: its row j is (b_j − l_j X) / L_jj, where X has the rows before it."""
    size = op.Gather(op.Shape(factor), -1)
    numbers = op.Unsqueeze(op.Range(0, size, 1), [-1])
    answer = op.Mul(op.MatMul(factor, right), op.CastLike(0.0, right))
    for j in range(size):
        at = op.Unsqueeze(j, [0])
        row = op.Gather(factor, at, axis=-2)
        here = op.CastLike(op.Equal(numbers, j), right)
        value = op.Div(op.Sub(op.Gather(right, at, axis=-2), op.MatMul(row, answer)), op.Gather(row, at, axis=-1))
        answer = op.Add(answer, op.Mul(value, here))
    return answer


def cholesky_ex(matrix: Any, upper: bool = False, check_errors: bool = False) -> Any:
    """The lower factor, and no failure."""
    return lower_factor(matrix), op.Constant(value_int=0)


def solve_triangular(
    factor: Any, right: Any, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Any:
    """With a lower factor on the left."""
    return solved(factor, right)


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.silu_backward.default: silu_backward,
    torch.ops.aten.linalg_cholesky_ex.default: cholesky_ex,
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
}
