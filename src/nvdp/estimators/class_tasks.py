"""Tasks of classification as people hand them over: (X, labels) or a long DataFrame; labels of any type."""

import warnings
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nvdp.data.class_frames import ClassFrameTasks
from nvdp.data.tables import Columns, split_tasks
from nvdp.errors import InputError, unknown_name
from nvdp.meta_tasks import MOST_TASKS, as_matrix
from nvdp.scaling import DataScale

if TYPE_CHECKING:
    import pandas as pd

Labelled = tuple[np.ndarray, np.ndarray]


def as_class_tasks(
    tasks: Any, task: str | None = None, x: str | Iterable[str] | None = None, y: str | None = None
) -> list[Labelled]:
    """The tasks of a list, a frame or a generator; those without two classes of two points are left out.

    >>> [(a.shape, b.tolist()) for a, b in as_class_tasks([([[0], [1], [2], [3]], ["a", "a", "b", "b"])] * 2)][0]
    ((4, 1), ['a', 'a', 'b', 'b'])
    """
    if hasattr(tasks, "columns"):
        pairs = _of_frame(tasks, task, x, y)
    else:
        pairs = [_of_pair(each, index) for index, each in enumerate(islice(tasks, MOST_TASKS))]
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


def _of_pair(each: Any, index: int) -> Labelled:
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


def _of_frame(frame: "pd.DataFrame", task: str | None, x: Any, y: str | None) -> list[Labelled]:
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


def standardised_classes(tasks: list[Labelled], scale: DataScale) -> ClassFrameTasks:
    """Tasks as a source to train on, classes numbered task by task."""
    numbered = ((x, np.unique(labels, return_inverse=True)[1]) for x, labels in tasks)
    return ClassFrameTasks(tuple((scale.x_in(x), torch.from_numpy(numbers)) for x, numbers in numbered))
