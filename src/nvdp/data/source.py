"""What a source of tasks answers: a training batch for a step, and a fixed validation set in chunks."""

from collections.abc import Iterator
from typing import Protocol

from nvdp.tasks import TaskBatch

VALIDATION_CHUNK = 64  # tasks drawn from one generator; part of the validation sets' definition


class TaskSource(Protocol):
    """Tasks of one family."""

    @property
    def name(self) -> str:
        """The name that ``nvdp train`` takes."""
        ...

    @property
    def x_dim(self) -> int:
        """Features of an input."""
        ...

    @property
    def y_dim(self) -> int:
        """Values of an output."""
        ...

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """The tasks of one training step; the same arguments give the same tasks."""
        ...

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """`VALIDATION_CHUNK` tasks of the validation set that `seed` names."""
        ...


def validation_tasks(source: TaskSource, seed: int, tasks: int) -> Iterator[TaskBatch]:
    """The first `tasks` tasks of a validation set, chunk by chunk; a longer set begins with a shorter one."""
    for chunk in range((tasks + VALIDATION_CHUNK - 1) // VALIDATION_CHUNK):
        yield source.validation_chunk(seed, chunk).first(tasks - chunk * VALIDATION_CHUNK)
