"""Units: inputs and outputs are standardised on the way into a model, and what it predicts is taken back out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import InputError
from nvdp.posteriors.prediction import Prediction

Numbers = tuple[float, ...]
RANGE_MARGIN = 1e-6  # of the range: a query at its very end is inside, whatever the rounding


@dataclass(frozen=True)
class DataScale:
    """v ↦ (v − centre) / spread, column by column, and the range of inputs that a model was trained on.

    >>> scale = DataScale.of([np.array([[0.0], [10.0]])], [np.array([[1.0], [3.0]])])
    >>> scale.x_in(np.array([[5.0], [10.0]])).flatten(), scale.outside(np.array([[5.0], [11.0]]))
    (tensor([0., 1.]), array([False,  True]))
    >>> scale.y_out(Prediction(torch.ones(1, 1, 1), torch.ones(1, 1, 1))).mean.item()
    3.0
    """

    x_centre: Numbers
    x_spread: Numbers
    y_centre: Numbers
    y_spread: Numbers
    x_low: Numbers
    x_high: Numbers

    @classmethod
    def of(cls, xs: Sequence[Float[np.ndarray, "_ x"]], ys: Sequence[Float[np.ndarray, "_ y"]]) -> Self:
        """The scale of some tasks: mean and standard deviation over all their points; a constant keeps its unit."""
        x, y = np.concatenate(xs), np.concatenate(ys)
        return cls(*_moments(x), *_moments(y), _numbers(x.min(0)), _numbers(x.max(0)))

    @classmethod
    def identity(cls, x_dim: int, y_dim: int, x_low: float = -np.inf, x_high: float = np.inf) -> Self:
        """Values as they are, for a model that was trained on such."""
        return cls((0.0,) * x_dim, (1.0,) * x_dim, (0.0,) * y_dim, (1.0,) * y_dim, (x_low,) * x_dim, (x_high,) * x_dim)

    def x_in(self, x: Float[np.ndarray, "*point x"]) -> Float[Tensor, "*point x"]:
        """Inputs as the model takes them."""
        return _standardised(x, self.x_centre, self.x_spread)

    def y_in(self, y: Float[np.ndarray, "*point y"]) -> Float[Tensor, "*point y"]:
        """Outputs as the model takes them."""
        return _standardised(y, self.y_centre, self.y_spread)

    def y_out(self, prediction: Prediction) -> Prediction:
        """A prediction in the units of the data, in float64."""
        centre, spread = (torch.tensor(v, dtype=torch.float64) for v in (self.y_centre, self.y_spread))
        functions, stds = prediction.functions.double() * spread + centre, prediction.stds.double() * spread
        return replace(prediction, functions=functions, stds=stds)

    def outside(self, x: Float[np.ndarray, "point x"]) -> Any:
        """Which points have an input outside the range of meta-training."""
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
            raise InputError(f"not the scale of a fitted model: {error}") from None


def _moments(values: Float[np.ndarray, "_ column"]) -> tuple[Numbers, Numbers]:
    centre, spread = values.mean(0), values.std(0)
    tiny = spread <= 1e-12 * np.maximum(np.abs(centre), 1e-300)  # a constant column, up to rounding
    return _numbers(centre), _numbers(np.where(tiny, 1.0, spread))


def _numbers(values: Any) -> Numbers:
    return tuple(float(value) for value in values)


def _standardised(values: Any, centre: Numbers, spread: Numbers) -> Tensor:
    scaled = (np.asarray(values, np.float64) - np.array(centre)) / np.array(spread)
    return torch.from_numpy(scaled).to(torch.get_default_dtype())
