"""One training step: the bound of a batch, by hand-derived gradients, compiled ones, or plain autograd."""

import os
import shutil
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nvdp.errors import InputError, unknown_name
from nvdp.models.nvdp import NVDP
from nvdp.models.nvdp_classifier import NVDPClassifier
from nvdp.models.registry import AnyModel
from nvdp.nn.engines import AUTOGRAD, FUSED, Engine, compiled_engine
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.tasks import TaskBatch

ENGINES: dict[str, Callable[[], Engine]] = {
    "fused": lambda: FUSED,
    "autograd": lambda: AUTOGRAD,
    "compiled": compiled_engine,
}


def check_engine(name: str) -> None:
    """Refuse a name that is no way to compute a step here."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    if name == "compiled" and not has_compiler():
        raise InputError("engine 'compiled' needs a C++ compiler, and none is found (CXX, g++, clang++); take 'fused'")


def has_compiler() -> bool:
    """Whether torch.compile would find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++", "cl"))


class TrainingStep(nn.Module):
    """The bound of a batch as the forward pass of a module, so that Fabric can wrap it."""

    def __init__(self, model: AnyModel, objective: str, scale: KLScale, engine: str = "fused") -> None:
        super().__init__()
        check_engine(engine)
        self.model, self.objective, self.scale = model, OBJECTIVES[objective], scale
        if isinstance(model, NVDP | NVDPClassifier):
            model.engine = ENGINES[engine]()

    def forward(
        self, x: Tensor, y: Tensor, is_context: Tensor, mask: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """The bound and the numbers to log."""
        bound = self.objective(self.model, TaskBatch(x, y, is_context, mask), self.scale, generator)
        numbers = {"bound": bound.value, "LL": bound.log_likelihood.detach(), "KL": bound.kl.detach()}
        with torch.no_grad():
            rates = bound.posterior.mean_rates()
        if rates is not None:
            numbers["rate"] = rates.mean()
        return numbers
