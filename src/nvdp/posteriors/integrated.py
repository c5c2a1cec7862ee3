"""A dropout posterior whose last layer is integrated out: what many sampled functions would say, in closed form.

Given the features a(x) of the last hidden layer, f(x) = a(x)·w is Gaussian for w ~ N((1−P)θ, P(1−P)θ²), and so are the
values at any number of points together: mean a(x)·(1−P)θ, covariance A diag(P(1−P)θ²) Aᵀ + σ²I. Training can score that
density, log E_q[p(y | x, w)]. The usual E_q[log p(y | x, w)] counts all weight noise as a loss and drives the rates to
their floor; here functions that differ where the context says little raise the bound, and σ stays the shared noise.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from nvdp.nn.dropout import VARIANCE_FLOOR, DropoutLinear, LayerForward, LocalNoise, MeanWeights, SampledWeights
from nvdp.nn.likelihoods import HALF_LOG_TWO_PI, gaussian_log_prob
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.base import groups_of
from nvdp.posteriors.dropout import DropoutPosterior, largest_array
from nvdp.posteriors.prediction import Prediction, mixture_log_prob
from nvdp.tasks import PointSet

FUNCTIONS_PER_DRAW = 8  # sampled functions that are worth as much as one draw of the hidden layers


@dataclass(frozen=True)
class LastLayer:
    """A last layer whose weights are integrated out.

    Attributes:
        outputs: Mean of all outputs. The first are the function; others, if any, describe the noise.
        variance: Computes that of the function, (*sample, task, point, y).
        basis: Computes the basis functions of its independent standard normal weights, (task, y, point, weight); not
            for samples.
    """

    outputs: Float[Tensor, "*sample task point output"]
    variance: Callable[[], Tensor]
    basis: Callable[[], Tensor]


class IntegratedPosterior(DropoutPosterior):
    """A dropout posterior whose training bound and components have the last layer in closed form.

    `predict` propagates the moments through all layers, as for any dropout posterior: with a shared σ the last layer
    is then exact and the hidden layers are included. Sampled functions are drawn as from any other.

    Args:
        parts: As of `DropoutPosterior`.
        joint_share: Of the density of all points together in the training bound; the rest is that of single points.
        options: As of `DropoutPosterior`.
    """

    def __init__(self, *parts: Any, joint_share: float = 0.5, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.joint_share = joint_share

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """log E[p(y | x, w)] over the last layer, under sampled noise of the others: by points and of all together."""
        seen = self.seen(points.x)
        hidden = self._hidden(points.x, LocalNoise(generator, self.engine.local_noise), seen)
        last = self._last_layer(hidden, seen)
        if self.joint_share == 1:
            return self._density(points, last)
        means, noise_stds = self.likelihood.mixture(last.outputs)
        stds = (last.variance() + noise_stds.square()).sqrt()
        density = mixture_log_prob(gaussian_log_prob(points.y, means, stds))
        one_by_one = (density * points.mask[..., None]).sum((-2, -1))
        if not self.joint_share:
            return one_by_one
        return torch.lerp(one_by_one, self._density(points, last), self.joint_share)

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """As any dropout posterior with a shared σ; where the network gives the noise, at its mean hidden layers."""
        if self.likelihood.outputs == self.likelihood.y_dim:
            return super().closed_form(x)
        return self._integrated(x, MeanWeights())

    @torch.no_grad()
    def at_mean_parameters(self, x: Any) -> Prediction:
        """The hidden layers at their mean, the last layer integrated out: only its uncertainty is included.

        The model is trained with its last layer integrated out, so this is its score at mean parameters.
        """
        return self._integrated(self._points(x), MeanWeights())

    @torch.no_grad()
    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Prediction:
        """Sampled hidden layers, each with the last layer in closed form: fewer samples say as much."""
        at = self._points(x)
        generator = self._generator(at, samples, generator)
        groups = groups_of(samples, len(at) * largest_array(self.network, at))
        return self._integrated(at, *(SampledWeights(group, generator) for group in groups))

    @torch.no_grad()
    def joint_log_prob(
        self, points: PointSet, samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """The mixture over sampled hidden layers, each with the last layer in closed form: few samples are enough."""
        few = max(1, samples // FUNCTIONS_PER_DRAW)
        draws = [SampledWeights(1, generator) for _ in range(few)]
        return mixture_log_prob(torch.stack([self._together(points, draw) for draw in draws]))

    @torch.no_grad()
    def joint_closed_form(self, points: PointSet) -> Float[Tensor, " task"]:
        """The Gaussian of all outputs with the hidden layers at their mean."""
        return self._together(points, MeanWeights())

    def _together(self, points: PointSet, way: MeanWeights | SampledWeights) -> Float[Tensor, " task"]:
        seen = self.seen(points.x)
        hidden = self._hidden(points.x, way, seen).view(*points.x.shape[:2], -1)
        return self._density(points, self._last_layer(hidden, seen))

    def _density(self, points: PointSet, last: LastLayer) -> Float[Tensor, " task"]:
        """The log density of all outputs of a task together."""
        return joint_log_density(points, last.basis(), *self.likelihood(last.outputs))

    def _integrated(self, x: Float[Tensor, "task point x"], *ways: MeanWeights | SampledWeights) -> Prediction:
        """The mixture over hidden layers that are computed in some ways, each with the last layer in closed form."""
        seen, parts = self.seen(x), []
        for way in ways:
            hidden = self._hidden(x, way, seen)
            last = self._last_layer(hidden.view(-1, *hidden.shape[-3:]), seen)
            means, noise_stds = self.likelihood.mixture(last.outputs)  # (component of the noise, sample, task, …)
            parts.append((means, (last.variance() + noise_stds.square()).sqrt()))
        means, stds = (self._shown(torch.cat(part, 1).flatten(0, 1)) for part in zip(*parts, strict=True))
        return Prediction(means, stds, coherent=False, noise=self.likelihood.components)

    def _hidden(self, x: Tensor, way: LayerForward, seen: Tensor | None) -> Float[Tensor, "*sample task point k"]:
        """Inputs of the last layer."""
        return self.network.hidden(x, self.rates, way, seen)

    def _last_layer(
        self, hidden: Float[Tensor, "*sample task point k"], seen: Float[Tensor, "task *point r"] | None
    ) -> "LastLayer":
        """The last layer in closed form, given its inputs and what was seen beside x."""
        layer, rates = self._last()
        weight, bias = (1 - rates.weight()) * layer.weight, (1 - rates.bias()) * layer.bias
        weight_variance, bias_variance = (
            (mean * (theta - mean))[..., : self.likelihood.y_dim]  # P(1−P)θ² = (1−P)θ · Pθ
            for mean, theta in ((weight, layer.weight), (bias, layer.bias))
        )

        def basis() -> Float[Tensor, "task y point weight"]:
            by_weight = torch.cat([weight_variance, bias_variance[:, None]], dim=1)
            inputs = torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=-1)
            return inputs[:, None] * (by_weight.mT + VARIANCE_FLOOR).sqrt()[:, :, None]

        def variance() -> Float[Tensor, "*sample task point y"]:
            return hidden.square() @ weight_variance + bias_variance[:, None]

        return LastLayer(hidden @ weight + bias[:, None], variance, basis)

    def _last(self) -> tuple[DropoutLinear, LayerRates]:
        return list(self.network.dropout_layers())[-1], self.rates[-1]


def joint_log_density(
    points: PointSet,
    basis: Float[Tensor, "task y point weight"],
    mean: Float[Tensor, "task point y"],
    noise_std: Float[Tensor, "task point y"],
) -> Float[Tensor, " task"]:
    """log N(y | mean, ΦΦᵀ + diag(σ²)) of all real points of a task together, summed over outputs.

    With B = Φ/σ the covariance is diag(σ)(I + BBᵀ)diag(σ). By the matrix determinant lemma I + BBᵀ (points × points)
    or I + BᵀB (features × features) is factorised, whichever is smaller: in float32, and in float64 if that fails.
    """
    autocast = torch.is_autocast_enabled(basis.device.type)
    with torch.autocast(basis.device.type, enabled=False) if autocast else nullcontext():
        for precision in (torch.promote_types(basis.dtype, torch.float32), torch.float64):
            parts = (part.to(precision) for part in (points.y, basis, mean, noise_std))
            density, whole = _joint_log_density(points.mask, *parts)
            if whole:
                break
    return density.to(basis.dtype)


def _joint_log_density(
    real: Bool[Tensor, "task point"], y: Tensor, basis: Tensor, mean: Tensor, noise_std: Tensor
) -> tuple[Float[Tensor, " task"], bool]:
    """The density in one precision, NaN where the covariance cannot be factorised, and whether it could everywhere."""
    mask = real[:, None, :, None]  # (task, 1, point, 1): a row of zeros takes no part
    std = noise_std.mT[..., None]  # (task, y, point, 1)
    inverse = mask / std
    scaled, residual = basis * inverse, (y - mean).mT[..., None] * inverse
    square_and_log_determinant, failed = _SquareAndLogDeterminant.apply(scaled, residual)
    constants = ((2 * std.log() + 2 * HALF_LOG_TWO_PI) * mask).sum((-2, -1))
    density = -0.5 * (square_and_log_determinant + constants)  # (task, y)
    if not failed.any():
        return density.sum(-1), True
    return density.masked_fill(failed != 0, torch.nan).sum(-1), False


class _SquareAndLogDeterminant(torch.autograd.Function):
    """rᵀC⁻¹r + log |C| of C = I + BBᵀ, and where C could not be factorised.

    With a = C⁻¹r the gradients are ∂r = 2a and ∂B = 2(C⁻¹ − aaᵀ)B. Where B has fewer columns than rows,
    M = I + BᵀB takes the place of C: log |C| = log |M|, C⁻¹B = BM⁻¹ and a = r − BM⁻¹Bᵀr.
    """

    @staticmethod
    def forward(
        ctx: Any, b: Float[Tensor, "*batch point k"], r: Float[Tensor, "*batch point 1"]
    ) -> tuple[Float[Tensor, "*batch"], Int[Tensor, "*batch"]]:
        wide = b.shape[-1] > b.shape[-2]
        gram = b @ b.mT if wide else b.mT @ b
        gram.diagonal(dim1=-2, dim2=-1).add_(1)
        factor, failed = torch.linalg.cholesky_ex(gram)
        a = torch.cholesky_solve(r, factor) if wide else r - b @ torch.cholesky_solve(b.mT @ r, factor)
        ctx.save_for_backward(b, a, factor)
        ctx.mark_non_differentiable(failed)
        return (r * a).sum((-2, -1)) + 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1), failed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        b, a, factor = ctx.saved_tensors
        twice = 2 * cotangent[..., None, None]
        inverse, twice_a = torch.cholesky_inverse(factor), twice * a
        if b.shape[-1] > b.shape[-2]:
            return (twice * inverse - twice_a @ a.mT) @ b, twice_a
        return b @ (twice * inverse) - twice_a @ (a.mT @ b), twice_a
