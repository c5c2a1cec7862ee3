"""Adam and NAdam in few passes over the weights, and the norm of the gradient.

PyTorch has one kernel for a whole step of Adam, `torch._fused_adam_`, and none for NAdam (Dozat 2016), whose step is

    m ← β₁ m + (1−β₁) g        θ ← θ − (c₁ g + c₂ m) / denominator

with c₁ = lr (1−μ) / (1−Πμ) and c₂ = lr μ' / (1 − μ' Πμ); μ' is the next step's μ. The numerator is itself a moving
average, (c₁ + c₂) (b m + (1−b) g) with the old m and b = c₂ β₁ / (c₁ + c₂). So one call of Adam's kernel with b in the
place of β₁ gives the same weights. It leaves n = b m + (1−b) g where m was, and the new m is on the line from n to g:
m = n + (1 − β₁/b)(g − n). That is one more pass.

The states have PyTorch's names, so that either class continues the other's checkpoints.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nvdp.training.muon import LARGEST, Muon

PRECISIONS = (torch.float32, torch.float64)  # in which m may be worked out from n


class _OneKernel(torch.optim.Optimizer):
    """Steps by Adam's kernel where all weights are in one place and have gradients; else as PyTorch does them."""

    _lists: tuple[list[Tensor], ...] | None = None  # weights and their states, all at the same step

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._lists = None
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step along the gradients."""
        gradients = self._gradients() if closure is None else None
        if gradients is None or (self._lists is None and not self._gathered()):
            self._lists = None
            return super().step(closure)
        assert self._lists is not None
        self._update(self.param_groups[0], gradients, *self._lists)
        return None

    def _gradients(self) -> list[Tensor] | None:
        group = self.param_groups[0]
        usual = not (group["weight_decay"] or group["maximize"] or group["differentiable"] or group["capturable"])
        gradients = [weight.grad for weight in group["params"] if weight.grad is not None]
        return gradients if usual and len(gradients) == len(group["params"]) and len(self.param_groups) == 1 else None

    def _gathered(self) -> bool:
        """Collect the weights and their states, if PyTorch has made them in a step and the kernel can take them."""
        weights = self.param_groups[0]["params"]
        states = [self.state.get(weight, {}) for weight in weights]
        if not all(states) or any(w.device.type != "cpu" or w.dtype not in PRECISIONS for w in weights):
            return False
        names = [name for name in ("step", "exp_avg", "exp_avg_sq", "mu_product") if name in states[0]]
        lists = weights, *([state[name] for state in states] for name in names)
        if len({weight.dtype for weight in weights}) > 1 or len({float(step) for step in lists[1]}) > 1:
            return False
        self._lists = lists
        return True

    @abstractmethod
    def _update(self, group: dict[str, Any], gradients: list[Tensor], *lists: list[Tensor]) -> None:
        """The step itself, on the weights and states of `_gathered`."""


def _adam_(
    group: dict[str, Any],
    gradients: list[Tensor],
    lists: Sequence[list[Tensor]],
    learning_rate: float,
    beta1: float,
) -> None:
    """θ ← θ − lr m̂ / (√v̂ + ε), after m and v have been updated."""
    weights, steps, means, squares = lists
    torch._fused_adam_(
        weights,
        gradients,
        means,
        squares,
        [],
        steps,
        lr=learning_rate,
        beta1=beta1,
        beta2=group["betas"][1],
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


class Adam(_OneKernel, torch.optim.Adam):
    """Adam (Kingma & Ba 2015)."""

    def _update(self, group: dict[str, Any], gradients: list[Tensor], *lists: list[Tensor]) -> None:
        torch._foreach_add_(lists[1], 1)
        _adam_(group, gradients, lists, group["lr"], group["betas"][0])


class NAdam(_OneKernel, torch.optim.NAdam):
    """Adam with Nesterov momentum (Dozat 2016): one pass more than Adam.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> optimizer = NAdam([weight], lr=0.1)
    >>> for _ in range(2):
    ...     weight.grad = torch.ones(2)
    ...     optimizer.step()
    >>> weight
    Parameter containing:
    tensor([0.8160, 0.8160], requires_grad=True)
    """

    def _update(self, group: dict[str, Any], gradients: list[Tensor], *lists: list[Tensor]) -> None:
        weights, steps, means, squares, products = lists
        torch._foreach_add_(steps, 1)
        step, beta1 = int(steps[0]), group["betas"][0]
        now, following = (beta1 * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1))
        torch._foreach_mul_(products, now)
        product = float(products[0])
        of_gradient, of_mean = (1 - now) / (1 - product), following / (1 - product * following)
        total = of_gradient + of_mean
        b = of_mean * beta1 / total
        # The kernel divides by 1 − bᵗ, which is not wanted.
        _adam_(group, gradients, (weights, steps, means, squares), group["lr"] * total * (1 - b**step), b)
        torch._foreach_lerp_(means, gradients, 1 - beta1 / b)


OPTIMIZERS: dict[str, Any] = {"adam": Adam, "nadam": NAdam, "muon": Muon}
OPTIONS: dict[str, dict[str, Any]] = {"adam": {"fused": True}, "nadam": {"foreach": True}, "muon": {}}


def build_optimizer(
    name: str, parameters: Iterable[nn.Parameter], learning_rate: float, muon_rows: int = LARGEST
) -> torch.optim.Optimizer:
    """The optimiser of that name.

    Args:
        name: adam, nadam or muon.
        parameters: What is trained.
        learning_rate: Of the first steps; a schedule may change it.
        muon_rows: Rows of a matrix up to which Muon moves it; the other optimisers do not use it.

    Returns:
        The optimiser.

    >>> type(build_optimizer("nadam", [nn.Parameter(torch.zeros(1))], 1e-3)).__name__
    'NAdam'
    """
    options = OPTIONS[name] | ({"largest": muon_rows} if name == "muon" else {})
    optimizer: torch.optim.Optimizer = OPTIMIZERS[name](parameters, lr=learning_rate, **options)
    return optimizer


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """Clip the norm of the whole gradient, as `torch.nn.utils.clip_grad_norm_` does; no pass where nothing is clipped.

    Args:
        parameters: Whose gradients are scaled in place.
        largest: The norm that is allowed.

    Returns:
        The norm before.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], 1.0), weight.grad
    (tensor(5.), tensor([0.6000, 0.8000]))
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    share = largest / (norm + 1e-6)
    if not share >= 1:
        torch._foreach_mul_(gradients, share)
    return norm
