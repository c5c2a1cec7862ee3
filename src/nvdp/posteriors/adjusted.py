"""A network's posterior after a fit to a table: blended with the table's hierarchical GP, and calibrated.

The prediction is a mixture: a share of it is the network's, the rest the process's. Around the process the network
works on its residuals: at each point it sees x and log s(x), and predicts the distribution of z = (y − m(x)) / s(x),
where m and s are the process's mean and deviation given the same context. Context points are shown as residuals given
the other context points. Calibration stretches a prediction about its mean by a factor that depends on the number of
context points, and on whether a point lies beyond them. A small share of the prediction may be wider: outliers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet

Ask = Callable[[Any, Any, int], Prediction]  # of a network's posterior, at some points, with so many samples


@dataclass(frozen=True)
class Adjustment:
    """What a fit adds to its network.

    Attributes:
        process: The hierarchical GP of the table, if there is one.
        around: Whether the network predicts residuals of the process, and not the outputs themselves.
        share: The network's weight in the mixture with the process.
        sizes: Upper ends of the groups of context sizes; a last group has no end.
        factors: Of the predictive deviation, one for each group.
        factors_ahead: The same of points beyond the last context point, where x is one input.
        tail: The share of outliers, and how much wider they are. Sampled functions have none.
    """

    process: Any = None
    around: bool = False
    share: float = 1.0
    sizes: tuple[int, ...] = ()
    factors: tuple[float, ...] = (1.0,)
    factors_ahead: tuple[float, ...] = (1.0,)
    tail: tuple[float, float] = (0.0, 1.0)

    def factor(self, counts: Int[Tensor, " task"], ahead: bool = False) -> Float[Tensor, " task"]:
        """The factor of tasks with so many context points.

        >>> Adjustment(sizes=(2, 5), factors=(1.5, 1.25, 1.0)).factor(torch.tensor([0, 2, 3, 9])).tolist()
        [1.5, 1.5, 1.25, 1.0]
        """
        group = (counts[:, None] > torch.tensor(self.sizes, dtype=counts.dtype)).sum(1)
        return torch.tensor(self.factors_ahead if ahead else self.factors, dtype=torch.float64)[group]

    def adapt(self, model: Any, x: Any, y: Any = None, mask: Tensor | None = None) -> "AdjustedPosterior":
        """The posterior of a context in standardised units, given as ``model.adapt`` takes it."""
        several = self.process is not None and self.process.kernel.outputs > 1  # some of which may be missing
        points = x if isinstance(x, PointSet) else PointSet.of(x, y, mask, missing=several)
        single = not isinstance(x, PointSet) and np.ndim(x) < 3
        network = model.adapt(x, y, mask) if self.process is None else model.adapt(self.shown(points))
        return AdjustedPosterior(model, network, self, counts=points.mask.sum(1), points=points, single=single)

    def shown(self, points: PointSet) -> PointSet:
        """A context as the network sees it."""
        if self.process is None:
            return points
        seen: PointSet = self.process.residual_context(points) if self.around else self.process.filled(points)
        return seen

    @property
    def calibrated(self) -> bool:
        """Whether any factor is not 1, or there is a tail."""
        return self.tail[0] > 0 or any(factor != 1 for factor in (*self.factors, *self.factors_ahead))


def only_first_varies(process: Any, inputs: int) -> bool:
    """Whether only the first input changes within a task, so that points may lie beyond a context."""
    return inputs == 1 if process is None else process.kernel.varying == (0,)


def blend(first: Prediction, second: Prediction, share: float) -> Prediction:
    """The mixture of two predictions; `share` is the weight of the first.

    >>> two = [Prediction(torch.full((1, 1, 1), mean), torch.ones(1, 1, 1)) for mean in (0.0, 4.0)]
    >>> blend(*two, share=0.25).mean.item()
    3.0
    """
    if share in (0.0, 1.0):
        return first if share else second
    parts = []
    for each, weight in ((first, share), (second, 1 - share)):
        equal = torch.full((len(each.functions),), -math.log(len(each.functions))).to(second.stds)
        own = equal.view(-1, *(1,) * (each.functions.dim() - 1)) if each.log_weights is None else each.log_weights
        parts.append(own.to(second.stds).expand_as(each.functions) + math.log(weight))
    functions, stds = (torch.cat([each.to(second.stds) for each in pair]) for pair in _pairs(first, second))
    return Prediction(functions, stds, False, torch.cat(parts))


def stretched(prediction: Prediction, factor: float | Tensor) -> Prediction:
    """The prediction, in float64, with all distances from its mean multiplied."""
    mean = prediction.mean.double()
    functions = mean + (prediction.functions.double() - mean) * factor
    return replace(prediction, functions=functions, stds=prediction.stds.double() * factor)


def with_tail(prediction: Prediction, share: float, width: float) -> Prediction:
    """The mixture of a prediction and, with weight `share`, the same stretched by `width`.

    >>> narrow = Prediction(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    >>> round(with_tail(narrow, 0.2, 3.0).std.square().item(), 4)
    2.6
    """
    return blend(stretched(prediction, width), prediction, share)


def _pairs(first: Prediction, second: Prediction) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (first.functions, second.functions), (first.stds, second.stds)


class AdjustedPosterior:
    """A posterior in standardised units, around a process and calibrated.

    Args:
        model: The network's model.
        network: Its posterior; of residuals where there is a process.
        adjustment: What the fit has found.
        counts: How many points the context of each task has.
        points: The context, if it is known.
        single: Whether it is one task given without a task axis.
    """

    def __init__(
        self,
        model: Any,
        network: Any,
        adjustment: Adjustment,
        *,
        counts: Int[Tensor, " task"],
        points: PointSet | None,
        single: bool,
    ) -> None:
        self.model, self.network, self.adjustment, self.counts, self.points = model, network, adjustment, counts, points
        self.single, self.like, self.rates = single, network.like, network.rates
        self._after: Any = None  # the process after the contexts
        if adjustment.process is not None:
            if points is None:
                raise InputError("this model needs the points of a context themselves; adapt it to them again")
            self._after = adjustment.process.given(points)

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Prediction:
        """The prediction at x: see `nvdp.Posterior.predict`. Sampled functions are coherent with the process too."""
        return self._answer(x, lambda network, at, count: network.predict(at, count, generator), samples, generator)

    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Prediction:
        """Mixture components of single points: see `nvdp.Posterior.components`."""
        return self._answer(x, lambda network, at, _: network.components(at, samples, generator))

    def at_mean_parameters(self, x: Any) -> Prediction:
        """The prediction with φ at its mean: see `nvdp.Posterior.at_mean_parameters`."""
        return self._answer(x, lambda network, at, _: network.at_mean_parameters(at))

    def functions(self, samples: int, seed: int = 0) -> Callable[[Tensor], Any]:
        """Functions of the network, not calibrated, that stay the same wherever they are evaluated."""
        if self._after is not None:
            raise InputError(
                "a model around a process has no functions that can be kept; fit one by `nvdp fit --model nvdp`"
            )
        functions: Callable[[Tensor], Any] = self.network.functions(samples, seed)
        return functions

    def suggest(self, candidates: Any, k: int = 1, **options: Any) -> Int[Tensor, "*task k"]:
        """Which candidates to observe next: see `nvdp.Posterior.suggest`.

        Around a process these are the ones with the largest predictive deviation, each chosen as if the ones before had
        been observed at their means.
        """
        if self._after is None:
            chosen: Tensor = self.network.suggest(candidates, k, **options)
            return chosen
        at = torch.as_tensor(candidates, dtype=torch.float64)
        at = at.reshape(-1, 1) if at.dim() == 1 else at
        at = at.expand(len(self.counts), -1, -1) if at.dim() == 2 else at
        if not 1 <= k <= at.shape[1]:
            raise InputError(f"k is {k}; expected 1 to {at.shape[1]}, the number of candidates")
        now: AdjustedPosterior = self._batched()
        places: list[Tensor] = []
        for _ in range(k):
            prediction = now.predict(at)
            spread = prediction.std.sum(-1)
            if places:
                spread = spread.scatter(1, torch.stack(places, 1), -1.0)
            places.append(spread.argmax(1))
            each = torch.arange(len(at))
            now = now.update(at[each, places[-1]][:, None], prediction.mean[each, places[-1]][:, None])
        order = torch.stack(places, 1)
        return order[0] if self.single else order

    def mean_rates(self) -> Float[Tensor, "task layer"] | None:
        """The mean dropout rate of every layer's weights, if there are any."""
        rates: Tensor | None = self.network.mean_rates()
        return rates

    @property
    def memory(self) -> Any:
        """The sums that the network's posterior goes on learning from; around a process there are none."""
        return self.network.memory if self._after is None else None

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "AdjustedPosterior":
        """The posterior given these points too."""
        new = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        old, counts = self.points, self.counts + new.mask.sum(1)
        if self._after is None or old is None:
            network = self.network.update(x, y, mask)
            return self._with_network(network, counts)
        pairs = ((old.x, new.x.to(old.x)), (old.y, new.y.to(old.y)), (old.mask, new.mask))
        both = self.adjustment.adapt(self.model, PointSet(*(torch.cat(pair, 1) for pair in pairs)))
        both.single = self.single
        return both

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "AdjustedPosterior":
        """The posterior as if some of its points had never been seen."""
        if self._after is not None:
            raise InputError("a model around a process cannot forget points; adapt it to the others")
        fewer = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        return self._with_network(self.network.forget(x, y, mask), self.counts - fewer.mask.sum(1))

    def _with_network(self, network: Any, counts: Int[Tensor, " task"]) -> "AdjustedPosterior":
        """The same adjustment of another network posterior; its context points are not kept."""
        return AdjustedPosterior(self.model, network, self.adjustment, counts=counts, points=None, single=self.single)

    def to_bytes(self) -> bytes:
        """What it takes to have this posterior again, if the network alone predicts."""
        if self._after is not None:
            raise InputError("a model around a process keeps its points; fit one with --model nvdp to store states")
        data: bytes = self.network.to_bytes()
        return data

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """The best prediction without sampling, of checked inputs: see `nvdp.Posterior.closed_form`."""
        return self._answer(x, lambda network, at, _: network.closed_form(at.to(self.like)))

    def _answer(
        self,
        x: Any,
        ask: Ask,
        samples: int = 0,
        generator: torch.Generator | int | None = None,
    ) -> Prediction:
        if self._after is None:
            alone = ask(self.network, x, samples)
            return self._calibrated(alone if samples else with_tail(alone, *self.adjustment.tail), x)
        at, share = self._inputs(x), self.adjustment.share
        if samples:
            return self._calibrated(self._functions(at, ask, samples, generator), at)
        network = self._of_network(at, ask) if share else None
        process = self._after.predict(at) if share < 1 else None
        prediction = blend(network, process, share) if network and process else network or process
        assert prediction is not None
        return self._calibrated(with_tail(prediction, *self.adjustment.tail), at)

    def _of_network(self, at: Tensor, ask: Ask, samples: int = 0) -> Prediction:
        """The network's answer; around a process that of its residuals, at the process's mean and deviation."""
        if not self.adjustment.around:
            return ask(self.network, at.to(self.like), samples)
        expected = self._plain.predict(at)
        residual = ask(self.network, _seen(at, expected), samples)
        functions = expected.functions + expected.stds * residual.functions
        stds = expected.stds * residual.stds
        return Prediction(functions, stds, residual.coherent, residual.log_weights, residual.noise)

    @cached_property
    def _plain(self) -> Any:
        """The process as the network knows it: all tasks have the same scales."""
        return self.adjustment.process.plain.given(self.points)

    def _functions(self, at: Tensor, ask: Ask, samples: int, generator: torch.Generator | int | None) -> Prediction:
        """Coherent functions: the network's share of them, then those of the process."""
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator().manual_seed((generator or 0) + 1)
        own = round(self.adjustment.share * samples)
        parts = []
        if own:
            of_network = self._of_network(at, ask, own)
            functions, stds = of_network.functions[:own], of_network.stds[:own]
            if self.adjustment.around:
                expected, drawn = self._plain.predict(at), self._plain.sample(at, own, generator)
                scale = stds / expected.stds
                functions, stds = functions + scale * (drawn.functions - expected.functions), scale * drawn.stds
            parts.append((functions.double(), stds.double()))
        if own < samples:
            drawn = self._after.sample(at, samples - own, generator)
            parts.append((drawn.functions, drawn.stds))
        functions, stds = (torch.cat(part) for part in zip(*parts, strict=True))
        return Prediction(functions, stds)

    def _inputs(self, x: Any) -> Float[Tensor, "task point x"]:
        at = torch.as_tensor(x, dtype=torch.float64)
        at = at[:, None] if at.dim() == 1 else at
        wide, tasks = self.adjustment.process.kernel.inputs, len(self.counts)
        if at.dim() not in (2, 3) or at.shape[-1] != wide or (at.dim() == 3 and len(at) != tasks):
            raise InputError(f"x has shape {tuple(at.shape)}; expected (points, {wide}) or ({tasks}, points, {wide})")
        return at.expand(tasks, -1, -1) if at.dim() == 2 else at

    def _batched(self) -> Self:
        return type(self)(
            self.model, self.network, self.adjustment, counts=self.counts, points=self.points, single=False
        )

    def _calibrated(self, prediction: Prediction, x: Any) -> Prediction:
        """The prediction stretched about its mean, without the axis of a single task."""
        functions, stds, log_weights = prediction.functions, prediction.stds, prediction.log_weights
        if self._after is not None and self.single:
            functions, stds = functions[:, 0], stds[:, 0]
            log_weights = None if log_weights is None else log_weights[:, 0]
            x = x[0]
        prediction = Prediction(functions, stds, prediction.coherent, log_weights, prediction.noise)
        if not self.adjustment.calibrated:
            return prediction
        return stretched(prediction, self._factor(x, prediction))

    def _factor(self, x: Any, prediction: Prediction) -> Tensor:
        """Of each point: tasks with few context points, and points beyond them, have factors of their own."""
        inside, beyond = (self.adjustment.factor(self.counts, ahead) for ahead in (False, True))
        points = self.points
        size, wide = (0, 0) if points is None else points.x.shape[1:]
        if points is None or not size or not only_first_varies(self.adjustment.process, wide):
            return inside[0] if self.single else inside[:, None, None]
        last = torch.where(points.mask, points.x[..., 0].double(), -math.inf).amax(1)
        at = torch.as_tensor(x, dtype=torch.float64)
        at = (at if at.dim() == 1 else at[..., 0]).reshape(-1, prediction.stds.shape[-2])
        ahead = (at > last[:, None]) & (self.counts > 0)[:, None]
        factor = torch.where(ahead, beyond[:, None], inside[:, None])[..., None]
        return factor[0] if self.single else factor


def _seen(x: Float[Tensor, "task point x"], expected: Prediction) -> Float[Tensor, "task point feature"]:
    """What the network sees of points: x, and the logarithm of the process's deviation."""
    return torch.cat([x.to(expected.stds), expected.stds[0].log()], -1)
