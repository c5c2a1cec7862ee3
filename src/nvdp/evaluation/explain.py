"""Why a fitted model answers as it does: the training tasks nearest to a context, and what each context point changes.

Tasks are compared by their curves: the means of the table's hierarchical GP given a task, at the same inputs for all.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import FarNote, InputError
from nvdp.tasks import PointSet
from nvdp.units.fixed import number_columns

if TYPE_CHECKING:
    from nvdp.loading import Predictor
    from nvdp.models.hierarchical_gp import HierarchicalGP

GRID, MOST_TASKS, AT_ONCE = 16, 500, 64
MOST_POINTS = 200  # of a task that its curve is made from
MOST_EXPLAINED = 300  # points of a context: the model adapts once for each
NEAREST = 5


@dataclass(frozen=True)
class Neighbours:
    """The curves of training tasks, in standardised units."""

    names: tuple[str, ...]
    x: Float[Tensor, "point x"]  # inputs that change within a task; others are those of the task itself
    curves: Float[Tensor, "task point y"]

    @classmethod
    def of(cls, process: "HierarchicalGP", sets: list[tuple[Tensor, Tensor]], names: list[str]) -> "Neighbours":
        """The curves of at most `MOST_TASKS` tasks (x, y).

        Args:
            process: The hierarchical GP of the table.
            sets: The tasks, in standardised units.
            names: Their names.

        Returns:
            Curves at inputs of the tasks, evenly chosen.
        """
        sets, names = sets[:MOST_TASKS], names[:MOST_TASKS]
        every = torch.cat([x for x, _ in sets]).double()
        order = every[:, process.kernel.varying[0]].argsort()
        x = every[order[torch.linspace(0, len(order) - 1, GRID).round().long()]]
        parts = [_curves(process, sets[start : start + AT_ONCE], x) for start in range(0, len(sets), AT_ONCE)]
        return cls(tuple(names), x, torch.cat(parts))

    def tensors(self) -> dict[str, Tensor]:
        """The curves without the names."""
        return {"x": self.x.contiguous(), "curves": self.curves.contiguous()}


@dataclass(frozen=True)
class Explanation:
    """What a context is like, and what its points say.

    Attributes:
        nearest: Training tasks and the distance of their curves: the root of the mean squared difference, in standard
            deviations of an output.
        change: Of each context point: how much the prediction changes without it, the root of the mean squared
            difference over the inputs of training, in the unit of each output.
        expected: Of each context point: its output as predicted from the other points.
        std: Of each context point: the standard deviation of that prediction.
    """

    nearest: dict[str, float]
    change: Float[np.ndarray, "point y"]
    expected: Float[np.ndarray, "point y"]
    std: Float[np.ndarray, "point y"]


def explain(predictor: "Predictor", x: Any, y: Any) -> Explanation:
    """Explain the answer of a model of ``nvdp fit`` or of `NVDPRegressor.meta_fit` to a context.

    Args:
        predictor: The model.
        x: Inputs of the context, in the user's units.
        y: Outputs.

    Returns:
        The nearest training tasks, if the model has kept them, and what leaving each point out changes.
    """
    x, y = (number_columns(part, None, name).numpy() for part, name in ((x, "x"), (y, "y")))
    if not len(x):
        raise InputError("an empty context has nothing to explain; expected at least 1 point")
    if len(x) > MOST_EXPLAINED:
        raise InputError(f"a context of {len(x):,} points is too large to explain; expected at most {MOST_EXPLAINED}")
    units, near = predictor.units, predictor.neighbours
    low, high = (np.array(each, np.float64) for each in (units.x_low, units.x_high))
    if not (len(low) and np.isfinite(high - low).all()):
        low, high = x.min(0), x.max(0)  # a model of any units
    grid = np.tile(x[:1], (GRID, 1))  # what is constant within the task stays so
    varies = (x != x[0]).any(0) if len(x) > 1 else np.arange(x.shape[1]) == 0
    grid[:, varies] = np.linspace(low, high, GRID)[:, varies]
    whole = predictor.adapt(x, y).predict(grid).mean
    change, expected, std = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FarNote)  # told once, by the whole context
        for place in range(len(x)):
            others = np.arange(len(x)) != place
            rest = predictor.adapt(x[others], y[others])
            change.append((rest.predict(grid).mean - whole).square().mean(0).sqrt())
            own = rest.predict(x[[place]])
            expected.append(own.mean[0])
            std.append(own.std[0])
    arrays = (torch.stack(part).double().numpy() for part in (change, expected, std))
    return Explanation({} if near is None else _nearest(predictor, near, x, y), *arrays)


def _nearest(predictor: "Predictor", near: Neighbours, x: Any, y: Any) -> dict[str, float]:
    assert predictor.adjustment is not None
    point = (torch.as_tensor(predictor.units.x_in(x)), torch.as_tensor(predictor.units.y_in(y)))
    own = _curves(predictor.adjustment.process, [point], near.x)
    distance = (near.curves - own).square().mean((1, 2)).sqrt()
    order = distance.argsort()[:NEAREST].tolist()
    return {near.names[place]: float(distance[place]) for place in order}


@torch.no_grad()
def _curves(process: "HierarchicalGP", sets: list[tuple[Tensor, Tensor]], x: Tensor) -> Float[Tensor, "task point y"]:
    """Means of the process given tasks, with what is constant within each task as it is there."""
    sets = [_some(each) for each in sets]
    pad, sizes = torch.nn.utils.rnn.pad_sequence, torch.tensor([len(each) for each, _ in sets])
    mask = torch.arange(int(sizes.max())) < sizes[:, None]
    xs, ys = (pad([each[side].double() for each in sets], batch_first=True) for side in (0, 1))
    known = PointSet(xs, ys, mask)
    asked = torch.stack([each[:1].double().expand(len(x), -1).clone() for each, _ in sets])
    asked[..., process.kernel.varying] = x[:, process.kernel.varying]
    return process.given(known).predict(asked).mean


def _some(task: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """At most `MOST_POINTS` of a task's points, evenly chosen from its rows."""
    count = len(task[0])
    if count <= MOST_POINTS:
        return task
    kept = torch.linspace(0, count - 1, MOST_POINTS).round().long()
    return task[0][kept], task[1][kept]
