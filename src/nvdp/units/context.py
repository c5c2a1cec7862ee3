"""Units that each context brings along, for a model that is right in any units: `nvdp.load("general")`."""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.errors import InputError, Note
from nvdp.tasks import PointSet
from nvdp.units.fixed import Numbers, Units, number_columns

ROUNDING = 1e-12  # a spread below this share of the centre is that of a constant column
MOST_POINTS = 1_000  # of a context; it was trained with at most 500
MOST_INPUTS = 3  # of a model in units of its context; fewer are padded with zeros
FARTHEST_X, FARTHEST_Y = 10.0, 30.0  # in spreads: what lies beyond is taken to be there
CUT = 3.0  # mean absolute deviations


@dataclass(frozen=True)
class ContextUnits(Units):
    """Units that each context brings along, for a model that is right in any units: `nvdp.load("general")`.

    Outputs are standardised by the context: its mean and standard deviation with residuals cut at 3 mean absolute
    deviations, so that a few outliers do not hide the rest. Inputs are standardised by the context's mean and standard
    deviation, or by a given range. So answers follow affine maps of x and of y. A context of one point, or of equal
    values, has no spread: 1 is taken, in the user's units. The model also sees how many context points and inputs there
    are.

    Attributes:
        x_range: Lowest and highest value of every input, if known.

    >>> context = PointSet.of([0.0, 4.0], [10.0, 30.0])
    >>> units = ContextUnits().of_points(context)
    >>> units.y_centre.item(), units.y_spread.item(), units.x_in([2.0, 6.0])[:, 0].tolist()
    (20.0, 10.0, [0.0, 2.0])
    """

    x_range: tuple[Numbers, Numbers] | None = None

    @cached_property
    def same_x(self) -> bool:
        """Inputs are never taken as they are."""
        return False

    @cached_property
    def same_y(self) -> bool:
        """Nor are outputs."""
        return False

    def x_in(self, x: Any) -> Any:
        """Refused: each context has units of its own."""
        raise InputError("this model takes its units from a context; adapt it to one first")

    def outside(self, x: Float[np.ndarray, "point x"]) -> Any:
        """No point is outside a range of training: inputs are scaled to it."""
        return np.zeros(len(x), bool)

    def far(self, x: Any, y: Any = None, names: Any = None) -> str | None:
        """No context is far: units are its own. A query may be: see `TaskUnits.far`."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The range of inputs, if it is known."""
        return {"x_range": self.x_range}

    def of_context(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "TaskUnits":
        """The units that a context brings along, given as to ``model.adapt``."""
        single = not isinstance(x, PointSet) and np.ndim(x) < 3
        if not isinstance(x, PointSet):
            x = PointSet.of(number_columns(x, None, "x"), None if y is None else number_columns(y, None, "y"), mask)
        units = self.of_points(x, single)
        if not (units.x_spread.isfinite().all() and units.y_spread.isfinite().all()):
            largest = max(x.x.abs().max().item(), x.y.abs().max().item())
            raise InputError(f"the largest value is {largest:g}; standardising needs values whose squares are finite")
        return units

    def readable(self, x: Any, y: Any = None, mask: Tensor | None = None) -> tuple[Any, Any, Tensor | None]:
        """A context of at most `MOST_POINTS`: of a larger one a random choice, the same every time, and a warning."""
        count = x.x.shape[1] if isinstance(x, PointSet) else number_columns(x, None, "x").shape[-2]
        if count <= MOST_POINTS:
            return x, y, mask
        warnings.warn(
            f"the context has {count} points and this model reads at most {MOST_POINTS}; "
            f"a random choice of {MOST_POINTS} is used",
            Note,
            stacklevel=4,
        )
        chosen = np.sort(np.random.default_rng(0).choice(count, MOST_POINTS, replace=False))
        if isinstance(x, PointSet):
            return PointSet(x.x[:, chosen], x.y[:, chosen], x.mask[:, chosen]), y, mask
        x, y = number_columns(x, None, "x"), number_columns(y, None, "y")
        return x[..., chosen, :], y[..., chosen, :], None if mask is None else mask[..., chosen]

    def of_points(self, context: PointSet, single: bool = True) -> "TaskUnits":
        """The units of the tasks of a context; `single` if it is one task, given without an axis of tasks."""
        if context.x.shape[-1] > MOST_INPUTS:
            raise InputError(f"x has {context.x.shape[-1]} features; this model takes at most {MOST_INPUTS}")
        context = PointSet(context.x.double(), context.y.double(), context.mask)
        count = context.mask.sum(-1)[:, None, None]
        x_centre, x_spread = self._of_x(context)
        y_centre, y_spread = _robust_moments(context.y, context.mask)
        return TaskUnits(x_centre, x_spread, y_centre, y_spread, count, single)

    def _of_x(self, context: PointSet) -> tuple[Tensor, Tensor]:
        if self.x_range is None:
            return _masked_moments(context.x, context.mask)
        low, high = (context.x.new_tensor(bound) for bound in self.x_range)
        if low.shape != context.x.shape[-1:] or not ((high > low) & (high - low).isfinite()).all():
            raise InputError(
                f"the range of x is {self.x_range}; expected lower and higher ends of {context.x.shape[-1]}"
            )
        centre, spread = (low + high) / 2, (high - low) / math.sqrt(12)  # the deviation of a uniform distribution
        return centre.expand(len(context.x), 1, -1), spread.expand(len(context.x), 1, -1)


@dataclass(frozen=True)
class TaskUnits:
    """Centre and spread of the inputs and outputs of tasks, from their own contexts.

    The model takes the standardised inputs padded to `MOST_INPUTS`, two flags for a second and a third input, and the
    logarithm of the number of context points.
    """

    x_centre: Float[Tensor, "task 1 x"]
    x_spread: Float[Tensor, "task 1 x"]
    y_centre: Float[Tensor, "task 1 y"]
    y_spread: Float[Tensor, "task 1 y"]
    count: Int[Tensor, "task 1 1"]
    single: bool = False
    same_x = same_y = False
    width: ClassVar[int] = MOST_INPUTS + 3  # numbers that the model takes for an input

    def x_in(self, x: Any) -> Float[Tensor, "*task point seen"]:
        """Inputs as the model takes them, in float64."""
        x = number_columns(x, self.x_centre.shape[-1], "x")
        scaled = ((x - self.x_centre) / self.x_spread).clamp(-FARTHEST_X, FARTHEST_X)
        inputs = scaled.shape[-1]
        flags = scaled.new_tensor([float(inputs > 1), float(inputs > 2)]).expand(*scaled.shape[:2], 2)
        count = (self.count.to(scaled).log1p() / 3 - 1).expand(*scaled.shape[:2], 1)
        padding = scaled.new_zeros(*scaled.shape[:2], MOST_INPUTS - inputs)
        seen = torch.cat([scaled, padding, flags, count], dim=-1)
        return seen[0] if self.single else seen

    def y_in(self, y: Any) -> Float[Tensor, "*task point y"]:
        """Outputs as the model takes them, in float64."""
        y = number_columns(y, self.y_centre.shape[-1], "y")
        scaled = ((y - self.y_centre) / self.y_spread).clamp(-FARTHEST_Y, FARTHEST_Y)
        return scaled[0] if self.single else scaled

    def far(self, x: Any) -> str | None:
        """What a user should know of queries that are farther from the context than the model looks."""
        away = ((number_columns(x, self.x_centre.shape[-1], "x") - self.x_centre) / self.x_spread).abs().amax(-1)
        if not (outside := int((away > FARTHEST_X).sum())):
            return None
        return (
            f"{outside} of {away.numel()} points lie more than {FARTHEST_X:g} standard deviations of the context's "
            f"inputs away from them, the farthest {away.max():.3g}; predictions are those at {FARTHEST_X:g}: do not "
            "trust them here"
        )

    def points_in(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """A context as ``model.adapt`` takes it: arrays x and y, or a `PointSet` alone."""
        if isinstance(x, PointSet):
            real = x.mask[..., None]
            return PointSet(self.x_in(x.x) * real, self.y_in(x.y) * real, x.mask), None
        return self.x_in(x), self.y_in(y)

    def y_out(self, prediction: Any) -> Any:
        """A prediction of the model in the user's units."""
        return prediction.scaled(*(v[0] if self.single else v for v in (self.y_centre, self.y_spread)))


def _masked_moments(values: Float[Tensor, "task point v"], mask: Bool[Tensor, "task point"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the real points; the deviation is 1 where it would be 0."""
    real, count = mask[..., None], mask.sum(-1)[:, None, None].clamp(min=1)
    centre = torch.where(real, values, 0.0).sum(1, keepdim=True) / count
    spread = (torch.where(real, values - centre, 0.0).square().sum(1, keepdim=True) / count).sqrt()
    return centre, _positive_spread(centre, spread)


def _robust_moments(values: Float[Tensor, "task point v"], mask: Bool[Tensor, "task point"]) -> tuple[Tensor, Tensor]:
    """The same of values whose distance from the median is cut at `CUT` mean absolute deviations."""
    count = mask.sum(-1)
    if not values.shape[1]:
        return _masked_moments(values, mask)
    ordered = torch.where(mask[..., None], values, math.inf).sort(1).values
    middle = [((count - 1 + half) // 2).clamp(min=0)[:, None, None].expand(-1, 1, values.shape[-1]) for half in (0, 1)]
    median = sum(ordered.gather(1, index) for index in middle) / 2
    median = torch.where(count[:, None, None] > 0, median, 0.0)
    away = torch.where(mask[..., None], values - median, 0.0)
    reach = CUT * away.abs().sum(1, keepdim=True) / count[:, None, None].clamp(min=1)
    centre, spread = _masked_moments(away.clamp(-reach, reach), mask)
    return median + centre, _positive_spread(median + centre, torch.where(reach > 0, spread, 0.0))


def _positive_spread(centre: Tensor, spread: Tensor) -> Tensor:
    tiny = spread <= ROUNDING * centre.abs().clamp(min=1e-300)
    return torch.where(tiny, 1.0, spread)
