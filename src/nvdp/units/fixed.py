"""`Units`: centre and spread of every column, the same for all contexts; a column may be taken by its logarithm.

A model works on (v − centre) / spread, where v is a value or its logarithm. Where a model works on values as they are,
nothing is computed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import InputError
from nvdp.posteriors.logarithm import LogPrediction
from nvdp.tasks import PointSet, as_tensor

if TYPE_CHECKING:
    from nvdp.units.context import TaskUnits

Numbers = tuple[float, ...]


@runtime_checkable
class Named(Protocol):
    """The names of inputs and outputs: `nvdp.data.tables.Columns`."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of every input."""

    @property
    def y(self) -> tuple[str, ...]:
        """Of every output."""

    def text(self, name: str, values: Sequence[float]) -> list[str]:
        """Numbers of an input as a table has them."""


FAR = 6.0  # spreads from the centre: an output that no model was trained on
RANGE_MARGIN = 1e-6  # of the range: an input at its very end is inside, whatever the rounding


@dataclass(frozen=True)
class Units:
    """Centre and spread of inputs and outputs, and the range of inputs that a model was trained on.

    Labels of classes have no units: `y_centre` and `y_spread` are then empty.

    >>> units = Units.of([np.array([[0.0], [10.0]])], [np.array([[1.0], [3.0]])])
    >>> units.x_in([[5.0], [10.0]]).flatten().tolist(), units.outside(np.array([[5.0], [11.0]])).tolist()
    ([0.0, 1.0], [False, True])
    >>> from nvdp.posteriors.prediction import Prediction
    >>> units.y_out(Prediction(torch.ones(1, 1, 1), torch.ones(1, 1, 1))).mean.item()
    3.0
    """

    x_centre: Numbers = ()
    x_spread: Numbers = ()
    y_centre: Numbers = ()
    y_spread: Numbers = ()
    x_low: Numbers = ()
    x_high: Numbers = ()
    x_log: tuple[bool, ...] = ()  # inputs that are standardised by their logarithm; none, if empty
    y_log: tuple[bool, ...] = ()

    @classmethod
    def of(
        cls,
        xs: Sequence[Float[np.ndarray, "_ x"]],
        ys: Sequence[Float[np.ndarray, "_ y"]] | None = None,
        x_log: Sequence[bool] = (),
        y_log: Sequence[bool] = (),
    ) -> Self:
        """The units of some tasks: mean and standard deviation over all their points.

        Args:
            xs: The inputs of every task.
            ys: The outputs of every task, NaN where one is missing; leave out if they are labels.
            x_log: Which inputs are taken by their logarithm; none, if empty.
            y_log: The same of outputs.

        Returns:
            The units. The spread of a constant column is 1.
        """
        x, logs = np.concatenate(xs), (tuple(map(bool, x_log)), tuple(map(bool, y_log)))
        y_moments: tuple[Numbers, Numbers] = ((), ())
        if ys is not None:
            y_moments = _moments(np.asarray(_logarithms(np.concatenate(ys), logs[1], "y")))
        x_moments = _moments(np.asarray(_logarithms(x, logs[0], "x")))
        return cls(*x_moments, *y_moments, _numbers(x.min(0)), _numbers(x.max(0)), *logs)

    @classmethod
    def identity(cls, x_dim: int, y_dim: int, x_low: float = -np.inf, x_high: float = np.inf) -> Self:
        """Values as they are, for a model that was trained on such."""
        return cls((0.0,) * x_dim, (1.0,) * x_dim, (0.0,) * y_dim, (1.0,) * y_dim, (x_low,) * x_dim, (x_high,) * x_dim)

    @cached_property
    def same_x(self) -> bool:
        """Whether inputs are taken as they are."""
        return _unchanged(self.x_centre, self.x_spread) and not any(self.x_log)

    @cached_property
    def same_y(self) -> bool:
        """Whether outputs are taken as they are."""
        return _unchanged(self.y_centre, self.y_spread) and not any(self.y_log)

    def of_context(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Units | TaskUnits":
        """The units of a context: the same for all."""
        return self

    def x_in(self, x: Any) -> Any:
        """Inputs as the model takes them, in float64; those that need no change are returned as they are."""
        return x if self.same_x else _standardised(x, self.x_centre, self.x_spread, "x", self.x_log)

    def y_in(self, y: Any) -> Any:
        """Outputs as the model takes them, in float64; those that need no change are returned as they are."""
        return y if self.same_y else _standardised(y, self.y_centre, self.y_spread, "y", self.y_log)

    def points_in(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """A context as ``model.adapt`` takes it: arrays x and y, or a `PointSet` alone."""
        if isinstance(x, PointSet) and not (self.same_x and self.same_y):
            real = x.mask[..., None]
            x_in, y_in = (torch.where(real, values, 1.0) for values in (x.x, x.y))  # 1 has a logarithm
            return PointSet(self.x_in(x_in) * real, self.y_in(y_in) * real, x.mask), y
        if isinstance(x, PointSet):
            return x, y
        return self.x_in(x), None if y is None else self.y_in(y)

    def y_out(self, prediction: Any) -> Any:
        """A prediction of the model in the user's units; one that needs no change is returned as it is."""
        if self.same_y:
            return prediction
        scaled = prediction.scaled(self.y_centre, self.y_spread)
        return LogPrediction.of(scaled, torch.tensor(self.y_log)) if any(self.y_log) else scaled

    def outside(self, x: Float[np.ndarray, "point x"]) -> Any:
        """Which points have an input outside the range of training."""
        return self._outside(x).any(1)

    def _outside(self, x: Float[np.ndarray, "point x"]) -> Any:
        """Which inputs of which points are outside the range of training."""
        low, high = np.array(self.x_low), np.array(self.x_high)
        if any(self.x_log):
            positive = np.finfo(np.float64).tiny  # what has no logarithm is refused elsewhere
            x, low, high = (np.where(self.x_log, np.log(np.maximum(each, positive)), each) for each in (x, low, high))
        reach = np.where(np.isfinite(high - low), high - low, 0.0) * RANGE_MARGIN
        return (x < low - reach) | (x > high + reach)

    def far(self, x: Any, y: Any = None, names: "Named | None" = None) -> str | None:
        """What a user should know of a context that is unlike the data of training; None if it is not.

        Args:
            x: Inputs of points.
            y: Their outputs, if they are known.
            names: Of inputs and outputs; by default they are told without names.

        Returns:
            One line with the numbers of both.

        >>> Units.identity(1, 1, -2.0, 2.0).far([0.0, 1.0], [510.0, 470.0])
        'y goes from 470 to 510; the model has learned from values around 0 with a spread of 1: do not trust it here'
        """
        if isinstance(x, PointSet):
            x, y = x.x[x.mask], x.y[x.mask]
        if not len(x) or not self.y_centre:  # new classes are expected to lie elsewhere than the old ones
            return None
        notes = []
        points = _rows(x, len(self.x_centre))
        beyond = self._outside(points)
        if outside := int(beyond.any(1).sum()):
            ends = zip(self.x_low, self.x_high, strict=True)
            if names is None:
                bounds = ", ".join(f"[{low:g}, {high:g}]" for low, high in ends)
            else:
                told = zip(names.input_names, ends, beyond.any(0), strict=True)
                bounds = ", ".join(
                    f"{name} from {' to '.join(names.text(name, pair))}" for name, pair, at_fault in told if at_fault
                )
            notes.append(
                f"{outside} of {len(points)} points lie outside the inputs of training, {bounds}: nothing was learned "
                "about functions there"
            )
        outputs = () if y is None else zip(self.y_centre, self.y_spread, strict=True)
        for column, (centre, spread) in enumerate(outputs):
            values = _rows(y, len(self.y_centre))[:, column]
            values = values[~np.isnan(values)]
            log = bool(self.y_log) and self.y_log[column]
            if len(values) and np.abs((np.log(values) if log else values) - centre).max() > FAR * spread:
                centre, spread = (float(np.exp(centre)), float(np.exp(spread))) if log else (centre, spread)
                name = "y" if names is None else names.y[column]
                notes.append(
                    f"{name} goes from {values.min():g} to {values.max():g}; the model has learned from values around "
                    f"{centre:g} with a spread of {'a factor of ' * log}{spread:g}: do not trust it here"
                )
        return "; ".join(notes) or None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists of numbers; None stands for no bound."""
        numbers = {name: [v if np.isfinite(v) else None for v in values] for name, values in asdict(self).items()}
        return {name: values for name, values in numbers.items() if values or not name.endswith("_log")}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        bound = {"x_low": -np.inf, "x_high": np.inf}
        try:
            logs = {name: tuple(map(bool, values.get(name, ()))) for name in ("x_log", "y_log")}
            given = {each.name: values[each.name] for each in fields(cls) if each.name not in logs} | values
            numbers = {k: tuple(bound[k] if v is None else float(v) for v in vs) for k, vs in given.items()}
            return cls(**{**numbers, **logs})  # type: ignore[arg-type]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"these are no units of a model: {error}") from None


def number_columns(values: Any, columns: int | None, name: str) -> Tensor:
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


def _unchanged(centre: Numbers, spread: Numbers) -> bool:
    return not any(centre) and all(value == 1 for value in spread)


def _moments(values: Float[np.ndarray, "_ column"]) -> tuple[Numbers, Numbers]:
    if (absent := np.isnan(values).all(0)).any():
        raise InputError(f"output {int(absent.argmax()) + 1} has no value in any row; expected at least one")
    with np.errstate(over="ignore", invalid="ignore"):
        centre, spread = np.nanmean(values, 0), np.nanstd(values, 0)
    if not np.isfinite(spread).all():
        largest = np.nanmax(np.abs(values))
        raise InputError(f"the largest value is {largest:g}; standardising needs values whose squares are finite")
    lost = (spread == 0) & (np.nanmin(values, 0) < np.nanmax(values, 0))
    if lost.any():  # their squares are below the smallest number
        size = np.nanmax(np.abs(values - centre), 0)
        scaled = np.nanstd((values - centre) / np.where(lost, size, 1.0), 0) * size
        spread = np.where(lost, scaled, spread)
    tiny = spread <= 1e-12 * np.abs(centre)  # a constant column, up to rounding
    return _numbers(centre), _numbers(np.where(tiny, 1.0, spread))


def _rows(values: Any, width: int) -> Float[np.ndarray, "point column"]:
    return np.asarray(as_tensor(values, "values").detach().cpu().double()).reshape(-1, width)


def _numbers(values: Any) -> Numbers:
    return tuple(float(value) for value in values)


def _standardised(
    values: Any, centre: Numbers, spread: Numbers, name: str, logs: tuple[bool, ...]
) -> Float[Tensor, "*point column"]:
    tensor = _logarithms(number_columns(values, len(centre), name), logs, name)
    return (tensor - tensor.new_tensor(centre)) / tensor.new_tensor(spread)


def _logarithms(values: Any, logs: tuple[bool, ...], name: str) -> Any:
    """The logarithm of some columns of an array or tensor; a missing value stays so."""
    if not any(logs):
        return values
    tensor = torch.as_tensor(values)
    taken = torch.tensor(logs)
    if (refused := taken & (tensor <= 0)).any():
        raise InputError(f"{name} holds {tensor[refused][0]:g}; its logarithm is taken, so expected positive numbers")
    return torch.where(taken, torch.where(taken, tensor, 1.0).log(), tensor)
