"""The work of :mod:`nvdp.nn.grids` in one pass over each array, compiled by torch.compile; needs a C++ compiler.

PyTorch's own calls write an array for every operation; compiled, each number is read once, worked on in registers and
written once. Only this work is compiled: its shapes do not change with the number of points, so that one compilation
serves a training, and products and random numbers stay with PyTorch's own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nvdp.nn.grids import Grids, plain_gradients, plain_kl, plain_weights

SMALLEST = 2**15  # numbers in an array that are worth a compilation


def _rates(u: Tensor, b: Tensor, floor: float) -> Tensor:
    return floor + (1 - 2 * floor) * u[:, :, None] * b[:, None, :]


def _weights(theta: Tensor, minus_su: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    mean = (1 - floor + minus_su[:, :, None] * b[:, None, :]) * theta
    return mean, mean * (theta - mean)


def _gradients(
    theta: Tensor, minus_su: Tensor, b: Tensor, floor: float, mean_gradient: Tensor, h_sums: Tensor
) -> tuple[Tensor, Tensor]:
    p = floor - minus_su[:, :, None] * b[:, None, :]
    w = mean_gradient + p * theta * h_sums
    return (w * (1 - p)).sum(0), (2 * floor - 1) * theta * (w - 0.5 * theta * h_sums)


def _kl(u: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    tasks = len(u) // 2
    p, p_hat = _rates(u[:tasks], b[:tasks], floor), _rates(u[tasks:], b[tasks:], floor)
    v, over_v_hat = p * (1 - p), 1 / (p_hat * (1 - p_hat))
    d = p - p_hat
    e = d * over_v_hat
    delta = e * (1 - p - p_hat)
    twice_kl = (delta - torch.log1p(delta) + d * e).sum((1, 2))
    return twice_kl, torch.cat([e * (1 - p - p_hat + 2 * p * p_hat) / v, e * (1 - 0.5 * over_v_hat)])


def compiled_grids() -> Grids:
    """The work compiled when it is first done, for every shape that occurs; small arrays as in PLAIN."""
    # Each shape by itself: what depends on the number of points is not compiled.
    compiled: list[Callable[..., Any]] = [torch.compile(work, dynamic=False) for work in (_weights, _gradients, _kl)]
    weights_at_once, gradients_at_once, kl_at_once = compiled

    def weights(theta: Tensor, minus_su: Tensor, b: Tensor, floor: float) -> tuple[Tensor, Tensor]:
        if len(minus_su) * theta.numel() < SMALLEST:
            return plain_weights(theta, minus_su, b, floor)
        mean, variance = weights_at_once(theta, minus_su, b, floor)
        return mean, variance

    def gradients(
        theta: Tensor, minus_su: Tensor, b: Tensor, floor: float, mean: Tensor, mean_gradient: Tensor, h_sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        if len(minus_su) * theta.numel() < SMALLEST:
            return plain_gradients(theta, minus_su, b, floor, mean, mean_gradient, h_sums)
        weight_gradient, grid = gradients_at_once(theta, minus_su, b, floor, mean_gradient, h_sums)
        return weight_gradient, grid

    def kl(u: Tensor, b: Tensor, floor: float, with_gradients: bool) -> tuple[Tensor, ...]:
        if not with_gradients or u.numel() * b.shape[1] < SMALLEST:
            return plain_kl(u, b, floor, with_gradients)
        return tuple(kl_at_once(u, b, floor))

    return Grids(weights, gradients, kl)
