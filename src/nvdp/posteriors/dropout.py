"""Posteriors q(φ | D_C) that a model gives for a task, their closed-form KL divergences, and their predictions.

Each is a PyTorch distribution over the task's variable φ (dropped-out weights, a latent vector, or a single point),
joined to the network that φ configures. ``torch.distributions.kl_divergence`` compares two of the same kind and
returns one number per task.
"""

from collections.abc import Callable, Sequence
from typing import Any

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
from nvdp.posteriors.base import Features, Posterior, sample_groups
from nvdp.posteriors.latent import PointPosterior
from nvdp.posteriors.prediction import Prediction


class DropoutPosterior(Posterior):
    """Weights of a shared network under task-specific dropout, eq. 2."""

    def __init__(
        self,
        rates: Sequence[LayerRates],
        network: DropoutNetwork,
        likelihood: GaussianLikelihood,
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
        seen, groups = self.seen(x), sample_groups(samples, self._largest(x))
        ways = [SampledWeights(group, generator) for group in groups]
        return torch.cat([self.network(x, self.rates, way, seen) for way in ways])

    def _largest(self, x: Tensor) -> int:
        """Numbers of the largest array that one sample needs."""
        return max(max(k, x.shape[1]) * d for k, d in self.network.layer_shapes) * len(x)


@register_kl(DropoutPosterior, DropoutPosterior)
def _kl_dropout(q: DropoutPosterior, p: DropoutPosterior) -> Float[Tensor, " task"]:
    return q.engine.kl(q.rates, p.rates)


STRATA = 8
SAMPLES = 64  # functions behind a prediction where there is no closed form


def predict_points(
    posterior: Posterior, x: Any, samples: int | None = None, generator: torch.Generator | int | None = None
) -> Prediction:
    """The prediction at x, point by point, in the cheapest way that is right.

    Without `samples` that is the closed form for a dropout posterior, the one function of a point posterior, and
    `SAMPLES` sampled functions for any other. The components of a closed form are no functions: means, standard
    deviations, quantiles and densities of single points are what it is for.

    >>> import nvdp
    >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
    >>> ours, sampled = predict_points(posterior, [0.5]), posterior.predict([0.5], samples=1_000)
    >>> abs(ours.mean - sampled.mean).item() < 0.06, abs(ours.std / sampled.std - 1).item() < 0.06
    (True, True)
    """
    if samples is None and isinstance(posterior, DropoutPosterior):
        return _closed_form(posterior, posterior._inputs(x))
    if samples is None and isinstance(posterior, PointPosterior):
        return posterior.predict(x)
    return posterior.marginals(x, SAMPLES if samples is None else samples, generator)


@torch.no_grad()
def _closed_form(posterior: DropoutPosterior, x: Float[Tensor, "task point x"]) -> Prediction:
    likelihood = posterior.likelihood
    outputs, covariance = output_moments(posterior.network, x, posterior.rates, posterior.seen(x))
    size = likelihood.y_dim
    variance = covariance.diagonal()  # (task, point, output)
    if likelihood.outputs == size:  # σ is not an output
        mean, std = likelihood(outputs)
        functions, left = mean[None], variance[None]
        stds = std[None]
    else:
        mean, raw = outputs.split(size, -1)
        mean_variance, raw_variance = variance.split(size, -1)
        shared = covariance[:size, size:].diagonal()  # of μ and its own raw σ
        raw_std = raw_variance.clamp(min=torch.finfo(x.dtype).tiny).sqrt()
        follows = shared / raw_std
        middles = _strata(x)[:, None, None, None]
        functions = torch.addcmul(mean, follows, middles)
        _, stds = likelihood(torch.cat([functions, torch.addcmul(raw, raw_std, middles)], -1))
        left = (mean_variance - follows.square()).clamp(min=0)
    stds = (stds.square() + left).sqrt()
    return Prediction(functions[:, 0], stds[:, 0]) if posterior.single else Prediction(functions, stds)


def _strata(like: Tensor) -> Float[Tensor, " stratum"]:
    """The middles of equally probable parts of a standard normal, together of variance 1."""
    middles = ndtri((torch.arange(STRATA, dtype=like.dtype, device=like.device) + 0.5) / STRATA)
    return middles / middles.square().mean().sqrt()


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


class SampledFunctions:
    """Functions of a posterior; wherever they are evaluated, and however often, they are the same functions.

    Needs samples × tasks times the numbers of φ in memory: of a paper-sized NVDP half a megabyte each.

    >>> import nvdp
    >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
    >>> functions = SampledFunctions(posterior, samples=8)
    >>> both, one = functions(torch.tensor([[[0.5], [0.7]]]))[0], functions(torch.tensor([[[0.7]]]))[0]
    >>> both.shape, torch.allclose(both[:, :, 1:], one, atol=1e-6)
    (torch.Size([8, 1, 2, 1]), True)
    """

    def __init__(self, posterior: Posterior, samples: int, seed: int = 0) -> None:
        self._likelihood = posterior.likelihood
        self._outputs = _kept_outputs(posterior, samples, seed)

    def __call__(
        self, x: Float[Tensor, "task point x"]
    ) -> tuple[Float[Tensor, "sample task point y"], Float[Tensor, "sample task point y"]]:
        """The value of every function at x, and the standard deviation of an observation there."""
        mean, std = self._likelihood(self._outputs(x))
        return mean, std


def _kept_outputs(posterior: Posterior, samples: int, seed: int) -> Callable[[Any], Tensor]:
    generator = torch.Generator(device=posterior.like.device).manual_seed(seed)
    if isinstance(posterior, DropoutPosterior):
        way = KeptWeights(samples, generator)
        return lambda x: posterior.network(x, posterior.rates, way, posterior.seen(x))
    # What other posteriors draw is small and does not depend on x: it is drawn again, from the same seed.
    return lambda x: posterior.sampled_outputs(x, samples, generator.manual_seed(seed))
