"""Tasks held in memory, of any size: every training step shows some of their points as context, others as targets.

A small number of tasks is stretched in three ways: a task is cut into a new context each time, its points are jittered,
and its outputs are moved and scaled as a whole, so that a model cannot learn the tasks by heart.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.errors import InputError
from nvdp.randomness import derived_generator
from nvdp.tasks import Task, TaskBatch

MOST_POINTS = 100  # of a task in one training step
MOST_TARGETS = 400  # of a task in validation
MOST_SCORED = 48  # tasks in the set that a fit is stopped by
CONTEXTS = 8  # different contexts of each held-out task, spread over the sizes that it allows


@dataclass(frozen=True)
class Augmentation:
    """How far tasks are moved, in units of the standardised data: points one by one, and outputs as a whole."""

    jitter: float = 0.0  # standard deviation added to every input and output
    shift: float = 0.0  # of the outputs of a task, together
    stretch: float = 0.0  # of their scale, as a logarithm

    def __post_init__(self) -> None:
        for name in ("jitter", "shift", "stretch"):
            if not 0 <= getattr(self, name) < 10:
                raise InputError(f"augmentation '{name}' is {getattr(self, name)}; expected a number from 0 to 10")


@dataclass(frozen=True)
class FrameTasks:
    """Tasks (x, y) in standardised units, each with at least two points.

    >>> tasks = FrameTasks(((torch.randn(5, 2), torch.randn(5, 1)), (torch.randn(9, 2), torch.randn(9, 1))))
    >>> tasks.x_dim, tasks.training_batch(seed=0, step=0, tasks=16).x.shape[0]
    (2, 16)
    """

    name: ClassVar[str] = "csv"
    sets: tuple[tuple[Float[Tensor, "_ x"], Float[Tensor, "_ y"]], ...] = ()
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        for x, _ in self.sets:
            if len(x) < 2:
                raise InputError(f"a task to learn from has {len(x)} points; expected at least 2")

    @property
    def x_dim(self) -> int:
        """Features of an input."""
        return self.sets[0][0].shape[1] if self.sets else 1

    @property
    def y_dim(self) -> int:
        """Values of an output."""
        return self.sets[0][1].shape[1] if self.sets else 1

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Tasks drawn with replacement; of each up to `MOST_POINTS` points, S ~ U{0..N−1} of them the context."""
        generator = derived_generator(seed, "frames", "train", step)
        chosen = torch.randint(len(self._held()), (tasks,), generator=generator).tolist()
        return TaskBatch.collate([self._cut(index, generator) for index in chosen])

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """The tasks in turn, again and again, each time with another context."""
        generator = derived_generator(seed, "frames", "validation", chunk)
        numbers = range(chunk * VALIDATION_CHUNK, (chunk + 1) * VALIDATION_CHUNK)
        held = self._held()
        return TaskBatch.collate(
            [split_task(*held[n % len(held)], (n // len(held)) % CONTEXTS, generator) for n in numbers]
        )

    def all_contexts(self, seed: int) -> TaskBatch:
        """The first tasks, each with `CONTEXTS` contexts of growing size, as one batch: a fixed set to score on."""
        generator = derived_generator(seed, "frames", "contexts")
        held = self._held()[:MOST_SCORED]
        return TaskBatch.collate([split_task(x, y, k, generator) for x, y in held for k in range(CONTEXTS)])

    def _held(self) -> tuple[tuple[Tensor, Tensor], ...]:
        if not self.sets:
            raise InputError("the task csv is a table of your own; fit a model to it by `nvdp fit FILE`")
        return self.sets

    def _cut(self, index: int, generator: torch.Generator) -> Task:
        x, y = self.sets[index]
        order = torch.randperm(len(x), generator=generator)[:MOST_POINTS]
        x, y = self._moved(x[order], y[order], generator)
        size = int(torch.randint(len(x), (), generator=generator))
        return Task(x[:size], y[:size], x[size:], y[size:])

    def _moved(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        by = self.augmentation
        if by.stretch or by.shift:
            stretch = torch.exp(by.stretch * torch.randn(1, y.shape[1], generator=generator))
            y = y * stretch + by.shift * torch.randn(1, y.shape[1], generator=generator)
        if by.jitter:
            x = x + by.jitter * torch.randn(x.shape, generator=generator)
            y = y + by.jitter * torch.randn(y.shape, generator=generator)
        return x, y


def split_task(x: Tensor, y: Tensor, index: int, generator: torch.Generator) -> Task:
    """A task with the index-th of `CONTEXTS` context sizes, from 1 point to all but one and at most half of 100."""
    most = max(1, min(len(x) - 1, MOST_POINTS // 2))
    size = 1 + round((most - 1) * (index / max(1, CONTEXTS - 1)) ** 2)  # more small contexts than large ones
    order = torch.randperm(len(x), generator=generator)
    context, target = order[:size], order[size : size + MOST_TARGETS]
    return Task(x[context], y[context], x[target], y[target])
