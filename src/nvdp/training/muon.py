"""Muon (Jordan et al. 2024): steps of matrices have all singular values near 1; other parameters take Adam's steps.

A matrix moves by the polar factor of its averaged gradient, U Vᵀ of U S Vᵀ, so rare directions move as far as frequent
ones. Five iterations of X ← aX + (bA + cA²)X with A = XXᵀ bring the singular values near 1 without a decomposition.
"""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the iteration: steep at 0, so that few are enough
ITERATIONS, SMALLEST, LARGEST = 5, 8, 96
WIDE = 2  # columns per row from which the iteration by XXᵀ needs fewer multiplications
SCALE = 0.2  # steps of matrices are as large as Adam's usually are


class Muon(Optimizer):
    """Muon for matrices and convolutions over channels whose smaller side has 8 to `largest` rows; Adam for the rest.

    A wider matrix may take longer than it gains where steps are short. A convolution is the matrix of its outputs by
    all of its inputs. A parameter of three dimensions is a stack of matrices, each of which moves by itself,
    not a convolution over a line.

    Args:
        params: What is trained.
        lr: Learning rate of both.
        momentum: Of the gradients of matrices (Nesterov).
        betas: Of Adam.
        weight_decay: What Muon moves shrinks by this times the learning rate in a step; what Adam moves does not.
        largest: Rows of the smaller side beyond which a matrix takes Adam's steps.

    >>> weight = nn.Parameter(torch.eye(8))
    >>> optimizer = Muon([weight], lr=0.1)
    >>> weight.grad = torch.eye(8) * 1e-6
    >>> _ = optimizer.step()
    >>> bool(weight.diagonal().max() < 0.97), weight[0, 1].abs().item() < 1e-3
    (True, True)
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        largest: int = LARGEST,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay, "largest": largest}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every parameter that has a gradient."""
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            rest = []
            for parameter in given:
                if _takes(parameter, group["largest"]):
                    by_shape.setdefault(_stack(parameter).shape[1:], []).append(parameter)
                else:
                    rest.append(parameter)
            for matrices in by_shape.values():
                for matrix in matrices if group["weight_decay"] else ():
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                self._orthogonal(matrices, group["lr"], group["momentum"])
            self._adam(rest, group["lr"], group["betas"])

    def _orthogonal(self, matrices: list[nn.Parameter], lr: float, momentum: float) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        averages = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        ahead = [_stack(update) for update in torch._foreach_lerp(gradients, averages, momentum)]
        steps = polar_factors(torch.cat(ahead))
        size = -lr * SCALE * math.sqrt(max(steps.shape[1:]))
        for matrix, update in zip(matrices, steps.split([len(each) for each in ahead]), strict=True):
            matrix.add_(update.view_as(matrix), alpha=size)

    def _adam(self, rest: list[Tensor], lr: float, betas: tuple[float, float]) -> None:
        for parameter in rest:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        averages, squares, steps = (
            [self.state[parameter][name] for parameter in rest] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        gradients = [parameter.grad for parameter in rest if parameter.grad is not None]
        if rest:
            adam(
                rest,
                gradients,
                averages,
                squares,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=betas[0],
                beta2=betas[1],
                lr=lr,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


def _takes(parameter: Tensor, largest: int) -> bool:
    """Whether a parameter takes Muon's steps."""
    if parameter.dim() not in (2, 3, 4):
        return False
    sides = parameter.shape[1:] if parameter.dim() == 3 else parameter.shape[:2]  # without a kernel's size
    return min(sides) >= SMALLEST and min(_stack(parameter).shape[1:]) <= largest


def _stack(parameter: Tensor) -> Float[Tensor, "matrix row column"]:
    """The matrices of a parameter."""
    return parameter if parameter.dim() == 3 else parameter.flatten(1)[None]


def polar_factors(matrices: Float[Tensor, "matrix row column"]) -> Float[Tensor, "matrix row column"]:
    """U Vᵀ of each matrix U S Vᵀ, roughly: singular values come out between 0.7 and 1.2.

    With many columns the iteration is that of A = XXᵀ alone. With the polynomial P = a + bA + cA², X ← PX and
    A ← PAP, as P and A commute. The product of all P is multiplied with X once, at the end.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.shape[2] < WIDE * x.shape[1]:
        for _ in range(ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if tall else x
    gram, product = x @ x.mT, None
    for iteration in range(ITERATIONS):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        product = polynomial if product is None else polynomial @ product
        if iteration < ITERATIONS - 1:
            gram = polynomial @ gram @ polynomial
    x = product @ x
    return x.mT if tall else x
