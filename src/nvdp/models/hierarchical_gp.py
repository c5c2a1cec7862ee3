"""A hierarchical Gaussian process: a population curve, one process per task, and noise.

    y_t(x) = Φ(x)β + a(x) [ (1, x)·w_t + f_t(x) + g_t(x) ] + σ(x) ε

Φβ is the population curve. A task adds a line w_t, a smooth f_t (squared exponential) and a rough g_t (exponential
kernel); amplitude a and noise σ may change with x. Several outputs share the kernels of f and g, with a covariance
between the outputs; a missing output is left out by itself. All values are standardised. `nvdp.tables.prior` estimates
the parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, Task, TaskBatch

CURVE_STD, SLOPE_STD, CHANGE_STD = 2.0, 1.0, 0.3  # prior: of β's constant and slopes, of the changes of log a and log σ
PARAMETER_STD = 1.5  # prior: of all other parameters around where they start, as logarithms
JITTER, BEYOND = 0.1, 1.5  # drawn tasks: parameters are drawn this much beyond their own uncertainty
NEGLIGIBLE = -7.0  # the logarithm of a part that is switched off
ROUNDING = 1e-6
ALL_PARTS = ("line", "smooth", "rough", "change")
Sets = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Observations:
    """Single outputs of many tasks, padded: the input, which output it is, and its value."""

    x: Float[Tensor, "task point x"]
    output: Int[Tensor, "task point"]
    y: Float[Tensor, "task point"]
    mask: Bool[Tensor, "task point"]

    @classmethod
    def of(cls, sets: Sets) -> Self:
        """The outputs of tasks (x, y) that are not NaN, in float64."""
        xs, outputs, ys = [], [], []
        for x, y in sets:
            row, output = torch.nonzero(~y.isnan(), as_tuple=True)
            xs.append(x[row].double())
            outputs.append(output)
            ys.append(y[row, output].double())
        pad = torch.nn.utils.rnn.pad_sequence
        sizes = torch.tensor([len(y) for y in ys])
        mask = torch.arange(int(sizes.max())) < sizes[:, None]
        return cls(pad(xs, batch_first=True), pad(outputs, batch_first=True), pad(ys, batch_first=True), mask)

    def part(self, start: int, size: int) -> Self:
        """Some of the tasks."""
        chosen = slice(start, start + size)
        return replace(self, x=self.x[chosen], output=self.output[chosen], y=self.y[chosen], mask=self.mask[chosen])


@dataclass(frozen=True)
class Kernel:
    """The parameters of the process by name, as slices of one vector, and the covariances that they give."""

    inputs: int
    outputs: int
    varying: tuple[int, ...]  # inputs that change within a task; the others only shape the population curve
    knots: Float[Tensor, "knot x"]
    parts: tuple[str, ...] = ALL_PARTS  # a mixed model has the line alone

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each group of parameters is."""
        lines, between = self.outputs * (1 + len(self.varying)), self.outputs * (self.outputs + 1) // 2
        sizes = {
            "curve_length": self.inputs,
            "curve_scale": self.outputs,
            "line": lines * (lines + 1) // 2,
            "smooth": between,
            "smooth_length": len(self.varying),
            "rough": between,
            "rough_length": len(self.varying),
            "noise": self.outputs,
            "amplitude_change": len(self.varying),
            "noise_change": len(self.varying),
        }
        places, start = {}, 0
        for name, size in sizes.items():
            places[name] = slice(start, start + size)
            start += size
        return places

    @cached_property
    def start(self) -> Float[Tensor, " parameter"]:
        """Where the search begins; parts that are left out stay where they are."""
        start = torch.zeros(self.slices["noise_change"].stop, dtype=torch.float64)
        start[self.slices["rough_length"]], start[self.slices["noise"]] = -1.0, -1.5
        lines = self.outputs * (1 + len(self.varying))
        for name, size, value in (("line", lines, -1.0), ("smooth", self.outputs, -1.0), ("rough", self.outputs, -1.5)):
            rows, columns = torch.tril_indices(size, size)
            diagonal = value if name in self.parts else NEGLIGIBLE
            start[self.slices[name]] = torch.where(rows == columns, diagonal, 0.0).double()
        return start

    @cached_property
    def free(self) -> Bool[Tensor, " parameter"]:
        """Which parameters are estimated."""
        free = torch.ones(len(self.start), dtype=torch.bool)
        for name in ("smooth", "rough"):
            if name not in self.parts:
                free[self.slices[name]] = free[self.slices[f"{name}_length"]] = False
        if "change" not in self.parts:
            free[self.slices["amplitude_change"]] = free[self.slices["noise_change"]] = False
        return free

    def log_prior(self, values: Float[Tensor, " parameter"]) -> Float[Tensor, ""]:
        """A weak normal prior: what few tasks say little about stays near its start."""
        std = torch.full_like(self.start, PARAMETER_STD)
        std[self.slices["amplitude_change"]] = std[self.slices["noise_change"]] = CHANGE_STD
        return -0.5 * (((values - self.start) / std).square() * self.free).sum()

    def triangle(self, values: Tensor, name: str, size: int) -> Float[Tensor, "*task size size"]:
        """A lower-triangular factor whose diagonal is kept as a logarithm."""
        given = values[..., self.slices[name]]
        rows, columns = torch.tril_indices(size, size)
        filled = given.new_zeros(*given.shape[:-1], size, size)
        filled[..., rows, columns] = torch.where(rows == columns, given.exp(), given)
        return filled

    def of_task(
        self, values: Float[Tensor, "*t parameter"], x: Float[Tensor, "task point x"], output: Int[Tensor, "task point"]
    ) -> Float[Tensor, "task point point"]:
        """The covariance of a task's own part, without noise, between all its points."""
        own = x[..., self.varying]
        which = torch.nn.functional.one_hot(output, self.outputs).to(x)
        line = torch.cat([torch.ones_like(own[..., :1]), own], -1)
        placed = (which[..., :, None] * line[..., None, :]).flatten(-2)  # the line's features, under its own output
        factor = placed @ self.triangle(values, "line", placed.shape[-1])
        covariance = factor @ factor.mT
        for name in ("smooth", "rough"):
            if name not in self.parts:
                continue
            scaled = own / values[..., self.slices[f"{name}_length"]].exp()[..., None, :]
            squared = (scaled[..., :, None, :] - scaled[..., None, :, :]).square().sum(-1)
            alike = torch.exp(-0.5 * squared) if name == "smooth" else torch.exp(-(squared + ROUNDING).sqrt())
            between = which @ self.triangle(values, name, self.outputs)
            covariance = covariance + (between @ between.mT) * alike
        amplitude = (own * values[..., None, self.slices["amplitude_change"]]).sum(-1).exp()
        return covariance * amplitude[..., :, None] * amplitude[..., None, :]

    def noise(
        self, values: Float[Tensor, "*t parameter"], x: Float[Tensor, "task point x"], output: Int[Tensor, "task point"]
    ) -> Float[Tensor, "task point"]:
        """σ(x) of every point."""
        log_std = values[..., self.slices["noise"]]
        each = log_std[output] if log_std.dim() == 1 else log_std.gather(-1, output)
        change = (x[..., self.varying] * values[..., None, self.slices["noise_change"]]).sum(-1)
        return (each + change).exp()

    def curve_features(
        self, values: Float[Tensor, " parameter"], x: Float[Tensor, "task point x"], output: Int[Tensor, "task point"]
    ) -> Float[Tensor, "task point feature"]:
        """Φ(x): a Gaussian process seen from its knots, a constant and slopes, each output with its own."""
        length, scale = values[self.slices["curve_length"]].exp(), values[self.slices["curve_scale"]].exp()
        knots = self.knots / length
        gram = torch.exp(-0.5 * torch.cdist(knots, knots).square()) + ROUNDING * torch.eye(len(knots)).to(knots)
        near = torch.exp(-0.5 * _squared_distances(x / length, knots))
        bumps = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), near.mT, upper=False).mT
        which = torch.nn.functional.one_hot(output, self.outputs).to(x)
        constant = CURVE_STD * torch.ones_like(x[..., :1])
        features = torch.cat([bumps * (which @ scale)[..., None], constant, SLOPE_STD * x], -1)
        return (which[..., :, None] * features[..., None, :]).flatten(-2)


