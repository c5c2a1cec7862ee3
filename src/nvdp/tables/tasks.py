"""Tasks as people hand them over: a list of (X, y), a long DataFrame, or a generator; made into clean arrays."""

import warnings
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.frames import ClassFrameTasks, FrameTasks
from nvdp.data.tables import Columns, split_tasks
from nvdp.errors import InputError, unknown_name
from nvdp.randomness import derived_generator
from nvdp.tasks import Task
from nvdp.units import Units

if TYPE_CHECKING:
    import pandas as pd

MOST_TASKS = 100_000  # taken from a generator that never ends
HELD_OUT_SHARE = 0.15
Held = TypeVar("Held")
Arrays = tuple[Float[np.ndarray, "point x"], Float[np.ndarray, "point y"]]


def as_matrix(values: Any, name: str) -> Float[np.ndarray, "point column"]:
    """Numbers as a float64 matrix; a flat list is one column. NaN may be in it, infinity not."""
    try:
        matrix = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2:
        raise InputError(f"{name} has shape {matrix.shape}; expected (points, features)")
    if np.isinf(matrix).any():
        raise InputError(f"{name} holds an infinite value in row {int(np.isinf(matrix).any(1).argmax())}")
    return matrix


def whole_rows(x: Any, y: Any, what: str = "the context") -> Arrays:
    """x and y as matrices without the rows in which a value is missing; a warning says how many these were."""
    x, y = as_matrix(x, "X"), as_matrix(y, "y")
    if len(x) != len(y):
        raise InputError(f"X has {len(x)} rows and y {len(y)}; they must agree")
    whole = ~(np.isnan(x).any(1) | np.isnan(y).any(1))
    if not whole.all():
        warnings.warn(f"{what}: left out {int((~whole).sum())} of {len(x)} rows with a missing value", stacklevel=3)
    return x[whole], y[whole]


def as_tasks(
    tasks: Any, task: str | None = None, x: str | Iterable[str] | None = None, y: str | Iterable[str] | None = None
) -> list[Arrays]:
    """The tasks of a list, a frame or a generator; those with fewer than two points are left out with a warning.

    >>> [(a.shape, b.shape) for a, b in as_tasks([([0, 1, 2], [1, 2, 3]), ([5, 6], [0, 1])])]
    [((3, 1), (3, 1)), ((2, 1), (2, 1))]
    """
    if hasattr(tasks, "columns"):
        pairs = _of_frame(tasks, task, x, y)
    else:
        pairs = [_of_pair(each, index) for index, each in enumerate(islice(tasks, MOST_TASKS))]
    usable = [(a, b) for a, b in pairs if len(a) >= 2]
    if len(usable) < len(pairs):
        warnings.warn(
            f"left out {len(pairs) - len(usable)} of {len(pairs)} tasks with fewer than 2 points", stacklevel=3
        )
    widths = sorted({(a.shape[1], b.shape[1]) for a, b in usable})
    if len(widths) > 1:
        raise InputError(f"tasks must share their numbers of inputs and outputs; got {widths}")
    if len(usable) < 2:
        raise InputError(f"{len(usable)} tasks have at least 2 points; learning from tasks needs at least 2 such")
    return usable


def _of_pair(each: Any, index: int) -> Arrays:
    if isinstance(each, Task):
        return whole_rows(
            np.concatenate([each.x_context, each.x_target]), np.concatenate([each.y_context, each.y_target])
        )
    try:
        x, y = each
    except (TypeError, ValueError):
        raise InputError(f"task {index} is a {type(each).__name__}; expected a pair (X, y)") from None
    return whole_rows(x, y, f"task {index}")


def _of_frame(frame: "pd.DataFrame", task: str | None, x: Any, y: Any) -> list[Arrays]:
    if task is None or y is None:
        raise InputError("a DataFrame of tasks needs the names of its columns: task=, y= and, if not all others, x=")
    outputs = (y,) if isinstance(y, str) else tuple(y)
    rest = tuple(str(name) for name in frame.columns if name != task and name not in outputs)
    inputs = rest if x is None else (x,) if isinstance(x, str) else tuple(x)
    table = split_tasks(frame, Columns(task, inputs, outputs), "the frame")
    if table.note:
        warnings.warn(table.note, stacklevel=4)
    return [(each.x, each.y) for each in table.tasks]


def split_held_out(tasks: list[Held], seed: int, share: float = HELD_OUT_SHARE) -> tuple[list[Held], list[Held]]:
    """Whole tasks held out at random, at least one, and the others, at least one."""
    generator = derived_generator(seed, "held-out tasks")
    order = torch.randperm(len(tasks), generator=generator).tolist()
    held = min(max(1, round(share * len(tasks))), len(tasks) - 1)
    return [tasks[index] for index in order[held:]], [tasks[index] for index in order[:held]]


