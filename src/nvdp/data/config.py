"""What a task's name alone does not say: the folder of pictures, their size and their channels."""

from dataclasses import dataclass

from nvdp.errors import InputError

SMALLEST_SIZE = 4


@dataclass(frozen=True)
class DataConfig:
    """The data of a run whose task is ``images``; the other tasks need none of it."""

    folder: str | None = None
    size: int = 32  # pictures are cut to a square and resized to size × size
    channels: int | None = None  # 1 or 3 takes every picture to it; None as the files are, which must then agree

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < SMALLEST_SIZE:
            raise InputError(f"data setting 'size' is {self.size!r}; expected a whole number of at least 4")
        if self.channels not in (None, 1, 3):
            raise InputError(f"data setting 'channels' is {self.channels!r}; expected 1 (grey) or 3 (colour)")


NO_DATA = DataConfig()
