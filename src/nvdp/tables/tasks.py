"""Tasks as people hand them over: a list of (X, y), a long DataFrame, or a generator; made into clean arrays."""

import warnings
from collections.abc import Hashable, Iterable, Sequence
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
Arrays = tuple[np.ndarray, np.ndarray]  # inputs (point, x) and outputs (point, y), or labels (point)


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


def whole_rows(x: Any, y: Any, what: str = "the context", labels: bool = False) -> Arrays:
    """x and y without the rows in which a number is missing; a warning says how many these were.

    Args:
        x: Inputs.
        y: Outputs; a matrix of numbers, or labels, one for each row.
        what: What the warning is about.
        labels: Whether y are labels.
    """
    x, y = as_matrix(x, "X"), np.asarray(y) if labels else as_matrix(y, "y")
    if labels and y.shape != (len(x),):
        raise InputError(f"{what}: X has {len(x)} rows and y has shape {y.shape}; expected ({len(x)},)")
    if len(x) != len(y):
        raise InputError(f"X has {len(x)} rows and y {len(y)}; they must agree")
    whole = ~np.isnan(x).any(1) if labels else ~(np.isnan(x).any(1) | np.isnan(y).any(1))
    if not whole.all():
        warnings.warn(f"{what}: left out {int((~whole).sum())} of {len(x)} rows with a missing value", stacklevel=3)
    return x[whole], y[whole]


def as_tasks(
    tasks: Any,
    task: str | None = None,
    x: str | Iterable[str] | None = None,
    y: str | Iterable[str] | None = None,
    labels: bool = False,
) -> list[Arrays]:
    """Tasks that can be learned from; others are left out with a warning.

    Args:
        tasks: A list or generator of (X, y), or a long DataFrame.
        task: The frame's column that names the task.
        x: Its columns of inputs; all others, if left out.
        y: Its columns of outputs, or its one column of labels.
        labels: Whether y are labels. A task then needs two classes of two points, otherwise two points.

    Returns:
        Inputs and outputs of every task.

    >>> [(a.shape, b.shape) for a, b in as_tasks([([0, 1, 2], [1, 2, 3]), ([5, 6], [0, 1])])]
    [((3, 1), (3, 1)), ((2, 1), (2, 1))]
    >>> as_tasks([([0, 1, 2, 3], ["a", "a", "b", "b"])] * 2, labels=True)[0][1].tolist()
    ['a', 'a', 'b', 'b']
    """
    if hasattr(tasks, "columns"):
        pairs = _of_frame(tasks, task, x, y, labels)
    else:
        pairs = [_of_pair(each, index, labels) for index, each in enumerate(islice(tasks, MOST_TASKS))]
    usable = [pair for pair in pairs if (_has_two_classes(pair[1]) if labels else len(pair[0]) >= 2)]
    if len(usable) < len(pairs):
        lack = "without 2 classes of 2 points" if labels else "with fewer than 2 points"
        warnings.warn(f"left out {len(pairs) - len(usable)} of {len(pairs)} tasks {lack}", stacklevel=3)
    widths = sorted({a.shape[1:] if labels else (a.shape[1], b.shape[1]) for a, b in usable})
    if len(widths) > 1:
        shared = "number of features" if labels else "numbers of inputs and outputs"
        raise InputError(f"tasks must share their {shared}; got {[w[0] for w in widths] if labels else widths}")
    if len(usable) < 2:
        need = "2 classes of 2 points" if labels else "at least 2 points"
        raise InputError(f"learning from tasks needs at least 2 tasks with {need}; got {len(usable)}")
    return usable


def _has_two_classes(labels: Any) -> bool:
    return int((np.unique(labels, return_counts=True)[1] > 1).sum()) > 1


