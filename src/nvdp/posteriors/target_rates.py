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

from nvdp.nn.dropout import LayerForward, MeanWeights, SampledWeights
from nvdp.posteriors.base import Features, groups_of
from nvdp.posteriors.dropout import KeptWeights, largest_array
from nvdp.posteriors.integrated import IntegratedPosterior, LastLayer
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import standard_normal

LOGIT_LIMIT = 1e-6  # of an expert: keeps its logit finite


class TargetRatesPosterior(IntegratedPosterior):
    """A dropout posterior whose last layer is integrated out and has rates of its own at each target.

    Args:
        parts: As of `IntegratedPosterior`.
        logits: t(x) from what a target reads, one for each row of the last layer.
        reads: Whether the network receives it too; otherwise rates are the only path from context to prediction.
        options: As of `IntegratedPosterior`.
    """

    change: Callable[[Tensor], Tensor] | None = None  # of the experts, to ask what they are worth

    def __init__(self, *parts: Any, logits: Features, reads: bool = True, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.logits, self.reads = logits, reads

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The posterior with every expert changed, those of targets included."""
        other = copy(super().changed(change))
        other.change = change
        return other

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with the mean weights (1−P)θ."""
        seen = self.seen(x)
        return self._last_layer(self._hidden(x, MeanWeights(), seen), seen).outputs

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

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """At the mean of the hidden layers."""
        return self._integrated(x, MeanWeights())

    def _noise(self, samples: int, generator: torch.Generator | None) -> Float[Tensor, "sample task y weight"]:
        weights = self._last()[0].shape[0] + 1  # the last one is the bias
        noise = standard_normal((samples, len(self.like), weights, self.likelihood.y_dim), self.like, generator)
        return noise.mT  # drawn weight by weight: a seed gives the functions that it gave in earlier versions

    def _functions(
        self, x: Tensor, way: SampledWeights, noise: Float[Tensor, "sample task y weight"]
    ) -> Float[Tensor, "sample task point output"]:
        seen = self.seen(x)
        outputs, basis = self._outputs_and_basis(self._hidden(x, way, seen), seen)
        offset = torch.einsum("stypw,styw->stpy", basis, noise)
        return outputs + F.pad(offset, (0, outputs.shape[-1] - offset.shape[-1]))

    def _hidden(self, x: Tensor, way: LayerForward, seen: Tensor | None) -> Float[Tensor, "*sample task point k"]:
        return super()._hidden(x, way, seen if self.reads else None)

    def _last_layer(self, hidden: Tensor, seen: Any) -> LastLayer:
        outputs, basis = self._outputs_and_basis(hidden, seen)
        return LastLayer(outputs, lambda: basis.square().sum(-1).mT, lambda: basis)

    def _outputs_and_basis(
        self, hidden: Float[Tensor, "*sample task point k"], seen: Any
    ) -> tuple[Float[Tensor, "*sample task point output"], Float[Tensor, "*sample task y point weight"]]:
        """Mean outputs, and a_k(x) √(P(1−P)) θ of the function with the bias as a last weight."""
        (layer, rates), size = self._last(), self.likelihood.y_dim
        rows, columns, of_bias = self._rows_at(seen), rates.columns * rates.layer, rates.bias()[:, None]
        outputs = self._mean(hidden, rows, columns) + (1 - of_bias) * layer.bias
        return outputs, self.engine.basis(layer, hidden, rows, columns[:, :size], rates.bounds)

    def _mean(
        self,
        hidden: Float[Tensor, "*sample task point k"],
        rows: Float[Tensor, "task point k"],
        columns: Float[Tensor, "task output"],
    ) -> Float[Tensor, "*sample task point output"]:
        """Σ_k a_k (1−P_k) θ_k: where P is affine in the product of experts, two products of matrices."""
        layer, rates = self._last()
        if not rates.low_rank:
            kept = 1 - rates.bounds(rows[..., None] * columns[:, None, None])
            return (hidden[..., None] * (kept * layer.weight)).sum(-2)
        floor = rates.bounds.floor
        dropped = columns[:, None] * ((hidden * rows) @ layer.weight)
        return (1 - floor) * (hidden @ layer.weight) - (1 - 2 * floor) * dropped

    def _rows_at(self, seen: Any) -> Float[Tensor, "task point k"]:
        """The row experts of the last layer at each target."""
        _, rates = self._last()
        rows = torch.sigmoid(torch.logit(rates.rows, LOGIT_LIMIT)[:, None] + self.logits(seen))
        return rows if self.change is None else self.change(rows)
