"""Posteriors q(φ | D_C) that a model gives for a task, their closed-form KL divergences, and their predictions.

Each is a PyTorch distribution over the task's variable φ (dropped-out weights, a latent vector, or a single point),
joined to the network that φ configures. ``torch.distributions.kl_divergence`` compares two of the same kind and
returns one number per task.
"""

from collections.abc import Callable
from typing import Protocol, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal, kl_divergence, register_kl

from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.posteriors.base import Posterior, sample_groups
from nvdp.randomness import standard_normal


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


class LatentPosterior(Posterior):
    """A Gaussian latent vector z beside a deterministic representation, which may have no entries (the NP family)."""

    def __init__(
        self,
        latent: Normal,
        representation: Float[Tensor, "task r"],
        network: Decoder,
        likelihood: GaussianLikelihood,
        x_dim: int,
    ) -> None:
        super().__init__(latent.loc, x_dim, likelihood)
        self.latent, self.representation, self.network = latent, representation, network

    @property
    def size(self) -> int:
        """Dimension of z."""
        return self.latent.loc.shape[-1]

    def with_known_part_of(self, context: Self) -> Self:
        """z as it is, beside the context's deterministic representation: only z may know of the targets."""
        return type(self)(self.latent, context.representation, self.network, self.likelihood, self.x_dim)

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with z at its mean."""
        return self.network(x, self._condition(self.latent.loc))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs for sampled z."""
        loc, scale = self.latent.loc, self.latent.scale
        noise = standard_normal((samples, *loc.shape), loc, generator)
        z = torch.addcmul(loc, scale, noise)
        groups = sample_groups(samples, x.shape[0] * x.shape[1] * self.network.width)
        decode = self.network.at(x)
        return torch.cat([decode(self._condition(group)) for group in z.split(groups)])

    def _condition(self, z: Float[Tensor, "*sample task z"]) -> Float[Tensor, "*sample task condition"]:
        return torch.cat([z, self.representation.expand(*z.shape[:-1], -1)], dim=-1)


class PointPosterior(Posterior):
    """A single function: a deterministic representation, no distribution over φ (the CNP)."""

    def __init__(
        self,
        representation: Float[Tensor, "task r"],
        network: Callable[[Tensor, Tensor], Tensor],
        likelihood: GaussianLikelihood,
        x_dim: int,
    ) -> None:
        super().__init__(representation, x_dim, likelihood)
        self.representation, self.network = representation, network

    @property
    def size(self) -> int:
        """Nothing is random."""
        return 0

    def mean_outputs(self, x: Tensor) -> Tensor:
        """The one function's outputs."""
        return self.network(x, self.representation)

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """The same outputs for every sample."""
        outputs = self.mean_outputs(x)
        return outputs.expand(samples, *outputs.shape)


@register_kl(LatentPosterior, LatentPosterior)
def _kl_latent(q: LatentPosterior, p: LatentPosterior) -> Float[Tensor, " task"]:
    return kl_divergence(q.latent, p.latent).sum(-1)


@register_kl(PointPosterior, PointPosterior)
def _kl_point(q: PointPosterior, p: PointPosterior) -> Float[Tensor, " task"]:
    return q.representation.new_zeros(q.batch_shape)
