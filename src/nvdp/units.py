"""Units: the one place where values are standardised on the way into a model, and predictions taken back out.

A model works on (v − centre) / spread. `Units` holds centre and spread of every column. `PosteriorInUnits` is a
posterior that is asked, and answers, in the user's units. Where a model works on values as they are, nothing is
computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet

Numbers = tuple[float, ...]
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

    x_centre: Numbers
    x_spread: Numbers
    y_centre: Numbers
    y_spread: Numbers
    x_low: Numbers
    x_high: Numbers

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

    def to_dict(self) -> dict[str, Any]:
        """Plain lists of numbers; None stands for no bound."""
        return {name: [v if np.isfinite(v) else None for v in values] for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        bound = {"x_low": -np.inf, "x_high": np.inf}
        try:
            return cls(**{k: tuple(bound[k] if v is None else float(v) for v in vs) for k, vs in values.items()})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"these are no units of a model: {error}") from None


class PosteriorInUnits:
    """A posterior that is asked, and answers, in the user's units.

    `standardised` is the model's own posterior. `log_prob`, quantiles and samples of a prediction are in the user's
    units too.
    """

    def __init__(self, standardised: Any, units: Units) -> None:
        self.standardised, self.units = standardised, units

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Any:
        """The prediction at x: see `nvdp.Posterior.predict`."""
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


def _numbers(values: Any) -> Numbers:
    return tuple(float(value) for value in values)


def _standardised(values: Any, centre: Numbers, spread: Numbers, name: str) -> Float[Tensor, "*point column"]:
    try:
        tensor = values.double() if isinstance(values, Tensor) else torch.tensor(np.asarray(values, np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if tensor.dim() == 1 and len(centre) == 1:
        tensor = tensor[:, None]
    if tensor.dim() < 2 or tensor.shape[-1] != len(centre):
        raise InputError(f"{name} has shape {tuple(tensor.shape)}; expected (points, {len(centre)})")
    return (tensor - tensor.new_tensor(centre)) / tensor.new_tensor(spread)
