"""Suite ``quality``: log-likelihood against seconds for every model; for NVDP with the paper's recipe beside ours."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from nvdp.data.gp import GPTaskBatch
from nvdp.data.registry import task_source
from nvdp.data.source import validation_tasks
from nvdp.evaluation.metrics import RegressionScores, evaluate
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.training.config import RunConfig
from nvdp.training.loop import trainer_in_memory
from nvdp.training.presets import preset_config

RECIPES = (  # model, preset
    ("nvdp-attentive", "cpu"),
    ("nvdp-conv", "quick"),
    ("convcnp", "quick"),
    ("anp", "cpu"),
    ("nvdp", "cpu"),
    ("nvdp", "paper"),
    ("np+cnp+vp", "cpu"),
    ("np+cnp", "cpu"),
    ("np+vp", "cpu"),
    ("np", "cpu"),
    ("cnp", "cpu"),
)
CHUNK_SECONDS, TRIAL_STEPS, VALIDATION_TASKS, SAMPLES = 2.0, 10, 128, 8
MIN_STD = ModelConfig().likelihood.min_std
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
NOTES = {
    "recipe": "the presets of `nvdp train`; a schedule that ends is stretched to end with the seconds",
    "seconds": "processor time of training alone, data generation included; models take turns, scoring is not counted",
    "LL": f"mean parameters, {VALIDATION_TASKS} validation tasks",
}


@dataclass
class Recipe:
    """A recipe in training, with a clock that runs only while it trains."""

    config: RunConfig
    budget: float  # seconds
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.source = task_source(self.config.task)
        self.trainer = trainer_in_memory(self.config, self.source, lambda: self.spent / self.budget)
        self.model = cast(MetaModel, self.trainer.model)

    def train_until(self, seconds: float) -> None:
        """Train until its own clock shows that many seconds; the schedule follows the clock."""
        self.model.train()
        began = time.process_time() - self.spent
        while self.spent < seconds:
            self.trainer.take_step()
            self.spent = time.process_time() - began

    def row(self, validation: int) -> dict[str, Any]:
        """Its scores at this time."""
        batches = validation_tasks(self.source, VALIDATION_SEED, validation)
        scores = evaluate(self.model, batches, SAMPLES)["scores"]
        ceiling = RegressionScores()
        for tasks in validation_tasks(self.source, VALIDATION_SEED, validation):
            assert isinstance(tasks, GPTaskBatch)
            exact = tasks.oracle(min_std=MIN_STD).log_prob(tasks.y.double())
            ceiling.add_log_likelihoods("oracle", exact, tasks)
        return {
            "model": self.config.model.name,
            "shape": self.config.task,
            "recipe": self.config.preset,
            "seconds": self.spent,
            "steps": self.trainer.step,
            "ours_ms": 1e3 * self.spent / self.trainer.step,
            "autograd_ms": None,
            "floor_ms": None,
            **{name: scores[name]["mean_parameters"] for name in ("LL", "RLL", "PLL")},
            "ceiling_LL": ceiling.scores()["LL"]["oracle"],
        }


def quality_rows(
    seconds: float,
    fractions: Sequence[float] = FRACTIONS,
    validation: int = VALIDATION_TASKS,
    recipes_of: Sequence[tuple[str, str]] = RECIPES,
) -> list[dict[str, Any]]:
    """Train each recipe for that many seconds, in turns, and score all at the same fractions of them."""
    recipes = [_started(model, preset, seconds) for model, preset in recipes_of]
    rows, clock = [], 0.0
    for mark in (fraction * seconds for fraction in fractions):
        while clock < mark:
            clock = min(clock + CHUNK_SECONDS, mark)
            for recipe in recipes:
                recipe.train_until(clock)
        rows += [recipe.row(validation) for recipe in recipes]
    return rows


def _started(model: str, preset: str, seconds: float) -> Recipe:
    """A recipe whose number of steps is what the seconds allow, judged by a trial of a few steps."""
    config = preset_config("gp", model, preset)
    trial = Recipe(config, seconds)
    trial.trainer.take_step()
    began = time.process_time()
    for _ in range(TRIAL_STEPS):
        trial.trainer.take_step()
    steps = max(1, round(seconds * TRIAL_STEPS / (time.process_time() - began)))
    return Recipe(replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 10)), seconds)
