"""Tasks held in memory, of any size: every training step shows some of their points as context, others as targets.

A small number of tasks is stretched in three ways: a task is cut into a new context each time, its points are jittered,
and its outputs are moved and scaled as a whole, so that a model cannot learn the tasks by heart.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.errors import InputError
from nvdp.randomness import derived_generator
from nvdp.tasks import PartialTask, Task, TaskBatch

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
    forecasts: float = 0.0  # share of the tasks whose context is what comes first in x

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
        return TaskBatch.collate([self.cut(self.sets[index], generator, augmented=True) for index in chosen])

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """The tasks in turn, again and again, each time with another context."""
        generator = derived_generator(seed, "frames", "validation", chunk)
        numbers = range(chunk * VALIDATION_CHUNK, (chunk + 1) * VALIDATION_CHUNK)
        held = self._held()
        return TaskBatch.collate(
            [self._split(*held[n % len(held)], (n // len(held)) % CONTEXTS, generator) for n in numbers]
        )

    def scored_batches(self, seed: int, most: int = MOST_SCORED) -> list[TaskBatch]:
        """The first tasks, each with `CONTEXTS` contexts of growing size, as one batch: a fixed set to score on."""
        generator = derived_generator(seed, "frames", "contexts")
        held = self._held()[:most]
        return [TaskBatch.collate([self._split(x, y, k, generator) for x, y in held for k in range(CONTEXTS)])]

    def _split(self, x: Tensor, y: Tensor, index: int, generator: torch.Generator) -> Task:
        """Contexts that come first in x, or at random, or both in turn."""
        return split_task(x, y, index, generator, self.forecasts == 1 or (self.forecasts > 0 and index % 2 == 1))

    def _held(self) -> tuple[tuple[Tensor, Tensor], ...]:
        if not self.sets:
            raise InputError("the task csv is a table of your own; fit a model to it by `nvdp fit FILE`")
        return self.sets

    def cut(self, task: tuple[Tensor, Tensor], generator: torch.Generator, augmented: bool = False) -> Task:
        """A task for training: some of its points, of which the first are the context.

        Args:
            task: Its inputs and outputs.
            generator: Of the order and the size of the context.
            augmented: Move the points as `augmentation` says.
        """
        x, y = task
        order = torch.randperm(len(x), generator=generator)[:MOST_POINTS]
        if self.forecasts and float(torch.rand((), generator=generator)) < self.forecasts:
            order = order[x[order, 0].argsort(stable=True)]
        x, y = x[order], y[order]
        if augmented:
            x, y = self._moved(x, y, generator)
        size = int(torch.randint(len(x), (), generator=generator))
        return PartialTask(x[:size], y[:size], x[size:], y[size:])

    def _moved(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        by = self.augmentation
        if by.stretch or by.shift:
            stretch = torch.exp(by.stretch * torch.randn(1, y.shape[1], generator=generator))
            y = y * stretch + by.shift * torch.randn(1, y.shape[1], generator=generator)
        if by.jitter:
            x = x + by.jitter * torch.randn(x.shape, generator=generator)
            y = y + by.jitter * torch.randn(y.shape, generator=generator)
        return x, y


def split_task(x: Tensor, y: Tensor, index: int, generator: torch.Generator, prefix: bool = False) -> Task:
    """A task with the index-th of `CONTEXTS` context sizes, from 1 point to all but one and at most half of 100.

    The context is chosen at random or, with `prefix`, is what comes first in x.
    """
    most = max(1, min(len(x) - 1, MOST_POINTS // 2))
    size = 1 + round((most - 1) * (index / max(1, CONTEXTS - 1)) ** 2)  # more small contexts than large ones
    order = torch.randperm(len(x), generator=generator)
    if prefix:
        order = order[x[order, 0].argsort(stable=True)]
    context, target = order[:size], order[size : size + MOST_TARGETS]
    return PartialTask(x[context], y[context], x[target], y[target])


MOST_SHOTS, MOST_QUERIES = 10, 15  # of a class in one step
MOST_CLASS_SCORED, SPLITS = 48, 4  # tasks in the set that a fit is stopped by, and how often each is cut
LabelledSet = tuple[Float[Tensor, "_ x"], Int[Tensor, " _"]]


@dataclass(frozen=True)
class ClassFrameTasks:
    """Tasks (x, class numbers); a class needs two points to be learned from, a task two such classes.

    >>> x, classes = torch.randn(12, 3), torch.arange(12) % 4
    >>> batch = ClassFrameTasks(((x, classes),)).training_batch(seed=0, step=0, tasks=8)
    >>> batch.x.shape[0], batch.y.shape[2], bool((batch.context.y.sum(1) >= 1).all())
    (8, 4, True)
    """

    name: ClassVar[str] = "csv"
    sets: tuple[LabelledSet, ...]

    @cached_property
    def members(self) -> tuple[tuple[Tensor, ...], ...]:
        """For each task, the places of the points of each class that has at least two."""
        found = []
        for _, classes in self.sets:
            places = [torch.nonzero(classes == number)[:, 0] for number in classes.unique()]
            found.append(tuple(each for each in places if len(each) > 1))
        return tuple(found)

    @property
    def x_dim(self) -> int:
        """Features of a point."""
        return self.sets[0][0].shape[1]

    @property
    def y_dim(self) -> int:
        """The largest number of classes of a task."""
        return max(map(len, self.members))

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Tasks drawn with replacement, all with as many classes as the first of them has."""
        generator = derived_generator(seed, "class frames", "train", step)
        usable = [index for index, members in enumerate(self.members) if len(members) > 1]
        if not usable:
            raise InputError("no task has 2 classes with 2 points each; learning to classify needs at least one")
        first = usable[int(torch.randint(len(usable), (), generator=generator))]
        way = len(self.members[first])
        large = [index for index in usable if len(self.members[index]) >= way]
        chosen = torch.randint(len(large), (tasks - 1,), generator=generator).tolist()
        return TaskBatch.collate([self._cut(i, way, generator) for i in [first, *(large[place] for place in chosen)]])

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """The same as a training batch, of other random numbers."""
        return self.training_batch(seed + 1, chunk, VALIDATION_CHUNK)

    def scored_batches(self, seed: int) -> list[TaskBatch]:
        """The first tasks, each cut `SPLITS` times, in batches of one number of classes: a fixed set to score on."""
        generator = derived_generator(seed, "class frames", "splits")
        by_way: dict[int, list[Task]] = defaultdict(list)
        for index, members in enumerate(self.members[:MOST_CLASS_SCORED]):
            if len(members) > 1:
                by_way[len(members)] += [self._cut(index, len(members), generator) for _ in range(SPLITS)]
        return [TaskBatch.collate(tasks) for tasks in by_way.values()]

    def _cut(self, index: int, way: int, generator: torch.Generator) -> Task:
        x, members = self.sets[index][0], self.members[index]
        classes = torch.randperm(len(members), generator=generator)[:way].tolist()
        fewest = min(len(members[number]) for number in classes)
        shots = int(torch.randint(1, min(MOST_SHOTS, fewest - 1) + 1, (), generator=generator))
        parts: dict[str, list[Tensor]] = defaultdict(list)
        for number, place in enumerate(classes):
            rows = members[place][torch.randperm(len(members[place]), generator=generator)]
            for role, taken in (("context", rows[:shots]), ("target", rows[shots : shots + MOST_QUERIES])):
                parts[f"x_{role}"].append(x[taken])
                parts[f"y_{role}"].append(F.one_hot(torch.full_like(taken, number), way).to(x.dtype))
        return Task(**{name: torch.cat(part) for name, part in parts.items()})
