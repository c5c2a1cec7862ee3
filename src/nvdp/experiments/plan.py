"""A planned run: a configuration and how to score it. Runs with the same configuration share one folder."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.models.config import ModelConfig
from nvdp.training.config import RunConfig
from nvdp.training.presets import FOURIER

BUDGETS = ("quick", "cpu", "paper")


@dataclass(frozen=True)
class PlannedRun:
    """One row of a table: its name, what to train, on how many validation tasks to score it.

    Images are scored on a `split`, and perhaps on the test images of further sets (transfer).
    """

    name: str
    config: RunConfig
    tasks: int
    split: str = "validation"
    also_on: tuple[str, ...] = ()
    validation_seed: int = VALIDATION_SEED  # another one for tasks that choices are made by

    def folder(self, runs: Path) -> Path:
        """Where the run lives: the same configuration gives the same place, in later versions too."""
        digest = hashlib.sha256(json.dumps(self.config.choices(), sort_keys=True).encode()).hexdigest()[:10]
        return runs / f"{self.config.task}-{self.config.model.name}-{digest}"


def paper_architecture(config: RunConfig, changes: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """The same run with the paper's regression model, without what was added to it here, but for some changes."""
    assert isinstance(config.model, ModelConfig)
    paper = ModelConfig().flat()
    plain = {name: paper[name] for name in ("encoder.task_norm", "rates.norm", *FOURIER)}
    return replace(config, optimizer="adam", model=config.model.updated(plain | dict(changes)))


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its runs for a budget, and what to draw once they are done."""

    name: str
    summary: str
    plan: Callable[[str], Sequence[PlannedRun]]
    collect: Callable[[Mapping[str, Path]], Any] | None = None  # run folders by name → JSON for the figure
    draw: Callable[[Any, Path], Sequence[Path]] | None = None  # that JSON, a PNG's path → files written
    draw_private: Callable[[Mapping[str, Path]], Sequence[Path]] | None = None  # figures that must stay with the runs
    prepare: Callable[[str, str], None] | None = None  # what runs share, made beforehand: budget, device
