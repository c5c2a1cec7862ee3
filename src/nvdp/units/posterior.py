"""`PosteriorInUnits`: a posterior that is asked, and answers, in the user's units."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import FarNote
from nvdp.posteriors.prediction import Prediction
from nvdp.units.context import TaskUnits
from nvdp.units.fixed import Units


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
