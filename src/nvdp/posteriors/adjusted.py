"""A network's posterior after a fit to a table: around the table's hierarchical GP, and calibrated.

With a process the network works on its residuals: at each point it sees x and log s(x), and predicts the distribution
of z = (y − m(x)) / s(x), where m and s are the process's mean and deviation given the same context. Context points are
shown as residuals given the other context points. Without a correction, m + s·z is the process's answer.
Calibration stretches a prediction about its mean by a factor that depends on the number of context points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet


@runtime_checkable
class Conditioned(Protocol):
    """A process after the context of one task."""

    def predict(self, x: Tensor) -> Prediction:
        """What is expected at x."""
        ...

    def sample(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Prediction:
        """Coherent functions."""
        ...


@dataclass(frozen=True)
class Adjustment:
    """What a fit adds to its network.

    Attributes:
        process: The process whose residuals the network predicts, or None if it predicts the outputs themselves.
        sizes: Upper ends of the groups of context sizes; a last group has no end.
        factors: Of the predictive deviation, one for each group.
    """

    process: Any = None
    sizes: tuple[int, ...] = ()
    factors: tuple[float, ...] = (1.0,)

    def factor(self, counts: Int[Tensor, " task"]) -> Float[Tensor, " task"]:
        """The factor of tasks with so many context points.

        >>> Adjustment(sizes=(2, 5), factors=(1.5, 1.25, 1.0)).factor(torch.tensor([0, 2, 3, 9])).tolist()
        [1.5, 1.5, 1.25, 1.0]
        """
        group = torch.bucketize(counts, torch.tensor(self.sizes, dtype=counts.dtype))
        return torch.tensor(self.factors, dtype=torch.float64)[group]

    def adapt(self, model: Any, x: Any, y: Any = None, mask: Tensor | None = None) -> "AdjustedPosterior":
        """The posterior of a context in standardised units, given as ``model.adapt`` takes it."""
        points = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        single = not isinstance(x, PointSet) and torch.as_tensor(x).dim() < 3
        if self.process is None:
            return AdjustedPosterior(model, model.adapt(x, y, mask), self, points.mask.sum(1), points, single)
        network = model.adapt(self.process.residual_context(points))
        return AdjustedPosterior(model, network, self, points.mask.sum(1), points, single)


def of_tasks(answers: Sequence[Prediction]) -> Prediction:
    """The predictions of several tasks at equally many points as one."""
    functions, stds = (torch.stack([getattr(one, name) for one in answers], 1) for name in ("functions", "stds"))
    return Prediction(functions, stds)


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
        counts: Int[Tensor, " task"],
        points: PointSet | None,
        single: bool,
    ) -> None:
        self.model, self.network, self.adjustment, self.counts, self.points = model, network, adjustment, counts, points
        self.single, self.like, self.rates = single, network.like, network.rates
        self._after: Sequence[Conditioned] | None = None
        if adjustment.process is not None:
            if points is None:
                raise InputError("this model needs the points of a context themselves; adapt it to them again")
            self._after = adjustment.process.conditioned(points)

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Prediction:
        """The prediction at x: see `nvdp.Posterior.predict`. Sampled functions are coherent with the process too."""
        return self._answer(x, lambda network, at: network.predict(at, samples, generator), samples, generator)

    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Prediction:
        """Mixture components of single points: see `nvdp.Posterior.components`."""
        return self._answer(x, lambda network, at: network.components(at, samples, generator))

    def at_mean_parameters(self, x: Any) -> Prediction:
        """The prediction with φ at its mean: see `nvdp.Posterior.at_mean_parameters`."""
        return self._answer(x, lambda network, at: network.at_mean_parameters(at))

    def functions(self, samples: int, seed: int = 0) -> Callable[[Tensor], Any]:
        """Functions of the network, not calibrated, that stay the same wherever they are evaluated."""
        if self._after is not None:
            raise InputError("a model around a process has no functions that can be kept; fit one with --model nvdp")
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
            return AdjustedPosterior(self.model, network, self.adjustment, counts, None, self.single)
        pairs = ((old.x, new.x.to(old.x)), (old.y, new.y.to(old.y)), (old.mask, new.mask))
        both = self.adjustment.adapt(self.model, PointSet(*(torch.cat(pair, 1) for pair in pairs)))
        both.single = self.single
        return both

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "AdjustedPosterior":
        """The posterior as if some of its points had never been seen."""
        if self._after is not None:
            raise InputError("a model around a process cannot forget points; adapt it to the others")
        fewer = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        counts = self.counts - fewer.mask.sum(1)
        return AdjustedPosterior(
            self.model, self.network.forget(x, y, mask), self.adjustment, counts, None, self.single
        )

    def to_bytes(self) -> bytes:
        """What it takes to have this posterior again, if the network alone predicts."""
        if self._after is not None:
            raise InputError("a model around a process keeps its points; fit one with --model nvdp to store states")
        data: bytes = self.network.to_bytes()
        return data

    def _answer(
        self,
        x: Any,
        ask: Callable[[Any, Any], Prediction],
        samples: int = 0,
        generator: torch.Generator | int | None = None,
    ) -> Prediction:
        if self._after is None:
            return self._calibrated(ask(self.network, x))
        at = self._inputs(x)
        expected = self._expected(at)
        residual = ask(self.network, _seen(at, expected))
        functions = expected.functions + expected.stds * residual.functions
        stds = expected.stds * residual.stds
        if samples:
            drawn = self._drawn(at, samples, generator)
            functions = functions + residual.stds * (drawn.functions - expected.functions)
            stds = residual.stds * drawn.stds
        if self.single:
            functions, stds = functions[:, 0], stds[:, 0]
        return self._calibrated(Prediction(functions, stds, residual.coherent, residual.noise))

    def _inputs(self, x: Any) -> Float[Tensor, "task point x"]:
        at = torch.as_tensor(x, dtype=torch.float64)
        at = at[:, None] if at.dim() == 1 else at
        wide, tasks = self.adjustment.process.kernel.inputs, len(self.counts)
        if at.dim() not in (2, 3) or at.shape[-1] != wide or (at.dim() == 3 and len(at) != tasks):
            raise InputError(f"x has shape {tuple(at.shape)}; expected (points, {wide}) or ({tasks}, points, {wide})")
        return at.expand(tasks, -1, -1) if at.dim() == 2 else at

    def _expected(self, x: Float[Tensor, "task point x"]) -> Prediction:
        assert self._after is not None
        return of_tasks([one.predict(at) for one, at in zip(self._after, x, strict=True)])

    def _drawn(self, x: Tensor, samples: int, generator: torch.Generator | int | None) -> Prediction:
        assert self._after is not None
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator().manual_seed((generator or 0) + 1)
        return of_tasks([one.sample(at, samples, generator) for one, at in zip(self._after, x, strict=True)])

    def _batched(self) -> Self:
        return type(self)(self.model, self.network, self.adjustment, self.counts, self.points, False)

    def _calibrated(self, prediction: Prediction) -> Prediction:
        factor = self.adjustment.factor(self.counts)
        if bool((factor == 1).all()):
            return prediction
        factor = factor[0] if self.single else factor[:, None, None]
        mean = prediction.functions.double().mean(0)
        functions = mean + (prediction.functions.double() - mean) * factor
        return Prediction(functions, prediction.stds.double() * factor, prediction.coherent, prediction.noise)


def _seen(x: Float[Tensor, "task point x"], expected: Prediction) -> Float[Tensor, "task point feature"]:
    """What the network sees of points: x, and the logarithm of the process's deviation."""
    return torch.cat([x.to(expected.stds), expected.stds[0].log()], -1)