def _of_pair(each: Any, index: int, labels: bool) -> Arrays:
    if isinstance(each, Task):
        return whole_rows(
            np.concatenate([each.x_context, each.x_target]), np.concatenate([each.y_context, each.y_target])
        )
    try:
        x, y = each
    except (TypeError, ValueError):
        raise InputError(f"task {index} is a {type(each).__name__}; expected a pair (X, y)") from None
    return whole_rows(x, y, f"task {index}", labels)


def _of_frame(frame: "pd.DataFrame", task: str | None, x: Any, y: Any, labels: bool) -> list[Arrays]:
    if task is None or y is None:
        raise InputError("a DataFrame of tasks needs the names of its columns: task=, y= and, if not all others, x=")
    outputs = (y,) if isinstance(y, str) else tuple(y)
    rest = tuple(str(name) for name in frame.columns if name != task and name not in outputs)
    inputs = rest if x is None else (x,) if isinstance(x, str) else tuple(x)
    known = frame
    if labels:
        if y not in frame.columns:
            raise InputError(f"the frame: {unknown_name('column', y, map(str, frame.columns))}")
        known = frame[frame[y].notna()]
    table = split_tasks(known, Columns(task, inputs, () if labels else outputs), "the frame")
    if left_out := len(frame) - sum(len(each.rows) for each in table.tasks):
        warnings.warn(f"left out {left_out} of {len(frame)} rows: a cell is empty", stacklevel=4)
    if not labels:
        return [(each.x, each.y) for each in table.tasks]
    column = known[y].to_numpy()
    return [(each.x, column[each.rows]) for each in table.tasks]


def split_held_out(tasks: list[Held], seed: int, share: float = HELD_OUT_SHARE) -> tuple[list[Held], list[Held]]:
    """Whole tasks held out at random, at least one, and the others, at least one."""
    generator = derived_generator(seed, "held-out tasks")
    order = torch.randperm(len(tasks), generator=generator).tolist()
    held = min(max(1, round(share * len(tasks))), len(tasks) - 1)
    return [tasks[index] for index in order[held:]], [tasks[index] for index in order[:held]]


def members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The places of each group, in order of first appearance.

    >>> members(["a", "b", "a"])
    {'a': [0, 2], 'b': [1]}
    """
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return places


def split_groups(groups: Sequence[Hashable], seed: int, share: float = HELD_OUT_SHARE) -> tuple[list[int], list[int]]:
    """The places of tasks that are kept and of those held out; tasks of one group stay together.

    >>> kept, held = split_groups(["a", "a", "b", "b", "c"], seed=0)
    >>> sorted(kept + held), len(held) in (1, 2)
    ([0, 1, 2, 3, 4], True)
    """
    places = members(groups)
    kept, held = split_held_out(list(places), seed, share)
    return [i for name in kept for i in places[name]], [i for name in held for i in places[name]]


def folds_of_groups(groups: Sequence[Hashable], folds: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """(the places of the others, the places of a fold) for each fold; tasks of one group are in the same fold."""
    places = members(groups)
    return [
        ([i for name in rest for i in places[name]], [i for name in fold for i in places[name]])
        for rest, fold in in_folds(list(places), folds, seed)
    ]


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


def is_ordered(tasks: Sequence[Arrays]) -> bool:
    """Whether only the first input changes within tasks, so that they have points that come first."""
    return all((x[:, 1:] == x[:1, 1:]).all() for x, _ in tasks)


def standardised(tasks: list[Arrays], units: Units) -> FrameTasks:
    """Tasks as a source to train on."""
    return FrameTasks(tuple((_trained_on(units.x_in(x)), _trained_on(units.y_in(y))) for x, y in tasks))


def _trained_on(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.get_default_dtype())


def standardised_classes(tasks: list[Arrays], units: Units) -> ClassFrameTasks:
    """Labelled tasks as a source to train on, classes numbered task by task."""
    numbered = ((x, np.unique(labels, return_inverse=True)[1]) for x, labels in tasks)
    return ClassFrameTasks(tuple((_trained_on(units.x_in(x)), torch.from_numpy(numbers)) for x, numbers in numbered))
