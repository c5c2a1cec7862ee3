"""A hierarchical Gaussian process: a population curve, one process per task, and noise.

    y_t(x) = Φ(x)β + u_t f_t(x) + v_t σ(x) ε

Φβ is the population curve, f_t a task's own function (`nvdp.models.task_kernel`). The scales u_t and v_t of a task are
one of a few pairs, each with a share of all tasks. They are integrated out: a prediction is a mixture, whose weights
are what a context says about the pair. A missing output is left out by itself. All values are standardised.
`nvdp.tables.prior` estimates the parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.models.task_kernel import ALL_PARTS, ROUNDING, Kernel, Observations, cholesky
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, Task, TaskBatch

JITTER, BEYOND = 0.1, 1.5  # drawn tasks: parameters are drawn this much beyond their own uncertainty
MOST_NUMBERS = 8_000_000  # of one part of a computation
SPREAD = 0.1  # drawn tasks: of the logarithm of their scales, beyond the pairs
FEW_SCALES, TOLD_BY = 3, 200  # of a long context: how many pairs of scales are kept, and by how many points


def _one_scale() -> Tensor:
    return torch.ones(1, 2, dtype=torch.float64)


def _one_share() -> Tensor:
    return torch.ones(1, dtype=torch.float64)


@dataclass(frozen=True)
class HierarchicalGP:
    """A fitted process: predicts by exact conditioning, and draws new tasks."""

    kernel: Kernel
    values: Float[Tensor, " parameter"]
    root: Float[Tensor, "parameter parameter"]  # of the covariance of what is known about them
    curve: Float[Tensor, " feature"]  # the mean of β
    curve_covariance: Float[Tensor, "feature feature"]
    tails: float = math.inf  # degrees of freedom of the noise
    log_likelihood: float = -math.inf  # of an output of the training tasks

    scales: Float[Tensor, "scale 2"] = field(default_factory=_one_scale)  # of a task's function and of its noise
    shares: Float[Tensor, " scale"] = field(default_factory=_one_share)  # of tasks

    def predict(self, task: Task) -> Prediction:
        """The prediction at a task's targets, by exact conditioning on its context; context outputs may be NaN."""
        context = PointSet(task.x_context[None], task.y_context[None], torch.ones(1, len(task.x_context)).bool())
        several = self.given(context).predict(task.x_target[None])
        return Prediction(several.functions[:, 0], several.stds[:, 0], False, _first(several.log_weights))

    def given(self, points: PointSet) -> "ConditionedGP":
        """The process after the contexts of some tasks."""
        return ConditionedGP(self, Observations.of_points(points))

    @cached_property
    def plain(self) -> "HierarchicalGP":
        """The same process if all tasks had the same scales: what an expert would use."""
        return replace(self, scales=_one_scale(), shares=_one_share())

    def residual_context(self, points: PointSet) -> PointSet:
        """Context points as a network sees them: each as a residual given the others."""
        tasks = self.residuals(TaskBatch(points.x, points.y, points.mask, points.mask))
        return PointSet(tasks.x, tasks.y, points.mask)

    def filled(self, points: PointSet) -> PointSet:
        """The points with missing outputs at their means given the others."""
        missing = points.y.isnan()
        if torch.compiler.is_compiling() or not bool(missing.any()):  # a graph has no missing outputs
            return points
        expected = self.given(points).predict(points.x.double()).mean.to(points.y)
        return replace(points, y=torch.where(missing, expected, points.y))

    @torch.no_grad()
    def residuals(self, tasks: TaskBatch) -> TaskBatch:
        """Tasks as residuals z = (y − m(x)) / s(x) of this process, at inputs (x, log s(x)).

        A target's m and s are given the context; a context point's are given the other context points. The context is
        not among the points that are scored: its residuals say what the network may use, not what it is asked. A
        missing output of the context has the residual 0. That of a target is drawn from the process, so that it teaches
        nothing else.
        """
        (count, size), outputs = tasks.x.shape[:2], self.kernel.outputs
        x = tasks.x.double().repeat_interleave(outputs, 1)
        output = torch.arange(outputs).repeat(count, size)
        y = tasks.y.double().flatten(1)
        known = tasks.is_context.repeat_interleave(outputs, 1) & ~y.isnan()
        features = self.kernel.curve_features(self.values, x, output)
        mean = features @ self.curve
        covariance = self.kernel.of_task(self.values, x, output) + features @ self.curve_covariance @ features.mT
        noise = self.kernel.noise(self.values, x, output).square() + ROUNDING
        both = known[:, :, None] & known[:, None, :]
        factor = cholesky(covariance * both + torch.diag_embed(torch.where(known, noise, 1.0)))
        error = torch.where(known, y - mean, 0.0)[..., None]
        solved = torch.cholesky_solve(error, factor)
        reach = covariance * known[:, :, None]  # from context points to all points
        variance = covariance.diagonal(dim1=1, dim2=2) + noise
        variance = variance - torch.linalg.solve_triangular(factor, reach, upper=False).square().sum(1)
        centre = mean + (reach.mT @ solved)[..., 0]
        precision = torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2)
        std = torch.where(known, precision.rsqrt(), variance.clamp(min=ROUNDING).sqrt())
        z = torch.where(known, solved[..., 0] * precision.rsqrt(), (y - centre) / std)
        if outputs > 1 and not torch.compiler.is_compiling() and (missing := y.isnan()).any():
            generator = torch.Generator().manual_seed(int(known.sum()))
            drawn = torch.randn(z.shape, generator=generator, dtype=z.dtype)
            z = torch.where(missing, torch.where(tasks.is_context.repeat_interleave(outputs, 1), 0.0, drawn), z)
        seen = torch.cat([tasks.x.double(), std.log().view(count, size, outputs)], -1)
        real, like = tasks.mask[..., None], torch.get_default_dtype()
        values = (z.view(count, size, outputs) * real).to(like)
        return TaskBatch((seen * real).to(like), values, tasks.is_context, tasks.mask & ~tasks.is_context)

    def whole(self, seen: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Of new tasks: the mean, the covariances of their functions under each pair of scales, and of the noise."""
        features = self.kernel.curve_features(self.values, seen.x, seen.output)
        own, noise = self.kernel.of_task(self.values, seen.x, seen.output), self.noise(seen.x, seen.output)
        return features @ self.curve, self._scaled(own) + features @ self.curve_covariance @ features.mT, noise

    def noise(
        self, x: Float[Tensor, "task point x"], output: Int[Tensor, "task point"]
    ) -> Float[Tensor, "scale task point"]:
        """The variance of the noise under each pair of scales."""
        square = self.kernel.noise(self.values, x, output).square()
        return self.scales[:, 1].square()[:, None, None] * square + ROUNDING

    def _scaled(self, covariance: Float[Tensor, "task a b"]) -> Float[Tensor, "scale task a b"]:
        return self.scales[:, 0].square()[:, None, None, None] * covariance

    @torch.no_grad()
    def draw(
        self, xs: Sequence[Float[Tensor, "_ x"]], generator: torch.Generator
    ) -> list[tuple[Float[Tensor, "_ x"], Float[Tensor, "_ y"]]]:
        """New tasks at given inputs; their parameters are drawn from what is known about them, and a little beyond."""
        count, outputs, sizes = len(xs), self.kernel.outputs, [len(x) for x in xs]
        x = torch.nn.utils.rnn.pad_sequence([each.double() for each in xs], batch_first=True)
        x, output = x.repeat_interleave(outputs, 1), torch.arange(outputs).repeat(count, max(sizes))

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        own = self.values + BEYOND * normal(count, len(self.values)) @ self.root.mT
        own = own + JITTER * normal(*own.shape) * self.kernel.free
        scale = self.scales[torch.multinomial(self.shares, count, replacement=True, generator=generator)]
        scale = scale * torch.exp(SPREAD * normal(count, 2))
        covariance = self.kernel.of_task(own, x, output) * scale[:, :1, None].square()
        covariance.diagonal(dim1=1, dim2=2).add_(1e-5)
        factor = cholesky(covariance)
        weights = self.curve + normal(count, len(self.curve)) @ torch.linalg.cholesky(self.curve_covariance).mT
        y = (self.kernel.curve_features(self.values, x, output) @ weights[..., None])[..., 0]
        y = y + (factor @ normal(count, x.shape[1], 1))[..., 0]
        noise = normal(count, x.shape[1])
        if math.isfinite(self.tails):
            freedom = torch.full_like(noise, self.tails / 2)
            gamma = torch._standard_gamma(freedom, generator=generator) * 2 / self.tails
            noise = noise / gamma.sqrt() * math.sqrt(1 - 2 / self.tails)
        y = y + self.kernel.noise(own, x, output) * scale[:, 1:] * noise
        values = y.view(count, -1, outputs).float()
        return [(each.float(), values[index, :size]) for index, (each, size) in enumerate(zip(xs, sizes, strict=True))]

    def tensors(self) -> dict[str, Tensor]:
        """All that `from_tensors` needs, by name."""
        kernel = self.kernel
        shape = [kernel.inputs, kernel.outputs, *(part in kernel.parts for part in ALL_PARTS), *kernel.varying]
        found = {
            "shape": torch.tensor([int(number) for number in shape]),
            "knots": kernel.knots,
            "values": self.values,
            "root": self.root,
            "curve": self.curve,
            "curve_covariance": self.curve_covariance,
            "scales": self.scales,
            "shares": self.shares,
            "scores": torch.tensor([self.tails, self.log_likelihood], dtype=torch.float64),
        }
        return {name: value.contiguous() for name, value in found.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> Self:
        """The inverse of `tensors`."""
        inputs, outputs, *rest = tensors["shape"].tolist()
        parts = tuple(part for part, there in zip(ALL_PARTS, rest, strict=False) if there)
        kernel = Kernel(inputs, outputs, tuple(rest[len(ALL_PARTS) :]), tensors["knots"], parts)
        names = ("values", "root", "curve", "curve_covariance", "scales", "shares")
        *_, tails, log_likelihood = tensors["scores"].tolist()
        return cls(
            kernel,
            **{name: tensors[name] for name in names if name in tensors},
            tails=tails,
            log_likelihood=log_likelihood,
        )


def _first(log_weights: Tensor | None) -> Tensor | None:
    """The weights of the first task."""
    return None if log_weights is None else log_weights[:, 0]


@dataclass(frozen=True)
class ConditionedGP:
    """The process after the contexts of some tasks: exact, given each pair of scales."""

    process: HierarchicalGP
    known: Observations

    @cached_property
    def _solved(self) -> tuple[HierarchicalGP, Tensor, Tensor, Float[Tensor, "scale task"]]:
        """The process with the scales in use, factors of the contexts' covariances, whitened errors, and weights."""
        process, known, points = self.process, self.known, self.known.x.shape[1]
        large = not torch.compiler.is_exporting() and len(process.shares) * len(known.x) * points**2 > MOST_NUMBERS
        if large and len(process.shares) > FEW_SCALES:
            process = self._of_few_scales()
        mean, covariance, noise = process.whole(known)
        both = known.mask[:, :, None] & known.mask[:, None, :]
        factor = cholesky(covariance * both + torch.diag_embed(torch.where(known.mask, noise, 1.0)))
        error = torch.where(known.mask, known.y - mean, 0.0)[..., None].expand(len(noise), -1, -1, -1)
        white = torch.linalg.solve_triangular(factor, error, upper=False)
        likelihood = -0.5 * white.square().sum((-2, -1)) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return process, factor, white, torch.log_softmax(likelihood + process.shares.log()[:, None], 0)

    def _of_few_scales(self) -> HierarchicalGP:
        """The pairs of scales that some points of a long context make likely."""
        part = Observations(
            *(each[:, :TOLD_BY] for each in (self.known.x, self.known.output, self.known.y, self.known.mask))
        )
        weights = ConditionedGP(self.process, part)._solved[3].exp().mean(1)
        kept = weights.topk(FEW_SCALES).indices
        return replace(self.process, scales=self.process.scales[kept], shares=self.process.shares[kept])

    @property
    def log_weights(self) -> Float[Tensor, "scale task"]:
        """How likely each pair of scales is for each task."""
        return self._solved[3]

    def moments(self, x: Float[Tensor, "task point x"]) -> tuple[Tensor, Tensor]:
        """Of one output: the covariance of functions, scales integrated out, and the variance of the noise."""
        mean, covariance, noise = self._at(x, whole=True)
        weights = self.log_weights.exp()[..., None]
        centred = mean - (weights * mean).sum(0)
        covariance = covariance + centred[..., :, None] * centred[..., None, :]
        return (weights[..., None] * covariance).sum(0), (weights * noise).sum(0)

    def predict(self, x: Float[Tensor, "task point x"]) -> Prediction:
        """The distribution of an observation at each point: a component for each pair of scales."""
        process, factor, *_, log_weights = self._solved
        if torch.compiler.is_exporting():  # the size of a graph's arrays is not known
            mean, variance, _ = self._at(x)
        else:
            numbers = factor.shape[0] * factor.shape[1] * factor.shape[2] * process.kernel.outputs
            width = max(1, MOST_NUMBERS // max(1, numbers))
            parts = [self._at(x[:, start : start + width]) for start in range(0, max(1, x.shape[1]), width)]
            mean, variance = (torch.cat(part, -1) for part in zip(*((mean, v) for mean, v, _ in parts), strict=True))
        stds = variance.clamp(min=ROUNDING).sqrt()
        weights = None if len(log_weights) == 1 else log_weights[..., None, None]
        return Prediction(self._shaped(mean, x), self._shaped(stds, x), False, weights)

    @torch.no_grad()
    def sample(self, x: Float[Tensor, "task point x"], samples: int, generator: torch.Generator | None) -> Prediction:
        """Coherent functions, with the noise of an observation; each has scales of its own."""
        log_weights = self.log_weights
        mean, covariance, noise = self._at(x, whole=True)
        chosen = torch.multinomial(log_weights.exp().mT, samples, replacement=True, generator=generator).mT
        root = cholesky(covariance + 1e-5 * torch.eye(mean.shape[-1]).to(mean))
        tasks = torch.arange(mean.shape[1]).expand(samples, -1)
        normal = torch.randn(samples, *mean.shape[1:], 1, generator=generator, dtype=mean.dtype)
        functions = mean[chosen, tasks] + (root[chosen, tasks] @ normal)[..., 0]
        return Prediction(self._shaped(functions, x), self._shaped(noise[chosen, tasks].sqrt(), x))

    def _at(self, x: Tensor, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Means at x, variances of observations or, with `whole`, covariances of functions, and the noise."""
        process, factor, white, _ = self._solved
        known, outputs = self.known, process.kernel.outputs
        asked = x.double().repeat_interleave(outputs, 1)
        output = torch.arange(outputs).repeat(len(x), x.shape[1])
        features = [
            process.kernel.curve_features(process.values, *each) for each in ((known.x, known.output), (asked, output))
        ]
        reach = process.kernel.between(process.values, (known.x, known.output), (asked, output))
        reach = process._scaled(reach) + features[0] @ process.curve_covariance @ features[1].mT
        solved = torch.linalg.solve_triangular(factor, reach * known.mask[..., None], upper=False)
        mean = features[1] @ process.curve + (solved.mT @ white)[..., 0]
        noise = process.noise(asked, output)
        if whole:
            _, covariance, _ = process.whole(Observations(asked, output, asked[..., 0], torch.ones_like(output).bool()))
            return mean, covariance - solved.mT @ solved, noise
        own = process.kernel.variance(process.values, asked, output)
        own = process.scales[:, 0].square()[:, None, None] * own
        own = own + ((features[1] @ process.curve_covariance) * features[1]).sum(-1)
        return mean, own + noise - solved.square().sum(-2), noise

    def _shaped(self, values: Tensor, x: Tensor) -> Float[Tensor, "component task point y"]:
        return values.reshape(*values.shape[:2], x.shape[1], self.process.kernel.outputs)
