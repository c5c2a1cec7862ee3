"""Posteriors of few-shot classifiers: class-wise dropout (eq. 2 for every class), Gaussian weights, a single point.

The points given to a posterior pass ``embed`` first: the feature extractor if the posterior came from images, nothing
if it came from features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal, kl_divergence, register_kl

from nvdp.nn.dropout import (
    DropoutNetwork,
    LayerForward,
    LocalNoise,
    MeanWeights,
    SampledWeights,
    local_moments,
    with_noise,
)
from nvdp.nn.fused import FUSED, Engine
from nvdp.nn.likelihoods import CategoricalLikelihood
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.base import NUMBERS_AT_ONCE, TaskPosterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.randomness import standard_normal
from nvdp.tasks import PointSet


def _unchanged(x: Tensor) -> Tensor:
    return x


class ClassPosterior(TaskPosterior):
    """What is known about a task's classes after its support: predicts the classes of queries."""

    likelihood: CategoricalLikelihood
    embed: Callable[[Tensor], Tensor] = staticmethod(_unchanged)

    def __init__(self, like: Float[Tensor, "task _"], x_dim: int) -> None:
        super().__init__(like, x_dim, CategoricalLikelihood())

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """A one-sample estimate of E_q[Σ_i log p(y_i | x_i, φ)] for each task."""
        return super().expected_log_likelihood(replace(points, x=self.embed(points.x)), generator)

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> ClassPrediction:
        """The classes at x: (points, features), or (tasks, points, features) for several tasks.

        ``samples=0`` uses the mean parameters; otherwise probabilities are averaged over that many classifiers, drawn
        from `generator` (a generator or a seed; 0 if absent, so that the same call gives the same answer).
        """
        with torch.no_grad():
            points = self.embed(self._inputs(x))
            by_sample = self.likelihood(self._outputs_at(points, samples, generator))
        return ClassPrediction(by_sample[:, 0] if self.single else by_sample)


