"""The covariance of a task in the hierarchical Gaussian process of a table, and its observations.

    a(x) [ (1, x)·w_t + f_t(x) + g_t(x) ] + σ(x) ε

A task has a line w_t, a smooth f_t (squared exponential) and a rough g_t (exponential kernel); amplitude a and noise σ
may change with x. Several outputs share the kernels of f and g, with a covariance between the outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.tasks import PointSet

CURVE_STD, SLOPE_STD, CHANGE_STD = 2.0, 1.0, 0.3  # prior: of β's constant and slopes, of the changes of log a and log σ
PARAMETER_STD = 1.5  # prior: of all other parameters around where they start, as logarithms
NEGLIGIBLE = -7.0  # the logarithm of a part that is switched off
ROUNDING = 1e-6
ALL_PARTS = ("line", "smooth", "rough", "change")
Sets = Sequence[tuple[Tensor, Tensor]]
Places = tuple[Float[Tensor, "task _ x"], Int[Tensor, "task _"]]  # inputs, and which output each is


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

    @classmethod
    def of_points(cls, points: PointSet) -> Self:
        """The outputs of padded sets; those that are NaN are masked."""
        count, size, outputs = points.y.shape
        y, real = points.y.double().flatten(1), points.mask.repeat_interleave(outputs, 1)
        output = torch.arange(outputs).repeat(count, size)
        return cls(points.x.double().repeat_interleave(outputs, 1), output, y, real & ~y.isnan())

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
        return self.between(values, (x, output), (x, output))

    def between(self, values: Float[Tensor, "*t parameter"], left: Places, right: Places) -> Float[Tensor, "task a b"]:
        """The covariance of a task's own part between points, each given as (x, which output)."""
        lines = [self._line(values, *side) for side in (left, right)]
        covariance = lines[0] @ lines[1].mT
        for name in ("smooth", "rough"):
            if name not in self.parts:
                continue
            length = values[..., self.slices[f"{name}_length"]].exp()[..., None, :]
            scaled = [x[..., self.varying] / length for x, _ in (left, right)]
            squared = (scaled[0][..., :, None, :] - scaled[1][..., None, :, :]).square().sum(-1)
            alike = torch.exp(-0.5 * squared) if name == "smooth" else torch.exp(-(squared + ROUNDING).sqrt())
            shared = [self._which(*side) @ self.triangle(values, name, self.outputs) for side in (left, right)]
            covariance = covariance + (shared[0] @ shared[1].mT) * alike
        amplitude = [self._amplitude(values, x) for x, _ in (left, right)]
        return covariance * amplitude[0][..., :, None] * amplitude[1][..., None, :]

    def variance(
        self, values: Float[Tensor, " parameter"], x: Float[Tensor, "task point x"], output: Int[Tensor, "task point"]
    ) -> Float[Tensor, "task point"]:
        """The diagonal of `of_task`."""
        variance = self._line(values, x, output).square().sum(-1)
        for name in ("smooth", "rough"):
            if name in self.parts:
                own = (self._which(x, output) @ self.triangle(values, name, self.outputs)).square().sum(-1)
                variance = variance + (own if name == "smooth" else own * math.exp(-math.sqrt(ROUNDING)))
        return variance * self._amplitude(values, x).square()

    def _which(self, x: Tensor, output: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(output, self.outputs).to(x)

    def _line(self, values: Tensor, x: Tensor, output: Tensor) -> Float[Tensor, "task point feature"]:
        own = x[..., self.varying]
        line = torch.cat([torch.ones_like(own[..., :1]), own], -1)
        # the line's features, under its own output
        placed = (self._which(x, output)[..., :, None] * line[..., None, :]).flatten(-2)
        return placed @ self.triangle(values, "line", placed.shape[-1])

    def _amplitude(self, values: Tensor, x: Tensor) -> Float[Tensor, "task point"]:
        return (x[..., self.varying] * values[..., None, self.slices["amplitude_change"]]).sum(-1).exp()

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
        gram = torch.exp(-0.5 * _squared_distances(knots, knots)) + ROUNDING * torch.eye(len(knots)).to(knots)
        near = torch.exp(-0.5 * _squared_distances(x / length, knots))
        bumps = torch.linalg.solve_triangular(cholesky(gram), near.mT, upper=False).mT
        which = torch.nn.functional.one_hot(output, self.outputs).to(x)
        constant = CURVE_STD * torch.ones_like(x[..., :1])
        features = torch.cat([bumps * (which @ scale)[..., None], constant, SLOPE_STD * x], -1)
        return (which[..., :, None] * features[..., None, :]).flatten(-2)


def _squared_distances(x: Float[Tensor, "*task point x"], knots: Float[Tensor, "knot x"]) -> Tensor:
    return (x.square().sum(-1, keepdim=True) + knots.square().sum(-1) - 2 * x @ knots.mT).clamp(min=0)


def cholesky(covariance: Float[Tensor, "*batch point point"]) -> Float[Tensor, "*batch point point"]:
    """The factor; where rounding or an extreme draw makes it fail, that of a slightly larger diagonal."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if torch.compiler.is_exporting() or not bool(failed.any()):
        return factor  # a graph cannot ask for values
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return torch.linalg.cholesky(covariance + 1e-3 * (1 + size) * torch.eye(covariance.shape[-1]).to(covariance))