def in_folds(tasks: list[Held], folds: int, seed: int) -> list[tuple[list[Held], list[Held]]]:
    """(the others, the tasks of a fold) for each fold; every task is in one fold.

    >>> [sorted(rest + fold) for rest, fold in in_folds(list("abcd"), 2, seed=0)]
    [['a', 'b', 'c', 'd'], ['a', 'b', 'c', 'd']]
    """
    order = torch.randperm(len(tasks), generator=derived_generator(seed, "folds")).tolist()
    return [
        ([tasks[i] for place, i in enumerate(order) if place % folds != fold], [tasks[i] for i in order[fold::folds]])
        for fold in range(folds)
    ]


def standardised(tasks: list[Arrays], units: Units) -> FrameTasks:
    """Tasks as a source to train on."""
    return FrameTasks(tuple((_trained_on(units.x_in(x)), _trained_on(units.y_in(y))) for x, y in tasks))


def _trained_on(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.get_default_dtype())


Labelled = tuple[np.ndarray, np.ndarray]


def as_class_tasks(
    tasks: Any, task: str | None = None, x: str | Iterable[str] | None = None, y: str | None = None
) -> list[Labelled]:
    """The tasks of a list, a frame or a generator; those without two classes of two points are left out.

    >>> [(a.shape, b.tolist()) for a, b in as_class_tasks([([[0], [1], [2], [3]], ["a", "a", "b", "b"])] * 2)][0]
    ((4, 1), ['a', 'a', 'b', 'b'])
    """
    if hasattr(tasks, "columns"):
        pairs = _labelled_frame(tasks, task, x, y)
    else:
        pairs = [_labelled_pair(each, index) for index, each in enumerate(islice(tasks, MOST_TASKS))]
    usable = [pair for pair in pairs if (np.unique(pair[1], return_counts=True)[1] > 1).sum() > 1]
    if len(usable) < len(pairs):
        warnings.warn(
            f"left out {len(pairs) - len(usable)} of {len(pairs)} tasks without 2 classes of 2 points", stacklevel=3
        )
    widths = sorted({a.shape[1] for a, _ in usable})
    if len(widths) > 1:
        raise InputError(f"tasks must share their number of features; got {widths}")
    if len(usable) < 2:
        raise InputError(f"{len(usable)} tasks have 2 classes of 2 points; learning from tasks needs at least 2 such")
    return usable


def _labelled_pair(each: Any, index: int) -> Labelled:
    try:
        x, y = each
    except (TypeError, ValueError):
        raise InputError(f"task {index} is a {type(each).__name__}; expected a pair (X, labels)") from None
    x, labels = as_matrix(x, "X"), np.asarray(y)
    if labels.shape != (len(x),):
        raise InputError(f"task {index}: X has {len(x)} rows and y has shape {labels.shape}; expected ({len(x)},)")
    whole = ~np.isnan(x).any(1)
    if not whole.all():
        warnings.warn(
            f"task {index}: left out {int((~whole).sum())} of {len(x)} rows with a missing value", stacklevel=3
        )
    return x[whole], labels[whole]


def _labelled_frame(frame: "pd.DataFrame", task: str | None, x: Any, y: str | None) -> list[Labelled]:
    if task is None or y is None:
        raise InputError("a DataFrame of tasks needs the names of its columns: task=, y= and, if not all others, x=")
    if y not in frame.columns:
        raise InputError(f"the frame: {unknown_name('column', y, map(str, frame.columns))}")
    known = frame[frame[y].notna()]
    rest = tuple(str(name) for name in frame.columns if name not in (task, y))
    inputs = rest if x is None else (x,) if isinstance(x, str) else tuple(x)
    table = split_tasks(known, Columns(task, inputs), "the frame")
    left_out = len(frame) - sum(len(each.rows) for each in table.tasks)
    if left_out:
        warnings.warn(f"left out {left_out} of {len(frame)} rows: a cell is empty", stacklevel=4)
    labels = known[y].to_numpy()
    return [(each.x, labels[each.rows]) for each in table.tasks]


def standardised_classes(tasks: list[Labelled], units: Units) -> ClassFrameTasks:
    """Tasks as a source to train on, classes numbered task by task."""
    numbered = ((x, np.unique(labels, return_inverse=True)[1]) for x, labels in tasks)
    return ClassFrameTasks(tuple((_trained_on(units.x_in(x)), torch.from_numpy(numbers)) for x, numbers in numbered))
