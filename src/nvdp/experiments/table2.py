"""Table 2 and its appendix twin: image completion on MNIST, MNIST → Omniglot and CelebA, scored on test images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.data.source import NO_DATA, DataConfig
from nvdp.experiments.plan import Experiment, PlannedRun, papers
from nvdp.experiments.table1 import NAMES
from nvdp.training.config import RunConfig
from nvdp.training.preset_rules import FOURIER, MIXTURE
from nvdp.training.presets import preset_config

# A step on CelebA, with a representation of 1,024 and three channels, costs twice as much as one on MNIST.
STEPS = {
    "mnist": {"quick": 60, "cpu": 10_000, "paper": 937_500},
    "celeba": {"quick": 4, "cpu": 1_200, "paper": 3_051_937},
}
TASKS = {
    "mnist": {"quick": 16, "cpu": 2_048, "paper": 10_000},
    "celeba": {"quick": 16, "cpu": 512, "paper": 10_000},
}
TRANSFER = {"mnist": ("omniglot",), "celeba": ()}  # further sets on which a run is scored
# Models whose targets read the context: at the cpu budget, as many steps as take the same time as NVDP's.
READING_STEPS = {
    "mnist": {"nvdp-conv": 4_000, "nvdp-attentive": 1_800},
    "celeba": {"nvdp-conv": 500, "nvdp-attentive": 280},
}
READING_NAMES = ("nvdp-conv", "nvdp-attentive")
# The convolutions of these rows before the preset's U-Net and its noise of several Gaussians.
STACK: dict[str, Any] = {
    "convolution.kernel": 5,
    "convolution.blocks": 6,
    "convolution.levels": 1,
    "convolution.patch": 1,
    "convolution.dense": False,
    "likelihood.components": 1,
    "likelihood.shared_std": True,
    "likelihood.joint_share": 0.5,
}
LONG, LONG_STEPS = "nvdp-conv-long", 7_000  # a longer run on MNIST, at the cpu budget only
# As shipped, at the cpu budget: models with convolutions as the preset has them, others with its noise added.
SHIPPED_STEPS = {
    "mnist": {"nvdp-conv": 3_000, "convcnp": 3_000, "nvdp": 12_000, "cnp": 12_000},
    "celeba": {"nvdp-conv": 2_500, "convcnp": 2_500},
}
SHIPPED = tuple(f"{name}-mixture" for name in SHIPPED_STEPS["mnist"])
# Longer runs: after 200 seconds on validation images of CelebA Muon and a second block were ahead.
LONGEST, LONGEST_STEPS = "nvdp-conv-mixture-long", {"mnist": 5_000, "celeba": 8_000}
LONGEST_RUN: dict[str, Any] = {"optimizer": "muon", "learning_rate": 3e-3}


def plan(budget: str) -> Sequence[PlannedRun]:
    """All models on each set, learned variance, one seed; equal steps for the paper's models."""
    rows = [_run(task, name, budget, _steps(task, name, budget)) for task in STEPS for name in (*NAMES, *READING_NAMES)]
    if budget != "cpu":
        return rows
    longer = replace(_run("mnist", "nvdp-conv", budget, LONG_STEPS), name=f"{LONG}-mnist")
    shipped = [_shipped(task, name) for task, names in SHIPPED_STEPS.items() for name in names]
    return [*rows, longer, *shipped, *(_longest(task) for task in LONGEST_STEPS)]


def _run(task: str, name: str, budget: str, steps: int) -> PlannedRun:
    """A run of the paper's network and Adam; at the cpu budget the convolutions are those of before the preset's."""
    adam: dict[str, Any] = {} if budget == "paper" else {"optimizer": "adam", "learning_rate": 1e-3}
    architecture, run = (papers(FOURIER), adam) if name in NAMES else ({}, {})
    if name == "nvdp-conv" and budget == "cpu":
        architecture = STACK | {"encoder.size": {"mnist": 128, "celeba": 1_024}[task]}
        run = adam | {"warmup_steps": 500}
    config = preset_config(task, name, budget, data=NO_DATA, architecture=architecture, steps=steps, **run)
    return _scored(task, name, budget, config)


def _shipped(task: str, name: str) -> PlannedRun:
    """A run with noise of several Gaussians."""
    data, steps = _contexts(task), SHIPPED_STEPS[task][name]
    config = preset_config(task, name, "cpu", data=data, architecture=MIXTURE, steps=steps)
    return _scored(task, f"{name}-mixture", "cpu", config)


def _longest(task: str) -> PlannedRun:
    """The same with convolutions, Muon and two blocks a stage."""
    settings = {"architecture": {"convolution.blocks": 2}, "steps": LONGEST_STEPS[task], **LONGEST_RUN}
    return _scored(task, LONGEST, "cpu", preset_config(task, "nvdp-conv", "cpu", data=_contexts(task), **settings))


def _contexts(task: str) -> DataConfig | None:
    """On MNIST the preset's contexts of up to all pixels, for what is shipped; else those of the paper."""
    return None if task == "mnist" else NO_DATA


def _scored(task: str, name: str, budget: str, config: RunConfig) -> PlannedRun:
    return PlannedRun(f"{name}-{task}", config, TASKS[task][budget], split="test", also_on=TRANSFER[task])


def _steps(task: str, name: str, budget: str) -> int:
    steps = STEPS[task][budget]
    return READING_STEPS[task].get(name, steps) if budget == "cpu" else steps


TABLE2 = Experiment("table2", "Table 2: six models on MNIST, MNIST → Omniglot and CelebA", plan)
