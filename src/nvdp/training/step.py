"""One training step: the bound of a batch, computed by hand-derived gradients, by autograd, or compiled."""

import torch
from torch import Tensor, nn

from nvdp.errors import unknown_name
from nvdp.models.nvdp import NVDP
from nvdp.models.nvdp_classifier import NVDPClassifier
from nvdp.models.registry import AnyModel
from nvdp.nn.engines import AUTOGRAD, FUSED
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.randomness import derived_generator, derived_seed
from nvdp.tasks import TaskBatch

ENGINES = {"fused": FUSED, "autograd": AUTOGRAD, "compiled": AUTOGRAD}


def check_engine(name: str) -> None:
    """Refuse a name that is no way to compute a step."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)


class TrainingStep(nn.Module):
    """The bound of a batch as the forward pass of a module, so that Fabric can wrap it.

    ``compiled`` is torch.compile of the plain autograd step, for any number of points; it needs a C++ compiler.
    """

    def __init__(self, model: AnyModel, objective: str, scale: KLScale, engine: str = "fused") -> None:
        super().__init__()
        check_engine(engine)
        self.model, self.objective, self.scale = model, OBJECTIVES[objective], scale
        if isinstance(model, NVDP | NVDPClassifier):
            model.engine = ENGINES[engine]
        if engine == "compiled":
            # The compiler's own random numbers take a CPU twice as long as all the rest of a step.
            torch._inductor.config.fallback_random = True
            self.compile(dynamic=True)

    def forward(
        self, x: Tensor, y: Tensor, is_context: Tensor, mask: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """The bound and the numbers to log."""
        bound = self.objective(self.model, TaskBatch(x, y, is_context, mask), self.scale, generator)
        numbers = {"bound": bound.value, "LL": bound.log_likelihood.detach(), "KL": bound.kl.detach()}
        rates = bound.posterior.mean_rates()
        if rates is not None:
            numbers["rate"] = rates.detach().mean()
        return numbers


def step_noise(engine: str, seed: int, step: int, device: torch.device) -> torch.Generator | None:
    """The generator of a step's noise; compiled code knows PyTorch's global one alone, which is then seeded alike."""
    if engine != "compiled":
        return derived_generator(seed, "noise", step, device=device)
    torch.manual_seed(derived_seed(seed, "noise", step))
    return None