class PointClassPosterior(ClassPosterior):
    """A single classifier, no distribution over φ: prototypes, attention, adapted weights."""

    def __init__(self, like: Float[Tensor, "task _"], x_dim: int, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__(like, x_dim)
        self.logits = logits

    @property
    def size(self) -> int:
        """Nothing is random."""
        return 0

    def mean_outputs(self, x: Tensor) -> Tensor:
        """The one classifier's logits (task, point, way)."""
        return self.logits(x)

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """The same logits for every sample."""
        logits = self.mean_outputs(x)
        return logits.expand(samples, *logits.shape)


class ClassDropoutPosterior(ClassPosterior):
    """One shared network with one output, under dropout that every class of a task sets for itself.

    Each class of each task is a row of the rates, of the network's inputs and of the KL: eq. 2 to 4 as they are.
    """

    def __init__(
        self,
        rates: Sequence[LayerRates],
        network: DropoutNetwork,
        way: int,
        x_dim: int,
        representation: Float[Tensor, "row r"] | None = None,
        engine: Engine = FUSED,
    ) -> None:
        rows = rates[0].rows
        super().__init__(rows.new_empty(len(rows) // way, 1), x_dim)
        self.rates, self.network, self.way = rates, network, way
        self.representation, self.engine = representation, engine

    @property
    def size(self) -> int:
        """Weights and biases of the network, for every class."""
        return self.way * sum(k * d + d for k, d in self.network.layer_shapes)

    def mean_rates(self) -> Float[Tensor, "task layer"]:
        """The mean dropout rate of every layer's weights, over classes."""
        rates = torch.stack([layer.mean() for layer in self.rates], dim=-1)
        return rates.unflatten(0, (-1, self.way)).mean(1)

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Logits with the mean weights (1−P)θ."""
        return self._through(x, MeanWeights())

    def training_outputs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Logits by local reparameterisation."""
        return self._through(x, LocalNoise(generator, self.engine.local_noise))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Logits of sampled weights, a bounded number of tasks and one sample at a time."""
        way, groups = SampledWeights(1, generator), self._groups(x)
        return torch.stack(
            [torch.cat([self._of(group)._through(x[group], way)[0] for group in groups]) for _ in range(samples)]
        )

    def predictive_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Logits with noise drawn for each point by itself, which is several times as fast as sampling weights.

        Weights are independent, so given its inputs a layer's outputs at one point are independent Gaussians: every
        single point's logits are distributed as under sampled weights. Only points together are not.
        """
        return torch.cat(
            [self._of(group)._with_local_noise(x[group], samples, generator) for group in self._groups(x)], 1
        )

    def _with_local_noise(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        layers, rows = list(self.network.dropout_layers()), self._rows(x)
        first = local_moments(layers[0], rows, self.rates[0])  # of all samples: they share their inputs
        drawn = []
        for _ in range(samples):
            h = with_noise(*first, generator)
            for layer, rates in zip(layers[1:], self.rates[1:], strict=True):
                h = with_noise(*local_moments(layer, self.network.activation(h), rates), generator)
            drawn.append(self._by_class(h))
        return torch.stack(drawn)

    def _groups(self, x: Tensor) -> list[slice]:
        """Tasks in groups whose largest array is bounded."""
        largest = self.way * max(max(k, x.shape[1]) * d for k, d in self.network.layer_shapes)
        at_once = max(1, NUMBERS_AT_ONCE // largest)
        return [slice(start, start + at_once) for start in range(0, len(x), at_once)]

    def _of(self, tasks: slice) -> "ClassDropoutPosterior":
        """The posterior of some of the tasks."""
        rows = slice(tasks.start * self.way, tasks.stop * self.way)
        rates = [replace(r, rows=r.rows[rows], columns=r.columns[rows], layer=r.layer[rows]) for r in self.rates]
        seen = None if self.representation is None else self.representation[rows]
        return ClassDropoutPosterior(rates, self.network, self.way, self.x_dim, seen, self.engine)

    def _through(
        self, x: Float[Tensor, "task point x"], layer: LayerForward
    ) -> Float[Tensor, "*sample task point way"]:
        return self._by_class(self.network(self._rows(x), self.rates, layer))

    def _rows(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "row point inputs"]:
        """A task's points once for each of its classes."""
        x = x.repeat_interleave(self.way, dim=0)
        if self.representation is not None:
            x = torch.cat([x, self.representation[:, None].expand(-1, x.shape[1], -1)], dim=-1)
        return x

    def _by_class(self, outputs: Float[Tensor, "*sample row point 1"]) -> Float[Tensor, "*sample task point way"]:
        return outputs.squeeze(-1).unflatten(-2, (-1, self.way)).mT


class ClassWeightPosterior(ClassPosterior):
    """Independent Gaussian weights of a linear classifier, the last of them a bias (VERSA)."""

    def __init__(self, weights: Normal, x_dim: int, training_samples: int) -> None:
        super().__init__(weights.loc.new_empty(len(weights.loc), 1), x_dim)
        self.weights, self.training_samples = weights, training_samples

    @property
    def size(self) -> int:
        """Weights and biases of all classes."""
        return self.weights.loc[0].numel()

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Logits with the mean weights."""
        return _with_one(x) @ self.weights.loc.mT

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Logits of sampled weights."""
        loc, scale = self.weights.loc, self.weights.scale
        noise = standard_normal((samples, *loc.shape), loc, generator)
        return _with_one(x) @ torch.addcmul(loc, scale, noise).mT

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """Σ_i log of the mean of p(y_i | x_i, φ) over several φ: what VERSA maximises, the predictive likelihood."""
        x = self.embed(points.x)
        logits = self.sampled_outputs(x, self.training_samples, generator)
        log_prob = self.likelihood.log_prob(logits, points.y.expand(self.training_samples, *points.y.shape))
        predictive = ClassPrediction(log_prob[..., None]).log_probabilities[..., 0]
        return (predictive * points.mask).sum(-1)


def _with_one(x: Float[Tensor, "task point x"]) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)


@register_kl(ClassDropoutPosterior, ClassDropoutPosterior)
def _kl_dropout(q: ClassDropoutPosterior, p: ClassDropoutPosterior) -> Float[Tensor, " task"]:
    return q.engine.kl(q.rates, p.rates).unflatten(0, (-1, q.way)).sum(1)


@register_kl(ClassWeightPosterior, ClassWeightPosterior)
def _kl_weights(q: ClassWeightPosterior, p: ClassWeightPosterior) -> Float[Tensor, " task"]:
    return kl_divergence(q.weights, p.weights).sum((-2, -1))


@register_kl(PointClassPosterior, PointClassPosterior)
def _kl_point(q: PointClassPosterior, p: PointClassPosterior) -> Float[Tensor, " task"]:
    return q.like.new_zeros(q.batch_shape)
