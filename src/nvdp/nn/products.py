"""Batched matrix products, each in the layout in which it is fast.

A product whose result has few columns takes several times as long as the same one transposed, with few rows.
"""

import torch
from jaxtyping import Float
from torch import Tensor

NARROW = 8  # columns


def affine(
    inputs: Float[Tensor, "task point k"], weight: Float[Tensor, "task k d"], bias: Float[Tensor, "task d"]
) -> Float[Tensor, "task point d"]:
    """A W + b of every task.

    >>> affine(torch.ones(1, 3, 2), torch.ones(1, 2, 1), torch.ones(1, 1))[0, :, 0]
    tensor([3., 3., 3.])
    """
    if weight.shape[-1] > NARROW:
        return torch.bmm(inputs, weight).add_(bias[:, None])  # baddbmm would begin by writing the bias to every row
    transposed = torch.baddbmm(bias[:, :, None], weight.mT.contiguous(), inputs.mT)
    return transposed.mT.clone(memory_format=torch.contiguous_format)  # no view, which could not be worked on in place


def outer(inputs: Float[Tensor, "task point k"], gradient: Float[Tensor, "task point d"]) -> Float[Tensor, "task k d"]:
    """AᵀG of every task: the gradient of a weight matrix.

    >>> outer(torch.ones(1, 3, 2), torch.ones(1, 3, 1))[0, :, 0]
    tensor([3., 3.])
    """
    if gradient.shape[-1] > NARROW:
        return torch.bmm(inputs.mT, gradient)
    return torch.bmm(gradient.mT.contiguous(), inputs).mT


def times_experts(
    grid: Float[Tensor, "task k d"], u: Float[Tensor, "task k"], b: Float[Tensor, "task d"]
) -> tuple[Float[Tensor, "task k"], Float[Tensor, "task d"]]:
    """G b and Gᵀu of every task, both with the vector on the left.

    >>> rows, columns = times_experts(torch.ones(1, 2, 3), torch.ones(1, 2), torch.ones(1, 3))
    >>> rows, columns
    (tensor([[3., 3.]]), tensor([[2., 2., 2.]]))
    """
    return torch.bmm(b[:, None], grid.mT)[:, 0], torch.bmm(u[:, None], grid)[:, 0]
