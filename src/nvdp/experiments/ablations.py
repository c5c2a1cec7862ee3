"""What matters in NVDP's training, one change at a time from the default: KL scale, prior, rates, noise, decoder."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config

_STEPS = {"quick": 150, "cpu": 2_000, "paper": 500_000}
_TASKS = {"quick": 64, "cpu": 512, "paper": 50_000}

KL_SCALES = {
    "kl-none": KLScale("elbo", 0.0),
    "kl-released-1.4": KLScale("released", 1.4),
    "kl-elbo-0.001": KLScale("elbo", 0.001),
    "kl-elbo-0.01": KLScale("elbo", 0.01),
    "kl-elbo-0.1": KLScale("elbo", 0.1),
    "kl-elbo-1": KLScale("elbo", 1.0),
    "kl-text-1": KLScale("text", 1.0),
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bounds-clip": {"rates.bounds": "clip"},
    "decoder-x,r": {"decoder.sees": "x,r"},
    "rates-full": {"rates.form": "full"},
    "noise-on-weights": {"decoder.weight_noise": "weights"},
}


def plan(budget: str) -> Sequence[PlannedRun]:
    """One short run for each change."""
    base = paper_architecture(preset_config("gp", "nvdp", budget, steps=_STEPS[budget]))
    runs: dict[str, RunConfig] = {name: replace(base, kl=scale) for name, scale in KL_SCALES.items()}
    runs["prior-log-uniform"] = replace(base, objective="log-uniform")
    for name, change in ARCHITECTURES.items():
        runs[name] = replace(base, model=base.model.updated(change))
    return [PlannedRun(name, config, _TASKS[budget]) for name, config in runs.items()]


ABLATIONS = Experiment("ablations", "KL scale, prior, rates, noise and decoder, one change at a time", plan)
