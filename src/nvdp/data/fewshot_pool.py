"""The images of one split class by class, or their features: what episodes are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

QUARTER_TURNS = 4


@dataclass(frozen=True, eq=False)
class ClassPool:
    """Points of a split, those of a class together.

    `points` are uint8 images (image, row, column, channel) or float features (image, feature), perhaps mapped from a
    file. With `turned`, every class turned by 90, 180 and 270 degrees is a class of its own: class r · C + c shows
    class c after r quarter turns.

    >>> pool = ClassPool(np.zeros((5, 2, 2, 1), np.uint8), np.array([2, 3]), ("a", "b"), turned=True)
    >>> pool.classes, pool.name(3), pool.vectors(np.array([3]), np.array([[2, 0]])).shape
    (8, 'b turned by 90°', torch.Size([1, 2, 4]))
    """

    points: np.ndarray
    counts: Int[np.ndarray, " class"]  # images of each class
    names: Sequence[str]
    turned: bool = False

    @property
    def classes(self) -> int:
        """How many classes there are, turned ones included."""
        return len(self.names) * (QUARTER_TURNS if self.turned else 1)

    @property
    def features(self) -> int:
        """Numbers of a point."""
        return int(np.prod(self.points.shape[1:]))

    @property
    def class_counts(self) -> Int[np.ndarray, " any_class"]:
        """Images of each class, turned ones included."""
        return np.tile(self.counts, self.classes // len(self.names))

    def name(self, index: int) -> str:
        """What a class is called."""
        turns, base = divmod(index, len(self.names))
        return f"{self.names[base]} turned by {90 * turns}°" if turns else self.names[base]

    def vectors(
        self, classes: Int[np.ndarray, " *group"], places: Int[np.ndarray, "*group image"]
    ) -> Float[Tensor, "*group image feature"]:
        """The images at these places of these classes: intensities in [0, 1], channel by channel; or the features."""
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        turns, base = np.divmod(classes, len(self.names))
        rows = (starts[base][..., None] + places).ravel()
        if self.points.ndim == 2:
            return torch.from_numpy(self.points[rows].astype(np.float32, copy=False)).reshape(*places.shape, -1)
        return image_vectors(self.points[rows], np.repeat(turns.ravel(), places.shape[-1])).reshape(*places.shape, -1)

    def every_class(self, batch: int) -> "list[tuple[int, np.ndarray]]":
        """All images as (class, places) in order of the classes, at most `batch` places at a time."""
        return [
            (index, np.arange(start, min(start + batch, count)))
            for index, count in enumerate(self.class_counts.tolist())
            for start in range(0, count, batch)
        ]


def image_vectors(images: np.ndarray, turns: Int[np.ndarray, " image"] | None = None) -> Float[Tensor, "image feature"]:
    """Images as rows of intensities in [0, 1], channel by channel, each after so many quarter turns.

    >>> turned = image_vectors(np.array([[[[255], [0]], [[0], [0]]]], np.uint8), np.array([1]))
    >>> turned.tolist()  # the top left corner goes to the bottom left
    [[0.0, 0.0, 1.0, 0.0]]
    """
    if turns is not None and turns.any():
        images = images.copy()
        for turn in range(1, QUARTER_TURNS):
            these = turns == turn
            images[these] = np.rot90(images[these], turn, axes=(1, 2))
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    return torch.from_numpy(np.divide(planes, 255, dtype=np.float32))


class ClassSource(Protocol):
    """Square images (or their features) by class, in three splits that share no class."""

    @property
    def name(self) -> str:
        """The name of the task."""
        ...

    @property
    def size(self) -> int:
        """Rows, and columns, of an image."""
        ...

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        ...

    @property
    def features(self) -> int:
        """Numbers of a point as episodes show it."""
        ...

    def split(self, name: str) -> ClassPool:
        """The classes of "train", "validation" or "test"."""
        ...
