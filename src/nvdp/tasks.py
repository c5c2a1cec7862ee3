"""Tasks: a context set D_C and a whole set D of points of one unknown function (section 2 of the paper).

Tasks of different sizes share a batch through masks. A padded entry is zero and never reaches a result.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nvdp.errors import InputError


def as_points(values: Any, name: str, missing: bool = False) -> Float[Tensor, "point feature"]:
    """A finite float matrix of shape (points, features); anything else is refused with its shape.

    A flat list of numbers is one feature. Integers become float32, float64 stays float64.
    """
    tensor = as_tensor(values, name)
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if tensor.dim() != 2:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}; expected (points, features)")
    check_finite(tensor, name, missing)
    return tensor


def as_tensor(values: Any, name: str) -> Tensor:
    """A floating-point tensor of anything that is an array of numbers."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # PyTorch warns of tensors that share such memory
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def check_finite(tensor: Tensor, name: str, missing: bool = False) -> None:
    """Refuse NaN, unless values may be missing, and infinity, quoting the first place."""
    if missing:
        tensor = tensor.nan_to_num(0.0, math.inf, -math.inf)
    if math.isfinite(tensor.detach().sum()):  # a fifth of the time of a look at every value; huge ones may overflow
        return
    if not torch.isfinite(tensor).all():
        bad = torch.nonzero(~torch.isfinite(tensor))[0]
        value = tensor[tuple(bad)].item()
        raise InputError(f"{name} holds {value} at index {tuple(bad.tolist())}; all values must be finite")


@dataclass(frozen=True)
class PointSet:
    """Sets of points (x, y), one per task; `mask` says which entries are real."""

    x: Float[Tensor, "task point x"]
    y: Float[Tensor, "task point y"]
    mask: Bool[Tensor, "task point"]

    @property
    def count(self) -> Float[Tensor, " task"]:
        """How many points each task has."""
        return self.mask.sum(-1).to(self.x.dtype)

    def like(self, other: Tensor) -> Self:
        """The same points in the precision and on the device of another tensor."""
        same_precision = self.x.dtype == self.y.dtype == other.dtype
        if same_precision and self.x.device == self.y.device == self.mask.device == other.device:
            return self
        return replace(self, x=self.x.to(other), y=self.y.to(other), mask=self.mask.to(other.device))

    def compact(self) -> Self:
        """The same points without entries that are padding in every task."""
        used = self.mask.any(0)
        return self if used.all() else replace(self, x=self.x[:, used], y=self.y[:, used], mask=self.mask[:, used])

    def copy(self) -> Self:
        """The same points in arrays of their own, without gradients."""
        return replace(self, x=self.x.detach().clone(), y=self.y.detach().clone(), mask=self.mask.clone())

    @classmethod
    def of(cls, x: Any, y: Any, mask: Tensor | None = None, missing: bool = False) -> Self:
        """Point sets from arrays: (points, features) for one task, (tasks, points, features) for several.

        With `missing` an output may be NaN.

        >>> PointSet.of([[0.0], [1.0]], [[2.0], [3.0]]).x.shape
        torch.Size([1, 2, 1])
        """
        if y is None:
            raise InputError("a context needs both x and y; y is missing")
        x, y = as_tensor(x, "x"), as_tensor(y, "y")
        checked = x.dim() < 3
        if checked:
            x, y = as_points(x, "x")[None], as_points(y, "y", missing)[None]
        if x.dim() != 3 or y.dim() != 3:
            raise InputError(
                f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; expected (tasks, points, features) for both"
            )
        if x.shape[:2] != y.shape[:2]:
            raise InputError(
                f"x has shape {tuple(x.shape)} but y has shape {tuple(y.shape)}; "
                f"x holds {x.shape[1]} points a task and y {y.shape[1]}"
            )
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        mask = torch.as_tensor(mask, dtype=torch.bool, device=x.device)
        if mask.shape != x.shape[:2]:
            raise InputError(f"mask has shape {tuple(mask.shape)}; expected {tuple(x.shape[:2])}")
        if not checked:
            check_finite(x, "x")
            check_finite(y, "y", missing)
        return cls(x, y, mask)


