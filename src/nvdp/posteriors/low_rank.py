"""A Gaussian of low rank over functions, as in GNP (Markou et al. 2022): f(x) = μ(x) + φ(x)·z with z ~ N(0, I).

Mean and basis functions come from a network that sees the context. All values together have the covariance ΦΦᵀ + σ²I,
so training can score their joint density.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import register_kl

from nvdp.nn.likelihoods import GaussianLikelihood, gaussian_log_prob
from nvdp.posteriors.base import Posterior
from nvdp.posteriors.integrated import joint_log_density
from nvdp.posteriors.prediction import Prediction, mixture_log_prob
from nvdp.randomness import standard_normal
from nvdp.tasks import PointSet


class LowRankPosterior(Posterior[Prediction]):
    """Basis functions with independent standard normal weights z, for every output its own.

    Args:
        like: A tensor with a row for each task.
        outputs: Of the network at x: those of the likelihood, then `rank` basis functions of each y.
        likelihood: p(y | f(x)).
        x_dim: Inputs of a point.
        rank: Basis functions of each output.
        joint_share: Of the density of all points together in the training bound; the rest is that of single points.
    """

    likelihood: GaussianLikelihood

    def __init__(
        self,
        like: Float[Tensor, "task _"],
        outputs: Callable[[Tensor], Tensor],
        likelihood: GaussianLikelihood,
        *,
        x_dim: int,
        rank: int,
        joint_share: float = 1.0,
    ) -> None:
        super().__init__(like, x_dim, likelihood)
        self.outputs, self.rank, self.joint_share = outputs, rank, joint_share

    @property
    def size(self) -> int:
        """Dimension of z."""
        return self.rank * self.likelihood.y_dim

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with z = 0."""
        return self._split(x)[0]

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs for sampled z."""
        outputs, basis = self._split(x)
        z = standard_normal((samples, len(x), self.likelihood.y_dim, self.rank), basis, generator)
        functions = torch.einsum("tpyk,styk->stpy", basis, z)
        outputs = outputs.expand(samples, *outputs.shape)
        mean, rest = outputs.tensor_split([self.likelihood.y_dim], dim=-1)
        return torch.cat([mean + functions, rest], dim=-1)

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """log E[p(y | x, z)]: of all points together, of single points, or both."""
        outputs, basis = self._split(points.x)
        together = self._together(points, outputs, basis) if self.joint_share else outputs.new_zeros(len(outputs))
        if self.joint_share == 1:
            return together
        means, stds = self._marginals(outputs, basis)
        density = mixture_log_prob(gaussian_log_prob(points.y, means, stds))
        single = (density * points.mask[..., None]).sum((-2, -1))
        return torch.lerp(single, together.to(single), self.joint_share)

    @torch.no_grad()
    def joint_closed_form(self, points: PointSet) -> Float[Tensor, " task"]:
        """The Gaussian of all outputs."""
        return self._together(points, *self._split(points.x))

    @torch.no_grad()
    def at_mean_parameters(self, x: Tensor) -> Prediction:
        """With z integrated out, as in training."""
        return self.closed_form(self._points(x))

    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Prediction:
        """One component, with z integrated out: all of its uncertainty is in the closed form."""
        return self.at_mean_parameters(x)

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """The Gaussian of each point, with z integrated out."""
        means, stds = self._marginals(*self._split(x))
        return Prediction(self._shown(means).to(self.like), self._shown(stds).to(self.like), coherent=False)

    def _split(self, x: Tensor) -> tuple[Float[Tensor, "task point output"], Float[Tensor, "task point y k"]]:
        outputs, basis = self.outputs(x).tensor_split([self.likelihood.outputs], dim=-1)
        return outputs, basis.unflatten(-1, (self.likelihood.y_dim, self.rank)) * self.rank**-0.5

    def _marginals(self, outputs: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        means, stds = self.likelihood.mixture(outputs)
        return means, (stds.square() + basis.square().sum(-1)).sqrt()

    def _together(self, points: PointSet, outputs: Tensor, basis: Tensor) -> Float[Tensor, " task"]:
        return joint_log_density(points, basis.transpose(1, 2), *self.likelihood(outputs))


@register_kl(LowRankPosterior, LowRankPosterior)
def _kl_low_rank(q: LowRankPosterior, p: LowRankPosterior) -> Float[Tensor, " task"]:
    return q.like.new_zeros(q.batch_shape)  # z has the same distribution in both