def _squared_distances(x: Float[Tensor, "task point x"], knots: Float[Tensor, "knot x"]) -> Tensor:
    return (x.square().sum(-1, keepdim=True) + knots.square().sum(-1) - 2 * x @ knots.mT).clamp(min=0)


@dataclass(frozen=True)
class HierarchicalGP:
    """A fitted process: predicts by exact conditioning, and draws new tasks."""

    kernel: Kernel
    values: Float[Tensor, " parameter"]
    root: Float[Tensor, "parameter parameter"]  # of the covariance of what is known about them
    curve: Float[Tensor, " feature"]  # the mean of β
    curve_covariance: Float[Tensor, "feature feature"]
    task_spread: float = 0.0  # of the logarithm of a task's own scale, beyond what the process expects
    tails: float = math.inf  # degrees of freedom of the noise
    log_likelihood: float = -math.inf  # of an output of the training tasks

    def predict(self, task: Task) -> Prediction:
        """The prediction at a task's targets, by exact conditioning on its context; context outputs may be NaN."""
        return self.given(task.x_context, task.y_context).predict(task.x_target)

    def given(self, x: Float[Tensor, "point x"], y: Float[Tensor, "point y"]) -> "ConditionedGP":
        """The process after the context of one task."""
        return ConditionedGP(self, Observations.of([(x, y)]) if len(x) else None)

    def conditioned(self, points: PointSet) -> list["ConditionedGP"]:
        """The process after each of several contexts."""
        return [self.given(x[mask], y[mask]) for x, y, mask in zip(points.x, points.y, points.mask, strict=True)]

    def residual_context(self, points: PointSet) -> PointSet:
        """Context points as a network sees them: each as a residual given the others."""
        tasks = self.residuals(TaskBatch(points.x, points.y, points.mask, points.mask))
        return PointSet(tasks.x, tasks.y, points.mask)

    @torch.no_grad()
    def residuals(self, tasks: TaskBatch) -> TaskBatch:
        """Tasks as residuals z = (y − m(x)) / s(x) of this process, at inputs (x, log s(x)).

        A target's m and s are given the context; a context point's are given the other context points. The context is
        not among the points that are scored: its residuals say what the network may use, not what it is asked.
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
        factor = torch.linalg.cholesky(covariance * both + torch.diag_embed(torch.where(known, noise, 1.0)))
        error = torch.where(known, y - mean, 0.0)[..., None]
        solved = torch.cholesky_solve(error, factor)
        reach = covariance * known[:, :, None]  # from context points to all points
        variance = covariance.diagonal(dim1=1, dim2=2) + noise
        variance = variance - torch.linalg.solve_triangular(factor, reach, upper=False).square().sum(1)
        centre = mean + (reach.mT @ solved)[..., 0]
        precision = torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2)
        std = torch.where(known, precision.rsqrt(), variance.clamp(min=ROUNDING).sqrt())
        z = torch.where(known, solved[..., 0] * precision.rsqrt(), (y - centre) / std)
        seen = torch.cat([tasks.x.double(), std.log().view(count, size, outputs)], -1)
        real, like = tasks.mask[..., None], torch.get_default_dtype()
        values = (z.view(count, size, outputs) * real).to(like)
        return TaskBatch((seen * real).to(like), values, tasks.is_context, tasks.mask & ~tasks.is_context)

    def covariance(
        self, x: Float[Tensor, "1 point x"], output: Int[Tensor, "1 point"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of a new task: its mean, the covariance of its function, and the variance of the noise."""
        features = self.kernel.curve_features(self.values, x, output)[0]
        own = self.kernel.of_task(self.values, x, output)[0] + features @ self.curve_covariance @ features.mT
        return features @ self.curve, own, self.kernel.noise(self.values, x, output)[0].square() + ROUNDING

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
        scale = torch.exp(self.task_spread * normal(count, 2))
        covariance = self.kernel.of_task(own, x, output) * scale[:, :1, None].square()
        covariance.diagonal(dim1=1, dim2=2).add_(1e-5)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if failed.any():  # an extreme draw
            factor = torch.linalg.cholesky(covariance + 1e-3 * torch.eye(x.shape[1]).to(covariance))
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
            "scores": torch.tensor([self.task_spread, self.tails, self.log_likelihood], dtype=torch.float64),
        }
        return {name: value.contiguous() for name, value in found.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> Self:
        """The inverse of `tensors`."""
        inputs, outputs, *rest = tensors["shape"].tolist()
        parts = tuple(part for part, there in zip(ALL_PARTS, rest, strict=False) if there)
        kernel = Kernel(inputs, outputs, tuple(rest[len(ALL_PARTS) :]), tensors["knots"], parts)
        named = {name: tensors[name] for name in ("values", "root", "curve", "curve_covariance")}
        return cls(
            kernel,
            **named,
            **dict(zip(("task_spread", "tails", "log_likelihood"), tensors["scores"].tolist(), strict=True)),
        )


@dataclass(frozen=True)
class ConditionedGP:
    """The process after the context of one task."""

    process: HierarchicalGP
    known: Observations | None

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "point x"]) -> Prediction:
        """Mean and standard deviation of an observation at each point."""
        mean, covariance, noise = self._at(x)
        std = (covariance.diagonal() + noise).clamp(min=ROUNDING).sqrt()
        return Prediction(self._shaped(mean[None], x), self._shaped(std[None], x))

    @torch.no_grad()
    def sample(self, x: Float[Tensor, "point x"], samples: int, generator: torch.Generator | None) -> Prediction:
        """Coherent functions, with the noise of an observation."""
        mean, covariance, noise = self._at(x)
        root = torch.linalg.cholesky(covariance + 1e-5 * torch.eye(len(mean)).to(mean))
        functions = mean + torch.randn(samples, len(mean), generator=generator, dtype=mean.dtype) @ root.mT
        return Prediction(self._shaped(functions, x), self._shaped(noise.sqrt().expand_as(functions), x))

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and covariance of the function at x, and the variance of the noise."""
        outputs = self.process.kernel.outputs
        asked, output = x.double().repeat_interleave(outputs, 0)[None], torch.arange(outputs).repeat(len(x))[None]
        if self.known is None:
            return self.process.covariance(asked, output)
        seen = self.known.x.shape[1]
        mean, covariance, noise = self.process.covariance(
            torch.cat([self.known.x, asked], 1), torch.cat([self.known.output, output], 1)
        )
        factor = torch.linalg.cholesky(covariance[:seen, :seen] + torch.diag(noise[:seen]))
        reach = torch.linalg.solve_triangular(factor, covariance[:seen, seen:], upper=False)
        error = torch.linalg.solve_triangular(factor, (self.known.y[0] - mean[:seen])[:, None], upper=False)
        return mean[seen:] + (reach.mT @ error)[:, 0], covariance[seen:, seen:] - reach.mT @ reach, noise[seen:]

    def _shaped(self, values: Tensor, x: Tensor) -> Float[Tensor, "component point y"]:
        return values.reshape(len(values), len(x), self.process.kernel.outputs)
