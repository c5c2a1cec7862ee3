"""Dropout rates of the last layer that differ from target to target.

The row experts of eq. 3 are s(a_k + t_k(x)), where t(x) is a linear map of what the target x reads of the context. A
weight is w_k(x) = (1−P_k(x))θ_k + √(P_k(x)(1−P_k(x))) θ_k ε_k with one ε_k for all x, so that a sample is one coherent
function. With the last hidden layer a(x), f(x) = Σ_k a_k(x) w_k(x) is Gaussian at any number of points together: f has
mean Σ_k a_k(1−P_k)θ_k and the basis functions a_k√(P_k(1−P_k))θ_k. Far from the context a target raises its own rates.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nvdp.nn.dropout import MeanWeights, SampledWeights
from nvdp.posteriors.base import Features, groups_of
from nvdp.posteriors.dropout import KeptWeights, largest_array
from nvdp.posteriors.integrated import SMALLEST_VARIANCE, IntegratedPosterior, joint_log_density
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import standard_normal
from nvdp.tasks import PointSet

LOGIT_LIMIT = 1e-6  # of an expert: keeps its logit finite


class TargetRatesPosterior(IntegratedPosterior):
    """A dropout posterior whose last layer is integrated out and has rates of its own at each target.

    Attributes:
        logits: t(x) from what a target reads, one for each row of the last layer.
    """

    logits: Features
    change: Callable[[Tensor], Tensor] | None = None  # of the experts, to ask what they are worth

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The posterior with every expert changed, those of targets included."""
        other = copy(super().changed(change))
        other.change = change
        return other

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with the mean weights (1−P)θ."""
        seen = self.seen(x)
        return self._last_moments(self.network.hidden(x, self.rates, MeanWeights(), seen), seen)[0]

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs of sampled weights, a bounded number of samples at a time."""
        groups = groups_of(samples, len(x) * largest_array(self.network, x))
        ways = [SampledWeights(group, generator) for group in groups]
        return torch.cat([self._functions(x, way, self._noise(way.samples, generator)) for way in ways])

    def _kept_outputs(self, samples: int, seed: int) -> Callable[[Tensor], Tensor]:
        generator = torch.Generator(device=self.like.device).manual_seed(seed)
        noise = self._noise(samples, generator)
        way = KeptWeights(samples, generator)
        return lambda x: self._functions(x, way, noise)

    def _without_sampling(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """At the mean of the hidden layers."""
        return self._integrated(x, MeanWeights())

    def _noise(self, samples: int, generator: torch.Generator | None) -> Float[Tensor, "sample task weight y"]:
        weights = self._last()[0].shape[0] + 1  # the last one is the bias
        return standard_normal((samples, len(self.like), weights, self.likelihood.y_dim), self.like, generator)

    def _functions(
        self, x: Tensor, way: SampledWeights, noise: Float[Tensor, "sample task weight y"]
    ) -> Float[Tensor, "sample task point output"]:
        seen = self.seen(x)
        hidden = self.network.hidden(x, self.rates, way, seen)
        outputs, _ = self._last_moments(hidden, seen)
        offset = torch.einsum("stpwy,stwy->stpy", self._basis(hidden, seen), noise)
        return outputs + F.pad(offset, (0, outputs.shape[-1] - offset.shape[-1]))

    def _rates_at(self, seen: Any) -> tuple[Float[Tensor, "task point k output"], Float[Tensor, "task 1 output"]]:
        """P of the last layer's weights at each target, and of its biases."""
        _, rates = self._last()
        rows = torch.sigmoid(torch.logit(rates.rows, LOGIT_LIMIT)[:, None] + self.logits(seen))
        rows = rows if self.change is None else self.change(rows)
        columns = rates.columns * rates.layer
        return rates.bounds(rows[..., None] * columns[:, None, None]), rates.bias()[:, None]

    def _last_moments(self, hidden: Tensor, seen: Any) -> tuple[Tensor, Tensor]:
        layer, _ = self._last()
        weight_rates, bias_rates = self._rates_at(seen)
        mean = torch.einsum("...k,...kd->...d", hidden, (1 - weight_rates) * layer.weight)
        return mean + (1 - bias_rates) * layer.bias, self._basis(hidden, seen).square().sum(-2)

    def _last_density(self, points: PointSet, hidden: Tensor, seen: Any, outputs: Tensor) -> Float[Tensor, " task"]:
        mean, noise_std = self.likelihood(outputs)
        basis = self._basis(hidden, seen)  # (task, point, weight, y)
        total = outputs.new_zeros(len(outputs))
        for output in range(self.likelihood.y_dim):  # outputs are independent given the context
            apart, own = PointSet(points.x, points.y[..., output, None], points.mask), basis[..., output]
            variance = F.pad(torch.ones_like(own[:, :1].mT), (0, 0, 0, 1))  # the bias is in the basis
            parts = (mean[..., output, None], variance, noise_std[..., output, None])
            total = total + joint_log_density(apart, own, *parts)
        return total

    def _basis(self, hidden: Float[Tensor, "*sample task point k"], seen: Any) -> Tensor:
        """a_k(x) √(P(1−P)) θ of the function, the bias as a last weight: (*sample, task, point, weight, y)."""
        layer, _ = self._last()
        size = self.likelihood.y_dim
        weights, biases = (
            (rate * (1 - rate) + SMALLEST_VARIANCE).sqrt()[..., :size] * theta[..., :size]
            for rate, theta in zip(self._rates_at(seen), (layer.weight, layer.bias), strict=True)
        )
        of_weights = hidden[..., None] * weights
        of_bias = biases[:, :, None].expand(*of_weights.shape[:-2], 1, size)
        return torch.cat([of_weights, of_bias], dim=-2)
