"""Posteriors of the neural-process family: a Gaussian latent vector z, or a single function (the CNP)."""

from collections.abc import Callable
from functools import cache
from typing import Protocol, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal, kl_divergence, register_kl

from nvdp.nn.likelihoods import Likelihood
from nvdp.posteriors.base import FIXED_SAMPLES, Answer, Posterior, groups_of
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import standard_normal
from nvdp.tasks import PointSet


class Decoder(Protocol):
    """A network of (x, condition), the condition one vector for each task."""

    @property
    def width(self) -> int:
        """Hidden units."""
        ...

    def __call__(self, x: Tensor, condition: Tensor) -> Tensor:
        """Outputs at x under every condition."""
        ...

    def at(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The same as a function of the condition, for several in turn; what depends on x alone is done once."""
        ...


class LatentPosterior(Posterior[Prediction]):
    """A Gaussian latent vector z beside a deterministic representation, which may have no entries (the NP family)."""

    def __init__(
        self,
        latent: Normal,
        representation: Float[Tensor, "task r"],
        network: Decoder,
        likelihood: Likelihood,
        x_dim: int,
    ) -> None:
        super().__init__(latent.loc, x_dim, likelihood)
        self.latent, self.representation, self.network = latent, representation, network

    @property
    def size(self) -> int:
        """Dimension of z."""
        return self.latent.loc.shape[-1]

    def with_deterministic_path_of(self, context: Self) -> Self:
        """z as it is, beside the context's deterministic representation: only z may know of the targets."""
        return type(self)(self.latent, context.representation, self.network, self.likelihood, self.x_dim)

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with z at its mean."""
        return self.network(x, self._condition(self.latent.loc))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs for sampled z."""
        return self._outputs(x, standard_normal((samples, *self.latent.loc.shape), self.latent.loc, generator))

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """A fixed sample of z: the same noise for every task, precision and device, alone or in a batch."""
        return self._prediction(self._outputs(x, _fixed_noise(self.size).to(self.latent.loc)))

    def _outputs(self, x: Tensor, noise: Float[Tensor, "sample _ z"]) -> Float[Tensor, "sample task point output"]:
        z = torch.addcmul(self.latent.loc, self.latent.scale, noise)
        groups = groups_of(len(noise), x.shape[0] * x.shape[1] * self.network.width)
        decode = self.network.at(x)
        return torch.cat([decode(self._condition(group)) for group in z.split(groups)])

    def _condition(self, z: Float[Tensor, "*sample task z"]) -> Float[Tensor, "*sample task condition"]:
        return torch.cat([z, self.representation.expand(*z.shape[:-1], -1)], dim=-1)


@cache
def _fixed_noise(size: int) -> Float[Tensor, "sample 1 z"]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(FIXED_SAMPLES, 1, size, generator=generator, dtype=torch.float64)


class PointPosterior(Posterior[Answer]):
    """A single function, no distribution over φ: the CNP, prototypes, attention, weights adapted by gradients."""

    def __init__(
        self, like: Float[Tensor, "task _"], outputs: Callable[[Tensor], Tensor], likelihood: Likelihood, x_dim: int
    ) -> None:
        super().__init__(like, x_dim, likelihood)
        self.outputs = outputs

    @property
    def size(self) -> int:
        """Nothing is random."""
        return 0

    def mean_outputs(self, x: Tensor) -> Tensor:
        """The one function's outputs."""
        return self.outputs(x)

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """The same outputs for every sample."""
        outputs = self.outputs(x)
        return outputs.expand(samples, *outputs.shape)

    def joint_closed_form(self, points: PointSet) -> Float[Tensor, " task"]:
        """Given the function all points are independent."""
        return self.joint_log_prob(points, 1)

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Answer:
        """The one function."""
        return self._prediction(self.outputs(x)[None])


@register_kl(LatentPosterior, LatentPosterior)
def _kl_latent(q: LatentPosterior, p: LatentPosterior) -> Float[Tensor, " task"]:
    return kl_divergence(q.latent, p.latent).sum(-1)


@register_kl(PointPosterior, PointPosterior)
def _kl_point(q: PointPosterior[Answer], p: PointPosterior[Answer]) -> Float[Tensor, " task"]:
    return q.like.new_zeros(q.batch_shape)
