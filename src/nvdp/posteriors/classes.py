"""Posteriors of few-shot classifiers: dropout for every class (eq. 2), and Gaussian class weights (VERSA)."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal, kl_divergence, register_kl
from torch.quasirandom import SobolEngine
from torch.special import ndtri

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
from nvdp.posteriors.base import FIXED_SAMPLES, Posterior, groups_of
from nvdp.posteriors.dropout import largest_array, moments_by_task, rates_of
from nvdp.posteriors.prediction import ClassPrediction, mixture_log_prob
from nvdp.randomness import standard_normal
from nvdp.tasks import PointSet


def gaussian_logits(
    mean: Float[Tensor, "task point way"], variance: Float[Tensor, "task point way"]
) -> Float[Tensor, "component task point way"]:
    """Equally weighted components of independent Gaussian logits, for an average of their softmax.

    The components are a fixed set of low discrepancy (Sobol), symmetric and of variance 1 for every class. Classes
    take its columns in the order of their mean logits, so that the answer does not depend on how they are numbered.

    >>> logits = gaussian_logits(torch.zeros(1, 1, 3), torch.ones(1, 1, 3))
    >>> logits.mean(0).abs().max().item() < 1e-6, torch.allclose(logits.var(0, correction=0), torch.ones(1, 1, 3))
    (True, True)
    """
    rank = mean.argsort(-1).argsort(-1)
    return torch.addcmul(mean, variance.clamp(min=0).sqrt(), _fixed_normal(mean.shape[-1]).to(mean)[:, rank])


@cache
def _fixed_normal(way: int) -> Float[Tensor, "component way"]:
    uniform = SobolEngine(way, scramble=True, seed=0).draw(FIXED_SAMPLES // 2, dtype=torch.float64)
    half = ndtri(uniform.clamp(1e-6, 1 - 1e-6))
    normal = torch.cat([half, -half])
    return normal / normal.square().mean(0).sqrt()


class ClassDropoutPosterior(Posterior[ClassPrediction]):
    """One shared network with one output, under dropout that every class of a task sets for itself.

    Each class of each task is a row of the rates, of the network's inputs and of the KL: eq. 2 to 4 as they are.
    """

    rates: Sequence[LayerRates]

    def __init__(
        self,
        rates: Sequence[LayerRates],
        network: DropoutNetwork,
        *,
        way: int,
        x_dim: int,
        representation: Float[Tensor, "row r"] | None = None,
        engine: Engine = FUSED,
    ) -> None:
        rows = rates[0].rows
        super().__init__(rows.new_empty(len(rows) // way, 1), x_dim, CategoricalLikelihood())
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

    @torch.no_grad()
    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> ClassPrediction:
        """Logits with noise drawn for each point by itself, which is several times as fast as sampling weights.

        Weights are independent, so given its inputs a layer's outputs at one point are independent Gaussians: the
        marginals are those of sampled weights; the joint distribution over points is not.
        """
        at = self._points(x)
        generator = self._generator(at, samples, generator)
        parts = [self._of(group)._with_local_noise(at[group], samples, generator) for group in self._groups(at)]
        return self._prediction(torch.cat(parts, 1), coherent=False)

    def closed_form(self, x: Float[Tensor, "task point x"]) -> ClassPrediction:
        """Mean and variance of every class's logit in closed form, then a fixed average of the softmax."""
        mean, covariance = moments_by_task(self.network, self._rows(x), self.rates)
        variance = covariance[0, 0, ..., None]  # (row, point, 1)
        return self._prediction(gaussian_logits(self._by_class(mean), self._by_class(variance)), coherent=False)

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
        at_once = groups_of(len(x), self.way * largest_array(self.network, x))[0]
        return [slice(start, start + at_once) for start in range(0, len(x), at_once)]

    def _of(self, tasks: slice) -> "ClassDropoutPosterior":
        """The posterior of some of the tasks."""
        rows = slice(tasks.start * self.way, tasks.stop * self.way)
        seen = None if self.representation is None else self.representation[rows]
        return ClassDropoutPosterior(
            rates_of(self.rates, rows),
            self.network,
            way=self.way,
            x_dim=self.x_dim,
            representation=seen,
            engine=self.engine,
        )

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


class ClassWeightPosterior(Posterior[ClassPrediction]):
    """Independent Gaussian weights of a linear classifier, the last of them a bias (VERSA)."""

    def __init__(self, weights: Normal, x_dim: int, training_samples: int) -> None:
        super().__init__(weights.loc.new_empty(len(weights.loc), 1), x_dim, CategoricalLikelihood())
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

    def closed_form(self, x: Float[Tensor, "task point x"]) -> ClassPrediction:
        """Logits are Gaussian and independent: their moments are exact, their softmax is averaged."""
        variance = _with_one(x).square() @ self.weights.scale.square().mT
        return self._prediction(gaussian_logits(self.mean_outputs(x), variance), coherent=False)

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """Σ_i log of the mean of p(y_i | x_i, φ) over several φ: what VERSA maximises, the predictive likelihood."""
        logits = self.sampled_outputs(self.embed(points.x), self.training_samples, generator)
        log_prob = self.likelihood.log_prob(logits, points.y.expand(self.training_samples, *points.y.shape))
        return (mixture_log_prob(log_prob) * points.mask).sum(-1)


def _with_one(x: Float[Tensor, "task point x"]) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)


@register_kl(ClassDropoutPosterior, ClassDropoutPosterior)
def _kl_dropout(q: ClassDropoutPosterior, p: ClassDropoutPosterior) -> Float[Tensor, " task"]:
    return q.engine.kl(q.rates, p.rates).unflatten(0, (-1, q.way)).sum(1)


@register_kl(ClassWeightPosterior, ClassWeightPosterior)
def _kl_weights(q: ClassWeightPosterior, p: ClassWeightPosterior) -> Float[Tensor, " task"]:
    return kl_divergence(q.weights, p.weights).sum((-2, -1))
