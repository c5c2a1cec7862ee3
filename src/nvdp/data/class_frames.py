"""Tasks of classification held in memory: labelled vectors, any number of classes, support and queries drawn anew.

The tasks of one training step share a number of classes; of a task with more, that many are drawn.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.errors import InputError
from nvdp.randomness import derived_generator
from nvdp.tasks import Task, TaskBatch

MOST_SHOTS, MOST_QUERIES = 10, 15  # of a class in one step
MOST_SCORED, SPLITS = 48, 4  # tasks in the set that a fit is stopped by, and how often each is cut
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

    def all_splits(self, seed: int) -> Sequence[TaskBatch]:
        """The first tasks, each cut `SPLITS` times, in batches of one number of classes: a fixed set to score on."""
        generator = derived_generator(seed, "class frames", "splits")
        by_way: dict[int, list[Task]] = defaultdict(list)
        for index, members in enumerate(self.members[:MOST_SCORED]):
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