@dataclass(frozen=True)
class Task:
    """One task: a context to adapt to and targets to predict. The context may be empty (the prior).

    >>> task = Task(x_context=[0.0, 1.0], y_context=[1.0, 2.0], x_target=[0.5], y_target=[1.4])
    >>> task.x_context.shape, task.x_target.shape
    (torch.Size([2, 1]), torch.Size([1, 1]))
    """

    x_context: Any
    y_context: Any
    x_target: Any
    y_target: Any
    missing: ClassVar[bool] = False  # whether an output may be NaN

    def __post_init__(self) -> None:
        for field in fields(self):
            missing = self.missing and field.name.startswith("y")
            object.__setattr__(self, field.name, as_points(getattr(self, field.name), field.name, missing))
        for part in ("context", "target"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                raise InputError(
                    f"x_{part} has shape {tuple(x.shape)} but y_{part} has shape {tuple(y.shape)}; "
                    f"{len(x)} inputs need {len(x)} outputs"
                )
        for part in ("x", "y"):
            context, target = getattr(self, f"{part}_context"), getattr(self, f"{part}_target")
            if context.shape[1] != target.shape[1]:
                raise InputError(
                    f"{part}_context has {context.shape[1]} features but {part}_target has {target.shape[1]}"
                )


class PartialTask(Task):
    """A task in which some of several outputs of a point may be missing: NaN."""

    missing: ClassVar[bool] = True


@dataclass(frozen=True)
class TaskBatch:
    """Several tasks as one array of points; the context is a subset of the points of the whole task."""

    x: Float[Tensor, "task point x"]
    y: Float[Tensor, "task point y"]
    is_context: Bool[Tensor, "task point"]
    mask: Bool[Tensor, "task point"]

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def context(self) -> PointSet:
        """D_C, what a model adapts to; entries behind the last context point of any task are left out."""
        used = self.is_context.any(0).nonzero()
        last = int(used[-1]) + 1 if len(used) else 0
        return PointSet(self.x[:, :last], self.y[:, :last], self.is_context[:, :last])

    @property
    def target(self) -> PointSet:
        """The points outside the context."""
        return PointSet(self.x, self.y, self.mask & ~self.is_context)

    @property
    def whole(self) -> PointSet:
        """D, context and targets together."""
        return PointSet(self.x, self.y, self.mask)

    def to(self, target: torch.device | torch.dtype | str) -> Self:
        """The same tasks on another device or, for the values, in another precision."""
        changed = {
            field.name: value.to(target)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
            and (value.is_floating_point() or not isinstance(target, torch.dtype))
        }
        return replace(self, **changed)

    def first(self, tasks: int) -> Self:
        """The first tasks of the batch."""
        return replace(self, **{field.name: getattr(self, field.name)[:tasks] for field in fields(self)})

    @classmethod
    def first_points_as_context(
        cls, x: Float[Tensor, "task point x"], y: Float[Tensor, "task point y"], size: int
    ) -> Self:
        """Tasks without padding whose first `size` points are the context."""
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        is_context = mask.clone()
        is_context[:, size:] = False
        return cls(x, y, is_context, mask)

    @classmethod
    def collate(cls, tasks: Sequence[Task]) -> Self:
        """One batch of tasks of different sizes, padded with zeros.

        >>> short = Task([[0.0]], [[1.0]], [[1.0]], [[1.0]])
        >>> long = Task([[0.0], [1.0]], [[1.0], [1.0]], [[2.0], [3.0]], [[0.0], [0.0]])
        >>> TaskBatch.collate([short, long]).mask.sum(-1)
        tensor([2, 4])
        """
        if not tasks:
            raise InputError("a batch needs at least one task; got 0")
        widths = {(task.x_context.shape[1], task.y_context.shape[1]) for task in tasks}
        if len(widths) > 1:
            raise InputError(f"tasks of one batch must share their (x, y) widths; got {sorted(widths)}")
        xs = [torch.cat([task.x_context, task.x_target]) for task in tasks]
        ys = [torch.cat([task.y_context, task.y_target]) for task in tasks]
        position = torch.arange(max(len(x) for x in xs))
        sizes = torch.tensor([len(x) for x in xs])
        contexts = torch.tensor([len(task.x_context) for task in tasks])
        return cls(
            torch.nn.utils.rnn.pad_sequence(xs, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(ys, batch_first=True),
            position < contexts[:, None],
            position < sizes[:, None],
        )

    def __iter__(self) -> Iterator[Task]:
        for x, y, is_context, mask in zip(self.x, self.y, self.is_context, self.mask, strict=True):
            is_target = mask & ~is_context
            yield Task(x[is_context], y[is_context], x[is_target], y[is_target])
