"""The dropout posterior of NVDP, eq. 2: q(φ | D_C) = N((1−P)θ, P(1−P)θ²), its KL, and its closed-form predictions."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import register_kl
from torch.special import ndtri

from nvdp.nn.dropout import DropoutLinear, DropoutNetwork, LocalNoise, MeanWeights, SampledWeights
from nvdp.nn.fused import FUSED, Engine
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.nn.moments import output_moments
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.base import Features, Posterior, groups_of
from nvdp.posteriors.prediction import Prediction

STRATA = 8  # of the raw σ where it is an output of the network
# The middles of equally probable parts of a standard normal, together of variance 1.
_MIDDLES = ndtri((torch.arange(STRATA, dtype=torch.float64) + 0.5) / STRATA)
_MIDDLES = (_MIDDLES / _MIDDLES.square().mean().sqrt()).tolist()


class DropoutPosterior(Posterior[Prediction]):
    """Weights of a shared network under task-specific dropout, eq. 2."""

    likelihood: GaussianLikelihood
    rates: Sequence[LayerRates]

    def __init__(
        self,
        rates: Sequence[LayerRates],
        network: DropoutNetwork,
        likelihood: GaussianLikelihood,
        *,
        x_dim: int,
        representation: Float[Tensor, "task r"] | Features | None = None,
        engine: Engine = FUSED,
        local_noise: bool = True,
    ) -> None:
        super().__init__(rates[0].rows, x_dim, likelihood)
        self.rates, self.network, self.representation = rates, network, representation
        self.engine, self.local_noise = engine, local_noise

    def seen(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task *point r"] | None:
        """What the network is shown beside x: r, features of each point, or nothing."""
        return self.representation(x) if callable(self.representation) else self.representation

    @property
    def size(self) -> int:
        """Weights and biases of the network."""
        return sum(k * d + d for k, d in self.network.layer_shapes)

    def mean_rates(self) -> Float[Tensor, "task layer"]:
        """The mean dropout rate of every layer's weights."""
        return torch.stack([layer.mean() for layer in self.rates], dim=-1)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The posterior with every expert of its rates changed, e.g. to those of another task."""
        other = copy(self)
        other.rates = [
            replace(each, rows=change(each.rows), columns=change(each.columns), layer=change(each.layer))
            for each in self.rates
        ]
        return other

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with the mean weights (1−P)θ."""
        return self.network(x, self.rates, MeanWeights(), self.seen(x))

    def training_outputs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Outputs by local reparameterisation, or of one draw of the weights where the model asks for that."""
        if not self.local_noise:
            return self.sampled_outputs(x, 1, generator)[0]
        return self.network(x, self.rates, LocalNoise(generator, self.engine.local_noise), self.seen(x))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs of sampled weights, a bounded number of samples at a time."""
        seen, groups = self.seen(x), groups_of(samples, len(x) * largest_array(self.network, x))
        ways = [SampledWeights(group, generator) for group in groups]
        return torch.cat([self.network(x, self.rates, way, seen) for way in ways])

    def _kept_outputs(self, samples: int, seed: int) -> Callable[[Tensor], Tensor]:
        """Outputs of weights that are drawn once: samples × tasks times the numbers of φ in memory."""
        way = KeptWeights(samples, torch.Generator(device=self.like.device).manual_seed(seed))
        return lambda x: self.network(x, self.rates, way, self.seen(x))

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """Closed form: mean and variance of the outputs through all layers (`nvdp.nn.moments`), point by point.

        Where the raw σ is an output, it is Gaussian too and correlated with the mean. Its distribution is cut into
        `STRATA` equally probable parts, each of which is one component of the mixture.
        """
        if self.likelihood.components > 1:
            return super().closed_form(x)
        outputs, covariance = moments_by_task(self.network, x, self.rates, self.seen(x))
        size = self.likelihood.y_dim
        variance = covariance.diagonal()  # (task, point, output)
        if self.likelihood.outputs == size:  # σ is not an output
            mean, std = self.likelihood(outputs)
            means, stds, left = mean[None], std[None], variance[None]
        else:
            mean, raw = outputs.split(size, -1)
            mean_variance, raw_variance = variance.split(size, -1)
            shared = covariance[:size, size:].diagonal()  # of μ and its own raw σ
            raw_std = raw_variance.clamp(min=torch.finfo(raw_variance.dtype).tiny).sqrt()
            follows = shared / raw_std
            middles = outputs.new_tensor(_MIDDLES)[:, None, None, None]
            means = torch.addcmul(mean, follows, middles)
            _, stds = self.likelihood(torch.cat([means, torch.addcmul(raw, raw_std, middles)], -1))
            left = (mean_variance - follows.square()).clamp(min=0)
        stds = (stds.square() + left).sqrt()
        return Prediction(self._shown(means).to(self.like), self._shown(stds).to(self.like), coherent=False)


@register_kl(DropoutPosterior, DropoutPosterior)
def _kl_dropout(q: DropoutPosterior, p: DropoutPosterior) -> Float[Tensor, " task"]:
    return q.engine.kl(q.rates, p.rates)


def largest_array(network: DropoutNetwork, x: Tensor) -> int:
    """Numbers of the largest array that one task and sample need: a layer's weights, or its outputs."""
    return max(max(k, x.shape[1]) * d for k, d in network.layer_shapes)


def rates_of(rates: Sequence[LayerRates], rows: slice) -> list[LayerRates]:
    """The rates of some of the rows: tasks, or classes of tasks."""
    return [replace(r, rows=r.rows[rows], columns=r.columns[rows], layer=r.layer[rows]) for r in rates]


def moments_by_task(
    network: DropoutNetwork,
    x: Float[Tensor, "row point x"],
    rates: Sequence[LayerRates],
    seen: Float[Tensor, "row *point r"] | None = None,
) -> tuple[Float[Tensor, "row point output"], Float[Tensor, "output output row point"]]:
    """`output_moments` of a bounded number of rows at a time, in full precision: variances are small differences."""
    parts, start = [], 0
    seen = None if seen is None else seen.to(x)
    autocast = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False) if autocast else nullcontext():
        for size in groups_of(len(x), largest_array(network, x)):
            rows = slice(start, start + size)
            part = output_moments(network, x[rows], rates_of(rates, rows), None if seen is None else seen[rows])
            parts.append(part)
            start += size
    means, covariances = zip(*parts, strict=True)
    return (torch.cat(means), torch.cat(covariances, 2)) if len(parts) > 1 else parts[0]


class KeptWeights(SampledWeights):
    """φ of each layer drawn when the layer is first passed, and kept."""

    def __init__(self, samples: int, generator: torch.Generator | None = None) -> None:
        super().__init__(samples, generator)
        self._kept: dict[DropoutLinear, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "*sample task point k"], rates: LayerRates
    ) -> Float[Tensor, "sample task point d"]:
        """Pre-activations of each sampled function."""
        if layer not in self._kept:
            self._kept[layer] = self._draw(layer.weight, rates.weight()), self._draw(layer.bias, rates.bias())
        weight, bias = self._kept[layer]
        return inputs @ weight + bias.unsqueeze(-2)
