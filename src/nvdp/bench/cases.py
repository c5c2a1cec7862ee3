"""A training step as a case to measure: its shape, and the library's and the naive version's step for it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nvdp.bench.naive import NaiveNVDP
from nvdp.bench.naive_process import NaiveNeuralProcess
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.loop import Trainer, TrainingStep, build_optimizer
from nvdp.training.presets import preset_config

Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One training step: a model with the paper's architecture but for width and layers, and a batch's shape."""

    model: str = "nvdp"
    shape: str = "gp"
    tasks: int = 16
    points: int = 75  # of each task, context included
    context: int = 50
    x_dim: int = 1
    y_dim: int = 1
    width: int = 128
    layers: int = 4
    representation: int = 128
    encoder_width: int | None = None

    @property
    def config(self) -> ModelConfig:
        """The model."""
        return ModelConfig(self.model, self.x_dim, self.y_dim).updated(
            {
                "decoder.width": self.width,
                "decoder.layers": self.layers,
                "encoder.size": self.representation,
                "encoder.width": self.encoder_width,
            }
        )

    @property
    def recipe(self) -> RunConfig:
        """Objective, KL scale and learning rate: the paper's."""
        return preset_config("gp", self.model, "paper")

    def batch(self) -> TaskBatch:
        """Random points: what they say does not change how long a step takes.

        >>> Case(points=7, context=3).batch().x.shape
        torch.Size([16, 7, 1])
        """
        generator = derived_generator(0, "bench")
        x = torch.rand(self.tasks, self.points, self.x_dim, generator=generator) * 4 - 2
        y = torch.randn(self.tasks, self.points, self.y_dim, generator=generator)
        return TaskBatch.first_points_as_context(x, y, self.context)

    def columns(self) -> dict[str, Any]:
        """The entries that name this case in a row."""
        return asdict(self)


def our_step(case: Case, engine: str = "fused") -> Step:
    """A step of the training loop."""
    model, tasks, recipe = build_model(case.config), case.batch(), case.recipe
    optimizer = build_optimizer(recipe.optimizer, model.parameters(), recipe.learning_rate)
    inputs = (tasks.x, tasks.y, tasks.is_context, tasks.mask, derived_generator(0, "bench noise"))
    module = TrainingStep(model, recipe.objective, recipe.kl, engine)
    trainer = Trainer(recipe, model, module, optimizer, lambda step: inputs)

    def step() -> None:
        trainer.take_step()

    return step


def naive_step(case: Case) -> Step:
    """The same with the naive model and an optimiser that visits one parameter after the other."""
    model, tasks, recipe = naive_model(case.config), case.batch(), case.recipe
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, foreach=False)
    noise = derived_generator(0, "bench noise")

    def step() -> None:
        loss = -model.bound(tasks.x, tasks.y, case.context, recipe.kl, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def naive_model(config: ModelConfig) -> NaiveNVDP | NaiveNeuralProcess:
    """The naive version of a model."""
    return NaiveNVDP(config) if config.name == "nvdp" else NaiveNeuralProcess(config)


STEPS: dict[str, Callable[[Case], Step]] = {"ours": our_step, "autograd": naive_step}
