"""Sources of tasks: what each family provides, and the settings of those that read a folder of images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nvdp.errors import InputError
from nvdp.tasks import TaskBatch

SMALLEST_SIZE = 4


@dataclass(frozen=True)
class DataConfig:
    """The data of the tasks ``images`` and ``folder-of-classes``, and how contexts of images are drawn."""

    folder: str | None = None
    size: int = 32  # pictures are cut to a square and resized to size × size
    channels: int | None = None  # 1 or 3 converts every picture; None: as the files are, which must then agree
    any_context: float = 0.0  # share of the training steps whose contexts have up to all pixels of an image, not 197

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < SMALLEST_SIZE:
            raise InputError(f"data setting 'size' is {self.size!r}; expected a whole number of at least 4")
        if self.channels not in (None, 1, 3):
            raise InputError(f"data setting 'channels' is {self.channels!r}; expected 1 (grey) or 3 (colour)")
        if not isinstance(self.any_context, int | float) or not 0 <= self.any_context <= 1:
            raise InputError(f"data setting 'any_context' is {self.any_context!r}; expected a number from 0 to 1")


NO_DATA = DataConfig()
ANY_CONTEXT = DataConfig(any_context=0.125)  # of our presets of convolutions: others do not go wild with more pixels
VALIDATION_CHUNK = 64  # tasks drawn from one generator; another number gives other validation sets


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
