"""Units: the one place where values are standardised on the way into a model, and predictions taken back out.

A model works on (v − centre) / spread. `Units` holds centre and spread of every column. `PosteriorInUnits` is a
posterior that is asked, and answers, in the user's units. Where a model works on values as they are, nothing is
computed.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.errors import FarNote, InputError, Note
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, as_tensor

Numbers = tuple[float, ...]
ROUNDING = 1e-12  # a spread below this share of the centre is that of a constant column
FAR = 6.0  # spreads from the centre: an output that no model was trained on
RANGE_MARGIN = 1e-6  # of the range: an input at its very end is inside, whatever the rounding


@dataclass(frozen=True)
class Units:
    """Centre and spread of inputs and outputs, and the range of inputs that a model was trained on.

    Labels of classes have no units: `y_centre` and `y_spread` are then empty.

    >>> units = Units.of([np.array([[0.0], [10.0]])], [np.array([[1.0], [3.0]])])
    >>> units.x_in([[5.0], [10.0]]).flatten().tolist(), units.outside(np.array([[5.0], [11.0]])).tolist()
    ([0.0, 1.0], [False, True])
    >>> units.y_out(Prediction(torch.ones(1, 1, 1), torch.ones(1, 1, 1))).mean.item()
    3.0
    """

    x_centre: Numbers = ()
    x_spread: Numbers = ()
    y_centre: Numbers = ()
    y_spread: Numbers = ()
    x_low: Numbers = ()
    x_high: Numbers = ()

    @classmethod
    def of(cls, xs: Sequence[Float[np.ndarray, "_ x"]], ys: Sequence[Float[np.ndarray, "_ y"]] | None = None) -> Self:
        """The units of some tasks: mean and standard deviation over all their points.

        Args:
            xs: The inputs of every task.
            ys: The outputs of every task; leave out if they are labels.

        Returns:
            The units. The spread of a constant column is 1.
        """
        x = np.concatenate(xs)
        y_moments: tuple[Numbers, Numbers] = ((), ()) if ys is None else _moments(np.concatenate(ys))
        return cls(*_moments(x), *y_moments, _numbers(x.min(0)), _numbers(x.max(0)))

    @classmethod
    def identity(cls, x_dim: int, y_dim: int, x_low: float = -np.inf, x_high: float = np.inf) -> Self:
        """Values as they are, for a model that was trained on such."""
        return cls((0.0,) * x_dim, (1.0,) * x_dim, (0.0,) * y_dim, (1.0,) * y_dim, (x_low,) * x_dim, (x_high,) * x_dim)

    @cached_property
    def same_x(self) -> bool:
        """Whether inputs are taken as they are."""
        return _unchanged(self.x_centre, self.x_spread)

    @cached_property
    def same_y(self) -> bool:
        """Whether outputs are taken as they are."""
        return _unchanged(self.y_centre, self.y_spread)

    def of_context(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Units | TaskUnits":
        """The units of a context: the same for all."""
        return self

    def x_in(self, x: Any) -> Any:
        """Inputs as the model takes them, in float64; those that need no change are returned as they are."""
        return x if self.same_x else _standardised(x, self.x_centre, self.x_spread, "x")

    def y_in(self, y: Any) -> Any:
        """Outputs as the model takes them, in float64; those that need no change are returned as they are."""
        return y if self.same_y else _standardised(y, self.y_centre, self.y_spread, "y")

    def points_in(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """A context as ``model.adapt`` takes it: arrays x and y, or a `PointSet` alone."""
        if isinstance(x, PointSet) and not (self.same_x and self.same_y):
            real = x.mask[..., None]
            return PointSet(self.x_in(x.x) * real, self.y_in(x.y) * real, x.mask), y
        if isinstance(x, PointSet):
            return x, y
        return self.x_in(x), None if y is None else self.y_in(y)

    def y_out(self, prediction: Any) -> Any:
        """A prediction of the model in the user's units; one that needs no change is returned as it is."""
        return prediction if self.same_y else prediction.scaled(self.y_centre, self.y_spread)

    def outside(self, x: Float[np.ndarray, "point x"]) -> Any:
        """Which points have an input outside the range of training."""
        low, high = np.array(self.x_low), np.array(self.x_high)
        reach = np.where(np.isfinite(high - low), high - low, 0.0) * RANGE_MARGIN
        return ((x < low - reach) | (x > high + reach)).any(1)

    def far(self, x: Any, y: Any = None) -> str | None:
        """What a user should know of a context that is unlike the data of training; None if it is not.

        >>> Units.identity(1, 1, -2.0, 2.0).far([0.0, 1.0], [510.0, 470.0])
        'y goes from 470 to 510; the model has learned from values around 0 with a spread of 1: do not trust it here'
        """
        if isinstance(x, PointSet):
            x, y = x.x[x.mask], x.y[x.mask]
        if not len(x) or not self.y_centre:  # new classes are expected to lie elsewhere than the old ones
            return None
        notes = []
        points = _rows(x, len(self.x_centre))
        if outside := int(self.outside(points).sum()):
            bounds = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(self.x_low, self.x_high, strict=True))
            notes.append(
                f"{outside} of {len(points)} points lie outside the inputs of training, {bounds}: nothing was learned "
                "about functions there"
            )
        outputs = () if y is None else zip(self.y_centre, self.y_spread, strict=True)
        for column, (centre, spread) in enumerate(outputs):
            values = _rows(y, len(self.y_centre))[:, column]
            if np.abs(values - centre).max() > FAR * spread:
                notes.append(
                    f"y goes from {values.min():g} to {values.max():g}; the model has learned from values around "
                    f"{centre:g} with a spread of {spread:g}: do not trust it here"
                )
        return "; ".join(notes) or None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists of numbers; None stands for no bound."""
        return {name: [v if np.isfinite(v) else None for v in values] for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        bound = {"x_low": -np.inf, "x_high": np.inf}
        try:
            given = {field.name: values[field.name] for field in fields(cls)} | values
            return cls(**{k: tuple(bound[k] if v is None else float(v) for v in vs) for k, vs in given.items()})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"these are no units of a model: {error}") from None


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

    def far(self, x: Any, y: Any = None) -> str | None:
        """No context is far: units are its own. A query may be: see `TaskUnits.far`."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The range of inputs, if it is known."""
        return {"x_range": self.x_range}

    def of_context(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "TaskUnits":
        """The units that a context brings along, given as to ``model.adapt``."""
        single = not isinstance(x, PointSet) and np.ndim(x) < 3
        if not isinstance(x, PointSet):
            x = PointSet.of(_columns(x, None, "x"), None if y is None else _columns(y, None, "y"), mask)
        units = self.of_points(x, single)
        if not (units.x_spread.isfinite().all() and units.y_spread.isfinite().all()):
            largest = max(x.x.abs().max().item(), x.y.abs().max().item())
            raise InputError(f"the largest value is {largest:g}; standardising needs values whose squares are finite")
        return units

    def readable(self, x: Any, y: Any = None, mask: Tensor | None = None) -> tuple[Any, Any, Tensor | None]:
        """A context of at most `MOST_POINTS`: of a larger one a random choice, the same every time, and a warning."""
        count = x.x.shape[1] if isinstance(x, PointSet) else _columns(x, None, "x").shape[-2]
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
        x, y = _columns(x, None, "x"), _columns(y, None, "y")
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


MOST_POINTS = 1_000  # of a context; it was trained with at most 500
MOST_INPUTS = 3  # of a model in units of its context; fewer are padded with zeros
FARTHEST_X, FARTHEST_Y = 10.0, 30.0  # in spreads: what lies beyond is taken to be there
CUT = 3.0  # mean absolute deviations


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
        x = _columns(x, self.x_centre.shape[-1], "x")
        scaled = ((x - self.x_centre) / self.x_spread).clamp(-FARTHEST_X, FARTHEST_X)
        inputs = scaled.shape[-1]
        flags = scaled.new_tensor([float(inputs > 1), float(inputs > 2)]).expand(*scaled.shape[:2], 2)
        count = (self.count.to(scaled).log1p() / 3 - 1).expand(*scaled.shape[:2], 1)
        padding = scaled.new_zeros(*scaled.shape[:2], MOST_INPUTS - inputs)
        seen = torch.cat([scaled, padding, flags, count], dim=-1)
        return seen[0] if self.single else seen

    def y_in(self, y: Any) -> Float[Tensor, "*task point y"]:
        """Outputs as the model takes them, in float64."""
        y = _columns(y, self.y_centre.shape[-1], "y")
        scaled = ((y - self.y_centre) / self.y_spread).clamp(-FARTHEST_Y, FARTHEST_Y)
        return scaled[0] if self.single else scaled

    def far(self, x: Any) -> str | None:
        """What a user should know of queries that are farther from the context than the model looks."""
        away = ((_columns(x, self.x_centre.shape[-1], "x") - self.x_centre) / self.x_spread).abs().amax(-1)
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


def _columns(values: Any, columns: int | None, name: str) -> Tensor:
    """An array (points, columns) or (tasks, points, columns) in float64; any number of columns if None."""
    try:
        tensor = values.double() if isinstance(values, Tensor) else torch.tensor(np.asarray(values, np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if tensor.dim() == 1 and columns in (None, 1):
        tensor = tensor[:, None]
    if tensor.dim() < 2 or columns not in (None, tensor.shape[-1]):
        raise InputError(f"{name} has shape {tuple(tensor.shape)}; expected (points, {columns})")
    return tensor


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


def warn_far(units: "Units | TaskUnits", *points: Any) -> None:
    """Warn of points that are unlike what a model has learned from, with the numbers of both."""
    note = units.far(*points)
    if note is not None:
        warnings.warn(note, FarNote, stacklevel=4)


class PosteriorInUnits:
    """A posterior that is asked, and answers, in the user's units.

    `standardised` is the model's own posterior. `log_prob`, quantiles and samples of a prediction are in the user's
    units too.
    """

    def __init__(self, standardised: Any, units: Units | TaskUnits) -> None:
        self.standardised, self.units = standardised, units

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Any:
        """The prediction at x: see `nvdp.Posterior.predict`."""
        warn_far(self.units, x)
        return self.units.y_out(self.standardised.predict(self.units.x_in(x), samples, generator))

    def at_mean_parameters(self, x: Any) -> Any:
        """The prediction with φ at its mean: see `nvdp.Posterior.at_mean_parameters`."""
        return self.units.y_out(self.standardised.at_mean_parameters(self.units.x_in(x)))

    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Any:
        """Mixture components of single points: see `nvdp.Posterior.components`."""
        return self.units.y_out(self.standardised.components(self.units.x_in(x), samples, generator))

    def functions(self, samples: int, seed: int = 0) -> Callable[[Tensor], Any]:
        """Sampled functions that stay the same wherever they are evaluated: see `nvdp.Posterior.functions`."""
        functions = self.standardised.functions(samples, seed)

        def values(x: Float[Tensor, "task point x"]) -> Any:
            answer = functions(self.units.x_in(x).to(self.standardised.like))
            if self.units.same_y:
                return answer
            scaled = self.units.y_out(Prediction(*answer))
            return scaled.functions, scaled.stds

        return values

    def suggest(self, candidates: Any, k: int = 1, **options: Any) -> Int[Tensor, "*task k"]:
        """Indices of the k candidates to observe next: see `nvdp.Posterior.suggest`.

        Several outputs count alike: their variances are compared in standardised units.
        """
        warn_far(self.units, candidates)
        return self.standardised.suggest(self.units.x_in(candidates), k, **options)

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "PosteriorInUnits":
        """The posterior given these points too."""
        return PosteriorInUnits(self.standardised.update(*self.units.points_in(x, y), mask), self.units)

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "PosteriorInUnits":
        """The posterior as if some of its points had never been seen."""
        return PosteriorInUnits(self.standardised.forget(*self.units.points_in(x, y), mask), self.units)

    def to_bytes(self) -> bytes:
        """The posterior as bytes: see `nvdp.Predictor.posterior_from_bytes`."""
        return self.standardised.to_bytes()

    def mean_rates(self) -> Float[Tensor, "task layer"] | None:
        """The mean dropout rate of every layer's weights, if there are any."""
        return self.standardised.mean_rates()


def _unchanged(centre: Numbers, spread: Numbers) -> bool:
    return not any(centre) and all(value == 1 for value in spread)


def _moments(values: Float[np.ndarray, "_ column"]) -> tuple[Numbers, Numbers]:
    with np.errstate(over="ignore", invalid="ignore"):
        centre, spread = values.mean(0), values.std(0)
    if not np.isfinite(spread).all():
        largest = np.abs(values).max()
        raise InputError(f"the largest value is {largest:g}; standardising needs values whose squares are finite")
    tiny = spread <= 1e-12 * np.maximum(np.abs(centre), 1e-300)  # a constant column, up to rounding
    return _numbers(centre), _numbers(np.where(tiny, 1.0, spread))


def _rows(values: Any, width: int) -> Float[np.ndarray, "point column"]:
    return np.asarray(as_tensor(values, "values").detach().cpu().double()).reshape(-1, width)


def _numbers(values: Any) -> Numbers:
    return tuple(float(value) for value in values)


def _standardised(values: Any, centre: Numbers, spread: Numbers, name: str) -> Float[Tensor, "*point column"]:
    tensor = _columns(values, len(centre), name)
    return (tensor - tensor.new_tensor(centre)) / tensor.new_tensor(spread)
