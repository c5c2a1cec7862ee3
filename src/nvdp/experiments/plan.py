"""Experiments as data: which runs a table or figure needs, and how each run is scored."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.models.config import ModelConfig
from nvdp.models.registry import model_spec
from nvdp.training.config import RunConfig
from nvdp.training.preset_rules import FOURIER, OWN
from nvdp.training.presets import preset_config

BUDGETS = ("quick", "cpu", "paper")
# NVDP trained by the paper's bound, its last layer sampled.
USUAL_BOUND = {"likelihood.integrate_plain": False, "likelihood.shared_std": True}
# The presets of models whose targets read the context as they were before each point had a σ of its own. Studies that
# were made with them keep them.
_FORMER_NVDP = {"likelihood.shared_std": True, "likelihood.joint_share": 0.5, "encoder.task_norm": True}
FORMER_READING: dict[str, dict[str, Any]] = {
    "convgnp": {"likelihood.shared_std": True},
    "nvdp-conv": _FORMER_NVDP,
    "nvdp-attentive": _FORMER_NVDP | {"decoder.layers": 2, "rates.floor": 0.01, "rates.per": "task"},
}
# How the presets of models without a reader trained on GP functions before Muon.
FORMER_PLAIN: dict[str, Any] = {"optimizer": "nadam", "muon_rows": RunConfig.muon_rows, "learning_rate": 1e-3}
FORMER_RATES = {("nvdp", "quick"): 2e-3}
ADDED = ("encoder.task_norm", "rates.norm", *USUAL_BOUND)  # to the paper's model, beside FOURIER
TUNING_SEED = 777  # settings are chosen on these validation tasks; published scores are on those of VALIDATION_SEED


@dataclass(frozen=True)
class PlannedRun:
    """One row of a table.

    Args:
        name: Of the row and of its result file.
        config: What to train.
        tasks: Number of tasks to score it on.
        split: Of images or classes to score it on.
        also_on: Further sets of images to score it on (transfer).
        validation_seed: Of the tasks to score it on.
    """

    name: str
    config: RunConfig
    tasks: int
    split: str = "validation"
    also_on: tuple[str, ...] = ()
    validation_seed: int = VALIDATION_SEED

    def folder(self, runs: Path) -> Path:
        """The run's folder under `runs`; runs with the same configuration share it."""
        digest = hashlib.sha256(json.dumps(self.config.choices(), sort_keys=True).encode()).hexdigest()[:10]
        return runs / f"{self.config.task}-{self.config.model.name}-{digest}"


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Args:
        name: What `nvdp reproduce` calls it.
        summary: One line.
        plan: The runs of a budget.
        collect: From the run folders by name, the JSON data of the figure.
        draw: Draws that data to a path; returns the files written.
        draw_private: Draws figures that must stay in the run folders, such as faces of CelebA.
        prepare: Makes what some runs need, for a budget and a device.
    """

    name: str
    summary: str
    plan: Callable[[str], Sequence[PlannedRun]]
    collect: Callable[[Mapping[str, Path]], Any] | None = None
    draw: Callable[[Any, Path], Sequence[Path]] | None = None
    draw_private: Callable[[Mapping[str, Path]], Sequence[Path]] | None = None
    prepare: Callable[[Sequence[PlannedRun], str, str], None] | None = None


def former_preset(
    task: str,
    name: str,
    preset: str,
    variance: str = "learned",
    architecture: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunConfig:
    """A preset on GP functions before Muon and before a σ of each point; committed studies were trained with it.

    Args:
        task: A family of GP functions.
        name: Of the model.
        preset: By its name; those of the paper have not changed.
        variance: learned or fixed.
        architecture: Settings of the model that differ from the preset's.
        changes: Settings of the run that differ from the preset's.

    Returns:
        The configuration.
    """
    settings, run = dict(architecture or {}), dict(changes)
    if preset in OWN:
        settings = FORMER_READING.get(name, {}) | settings
        if model_spec(name).reader is None:
            rate = FORMER_RATES.get((name, preset), FORMER_PLAIN["learning_rate"])
            run = FORMER_PLAIN | {"learning_rate": rate} | run
    return preset_config(task, name, preset, variance, architecture=settings, **run)


def changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The same run with some settings changed.

    Args:
        config: The run.
        changes: New values. A key that begins with "model." is a setting of the model, any other one of the run.

    Returns:
        The changed configuration.
    """
    of_model = {key.removeprefix("model."): value for key, value in changes.items() if key.startswith("model.")}
    of_run = {key: value for key, value in changes.items() if not key.startswith("model.")}
    return replace(config, model=config.model.updated(of_model), **of_run)


def papers(names: Iterable[str]) -> dict[str, Any]:
    """Settings of the paper's regression model, by dotted name."""
    paper = ModelConfig().flat()
    return {name: paper[name] for name in names}


def paper_architecture(config: RunConfig, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The same run with the paper's regression model and Adam.

    Args:
        config: A run of a preset, whose model has additions to the paper's.
        changes: Settings that differ from the paper's, as in `changed`.

    Returns:
        The changed configuration.
    """
    plain = {f"model.{name}": value for name, value in papers((*ADDED, *FOURIER)).items()}
    return changed(config, {"optimizer": "adam", **plain, **(changes or {})})
