"""The optimisers by name: Adam, as in the paper, and two relatives to compare it with."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from nvdp.errors import unknown_name

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"fused": True}),
    "adamw": (torch.optim.AdamW, {"fused": True, "weight_decay": 0.01}),
    "nadam": (torch.optim.NAdam, {"foreach": True}),
}


def check_optimizer(name: str) -> None:
    """Refuse a name that is no optimiser."""
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)


def build_optimizer(name: str, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The optimiser of that name.

    >>> type(build_optimizer("nadam", [nn.Parameter(torch.zeros(1))], 1e-3)).__name__
    'NAdam'
    """
    check_optimizer(name)
    kind, options = OPTIMIZERS[name]
    return kind(parameters, lr=learning_rate, **options)
