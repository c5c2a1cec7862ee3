"""A general prior over functions of one to three inputs, with all kinds of noise: tasks of the family ``general``.

A task is y = w(f(x)) + noise, standardised by its own context as `nvdp.units.ContextUnits` does for a user's data:

- inputs: uniform, normal, skewed, clustered, on a grid (with repeats); targets like the context, wider than it, or
  beyond it (forecasting), or in a gap of it;
- f: Gaussian processes (RBF, Matérn 1/2, 3/2, 5/2, periodic, linear, sums and products of two, length scales over two
  decades, inputs without effect, warped inputs), saturating and monotone curves, peaks, kinks, steps, or sums of these;
  or two functions with a changepoint between them;
- w: as it is, exponential, saturating, cut off at a bound, or rounded to a few levels;
- noise: standard deviations over two and a half decades, constant or dependent on x or on f, normal, heavy-tailed,
  skewed or with outliers; or nothing but noise.

Everything that meets a Cholesky factor is float64.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet, TaskBatch
from nvdp.units import MOST_INPUTS, ContextUnits, TaskUnits

INPUTS = (0.55, 0.25, 0.2)  # probabilities of 1, 2 and 3 inputs
LENGTH_SCALES, PERIODS = (0.05, 6.0), (0.2, 4.0)  # for inputs of unit deviation
NOISE, LOUD = (0.004, 1.5), (0.2, 2.0)  # of the function's own deviation; of half of the tasks, as real data often are
SIZES = ((0, 2), (3, 6), (5, 12), (10, 25), (20, 50), (40, 100), (80, 200), (200, 500))  # of contexts, by step
SIZE_WEIGHTS = (0.08, 0.18, 0.2, 0.2, 0.17, 0.11, 0.045, 0.015)
TARGETS = 32
CROWDED, FEWER = 100, 4  # contexts from this size on: so many times fewer tasks
JITTER = 1e-6
KERNELS = ("rbf", "matern12", "matern32", "matern52", "periodic", "linear")
CURVES = ("logistic", "exponential", "hill", "peak", "kink", "step", "sine", "line")


class Draw:
    """Random numbers for a batch of tasks, from one generator."""

    def __init__(self, generator: torch.Generator, tasks: int) -> None:
        self.generator, self.tasks = generator, tasks

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """U(low, high)."""
        return low + (high - low) * torch.rand(self.tasks, *shape, generator=self.generator, dtype=torch.float64)

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """exp U(log low, log high)."""
        return self.uniform(math.log(low), math.log(high), *shape).exp()

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1)."""
        return torch.randn(self.tasks, *shape, generator=self.generator, dtype=torch.float64)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """True with that probability."""
        return self.uniform(0, 1, *shape) < probability

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from low to high, both included."""
        return torch.randint(low, high + 1, (self.tasks, *shape), generator=self.generator)

    def choice(self, weights: tuple[float, ...]) -> Int[Tensor, " task"]:
        """An index, by its weight."""
        table = torch.tensor(weights, dtype=torch.float64)
        return torch.multinomial(table, self.tasks, replacement=True, generator=self.generator)


@dataclass(frozen=True)
class PriorTasks:
    """Tasks of the general prior, in units of their contexts.

    >>> batch = PriorTasks().training_batch(seed=0, step=0, tasks=16)
    >>> len(batch), batch.x.shape[-1] == TaskUnits.width
    (16, True)
    """

    name: ClassVar[str] = "general"
    x_dim: ClassVar[int] = TaskUnits.width
    y_dim: ClassVar[int] = 1

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Contexts of similar sizes, more often small, and `TARGETS` targets each; fewer tasks for large contexts."""
        generator = derived_generator(seed, "general", "train", step)
        low, high = SIZES[int(torch.multinomial(torch.tensor(SIZE_WEIGHTS), 1, generator=generator))]
        if high > CROWDED:
            tasks = max(1, tasks // FEWER)
        draw = Draw(generator, tasks)
        return standardised(draw, *draw_tasks(draw, draw.whole(low, high), high, TARGETS), high)

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """Contexts of all sizes up to 50."""
        draw = Draw(derived_generator(seed, "general", "validation", chunk), VALIDATION_CHUNK)
        return standardised(draw, *draw_tasks(draw, draw.whole(1, 50), 50, 2 * TARGETS), 50)


def draw_tasks(
    draw: Draw, sizes: Int[Tensor, " task"], most: int, targets: int
) -> tuple[Tensor, Tensor, Int[Tensor, " task"], Int[Tensor, " task"]]:
    """Inputs (task, most + targets, 3), outputs, sizes of the contexts, and the numbers of inputs.

    The context's points come first, padded to `most`; inputs that a task does not have are 0.
    """
    inputs = draw.choice(INPUTS) + 1
    x = _inputs(draw, sizes, most, targets) * (torch.arange(MOST_INPUTS) < inputs[:, None])[:, None]
    f = _functions(draw, x, inputs)
    return x, _observed(draw, x, f), sizes, inputs


def standardised(draw: Draw, x: Tensor, y: Tensor, sizes: Tensor, inputs: Tensor, most: int) -> TaskBatch:
    """The tasks as a model takes them, each in units of its own context; of some, the range of inputs is known."""
    place = torch.arange(x.shape[1])
    is_context = place < sizes[:, None]
    mask = is_context | (place >= most)
    # Without a spread of its own a context says nothing about units: those of the whole task are then 1.
    y = (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True).clamp(min=1e-9)
    y = (y * (0.5 * draw.normal(1, 1)).exp() + draw.normal(1, 1)).clamp(-1e3, 1e3)
    units = ContextUnits().of_points(PointSet(x, y, is_context), single=False)
    known = (draw.chance(0.3) | (sizes < 2))[:, None, None]
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    spread = ((high - low) / math.sqrt(12)).clamp(min=1e-9)
    units = TaskUnits(
        torch.where(known, (low + high) / 2, units.x_centre),
        torch.where(known, torch.where(spread > 1e-6, spread, 1.0), units.x_spread),
        units.y_centre,
        units.y_spread,
        units.count,
    )
    seen = units.x_in(x)
    seen[..., MOST_INPUTS] = (inputs > 1)[:, None].to(seen)
    seen[..., MOST_INPUTS + 1] = (inputs > 2)[:, None].to(seen)
    real = mask[..., None]
    return TaskBatch((seen * real).float(), (units.y_in(y) * real).float(), is_context, mask)


def _inputs(draw: Draw, sizes: Tensor, most: int, targets: int) -> Float[Tensor, "task point 3"]:
    """Inputs of about unit deviation."""
    points = most + targets
    shape = (points, MOST_INPUTS)
    kind = draw.choice((0.4, 0.2, 0.12, 0.13, 0.15))[:, None, None]
    normal, uniform = draw.normal(*shape), draw.uniform(-1.73, 1.73, *shape)
    mixed = draw.normal(MOST_INPUTS, MOST_INPUTS)
    mixed = mixed / mixed.norm(dim=-1, keepdim=True)
    correlated = torch.where(draw.chance(0.5, 1, 1), normal, normal @ mixed.mT)
    skewed = (draw.uniform(0.3, 1.0, 1, 1) * normal).exp()
    skewed = (skewed - skewed.mean(1, keepdim=True)) / skewed.std(1, keepdim=True).clamp(min=1e-6)
    centres = draw.normal(5, MOST_INPUTS) * 1.2
    cluster = draw.whole(0, 4, points, 1).expand(-1, -1, MOST_INPUTS) % draw.whole(2, 5, 1, 1)
    clustered = centres.gather(1, cluster) + draw.log_uniform(0.02, 0.5, 1, 1) * normal
    levels = draw.log_uniform(2, 60, 1, MOST_INPUTS).round()
    grid = ((uniform / 1.73 + 1) / 2 * levels).floor().clamp(min=0) / levels.clamp(min=1) * 3.46 - 1.73
    x = torch.where(kind == 0, uniform, torch.where(kind == 1, correlated, torch.where(kind == 2, skewed, normal)))
    x = torch.where(kind == 3, clustered, torch.where(kind == 4, grid, x))
    coarse = draw.chance(0.12, 1, MOST_INPUTS)  # one input of few values beside others
    steps = draw.log_uniform(0.3, 2.0, 1, MOST_INPUTS)
    x = torch.where(coarse, (x / steps).round() * steps, x)
    return _apart(draw, x, sizes, most)


def _apart(draw: Draw, x: Tensor, sizes: Tensor, most: int) -> Tensor:
    """Of some tasks the context is on one side of the targets, around them, or narrower."""
    kind = draw.choice((0.72, 0.1, 0.08, 0.1))
    along, index = x[..., 0], torch.arange(x.shape[1])
    # One-sided: the lowest or highest inputs are the context. A gap: the ones far from some place.
    sided = torch.where(draw.chance(0.5, 1), -along, along)
    key = torch.where((kind == 1)[:, None], sided, -(along - draw.normal(1)).abs())
    place = torch.where(index >= most, 1, torch.where(index < sizes[:, None], 0, 2))  # context, targets, padding
    ordered = x.gather(1, key.argsort(1)[..., None].expand_as(x))
    moved = torch.empty_like(x).scatter_(1, place.argsort(dim=1, stable=True)[..., None].expand_as(x), ordered)
    x = torch.where(((kind == 1) | (kind == 2))[:, None, None], moved, x)
    factor = torch.where((kind == 3)[:, None, None], draw.uniform(0.3, 1, 1, 1), 1.0)
    inside = (torch.arange(x.shape[1]) < most)[None, :, None]
    return torch.where(inside, x * factor, x)


def _functions(draw: Draw, x: Tensor, inputs: Tensor) -> Float[Tensor, "task point 1"]:
    """Function values at x, of unit deviation."""
    warped = torch.where(draw.chance(0.25, 1, MOST_INPUTS), _warped(draw, x), x)
    parts = _gp(draw, warped, inputs)  # (task, point, 2): two functions of one kernel
    split = _projected(draw, x, inputs) > draw.normal(1)
    smooth = torch.where((draw.chance(0.08, 1) & split)[..., None], parts[..., 1:], parts[..., :1])
    curve = _unit(_curve(draw, x, inputs) + torch.where(draw.chance(0.3, 1), _curve(draw, x, inputs), 0.0))[..., None]
    share = torch.where(draw.chance(0.62, 1, 1), 0.0, draw.uniform(0, 1, 1, 1))  # GP alone, or a mixture
    share = torch.where(draw.chance(0.18, 1, 1), 1.0, share)  # a curve alone
    f = _unit(((1 - share).sqrt() * _unit(smooth, 1) + share.sqrt() * curve)[..., 0])
    return _bent(draw, f)[..., None]


def _unit(values: Tensor, dim: int = 1) -> Tensor:
    """Mean 0 and deviation 1 over the points of a task; a constant becomes 0."""
    return (values - values.mean(dim, keepdim=True)) / values.std(dim, keepdim=True).clamp(min=1e-6)


def _warped(draw: Draw, x: Tensor) -> Tensor:
    """A monotone map of every input: powers of either side of a point."""
    centre, power = draw.normal(1, MOST_INPUTS), draw.log_uniform(0.4, 2.5, 1, MOST_INPUTS)
    away = x - centre
    return away.sign() * away.abs() ** power


def _projected(draw: Draw, x: Tensor, inputs: Tensor) -> Float[Tensor, "task point"]:
    """A random direction, or one input alone."""
    weights = draw.normal(MOST_INPUTS) * (torch.arange(MOST_INPUTS) < inputs[:, None])
    own = (draw.uniform(0, 1) * inputs).long()
    alone = torch.nn.functional.one_hot(own, MOST_INPUTS).double() * draw.normal(1).sign()
    weights = torch.where(draw.chance(0.4, 1), alone, weights)
    weights = weights / weights.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return (x * weights[:, None]).sum(-1)


def _gp(draw: Draw, x: Tensor, inputs: Tensor) -> Float[Tensor, "task point 2"]:
    """Two functions of a sum or a product of two kernels."""
    points = x.shape[1]
    first, second = _kernel(draw, x, inputs), _kernel(draw, x, inputs)
    weight = draw.uniform(0.05, 0.95, 1, 1)
    how = draw.choice((0.45, 0.35, 0.2))[:, None, None]
    both = torch.where(how == 1, weight * first + (1 - weight) * second, first * second)
    covariance = torch.where(how == 0, first, both)
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    covariance = covariance / scale
    covariance.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed.any():
        covariance.diagonal(dim1=-2, dim2=-1).add_(1e-3)
        factor = torch.where((failed != 0)[:, None, None], torch.linalg.cholesky_ex(covariance)[0].nan_to_num(), factor)
    return factor @ draw.normal(points, 2)


def _kernel(draw: Draw, x: Tensor, inputs: Tensor) -> Float[Tensor, "task point point"]:
    """A kernel of each task, of all inputs together or of their sum."""
    kind = draw.choice((0.3, 0.1, 0.15, 0.2, 0.12, 0.13))
    common = draw.log_uniform(*LENGTH_SCALES, 1)
    lengths = torch.where(draw.chance(0.4, 1), common, common * draw.log_uniform(0.3, 3.0, MOST_INPUTS))
    none = draw.chance(0.2, MOST_INPUTS) & (inputs > 1)[:, None]  # inputs without effect
    lengths = torch.where(none, 1e3, lengths)
    period = draw.log_uniform(*PERIODS)
    centre = draw.normal(1, MOST_INPUTS)
    result = x.new_empty(len(x), x.shape[1], x.shape[1])
    for number, name in enumerate(KERNELS):
        rows = (kind == number).nonzero()[:, 0]
        if len(rows):
            result[rows] = _kernel_of(name, x[rows], lengths[rows], period[rows, None, None], centre[rows])
    return result


def _kernel_of(name: str, x: Tensor, lengths: Tensor, period: Tensor, centre: Tensor) -> Tensor:
    if name == "linear":
        at = (x - centre) / lengths.clamp(min=0.5)[:, None]
        return at @ at.mT + 0.1
    if name == "periodic":
        difference = x[:, :, None, 0] - x[:, None, :, 0]
        wave = torch.exp(-2 * (torch.sin(math.pi * difference / period) / lengths[:, None, :1].clamp(min=0.5)).square())
        rest = torch.exp(-0.5 * torch.cdist(x / lengths[:, None] / 4, x / lengths[:, None] / 4).square())
        return wave * rest.clamp(min=1e-12)
    at = x / lengths[:, None]
    distance = torch.cdist(at, at, compute_mode="donot_use_mm_for_euclid_dist")
    if name == "rbf":
        return torch.exp(-0.5 * distance.square())
    if name == "matern12":
        return torch.exp(-distance)
    scaled = distance * math.sqrt(3 if name == "matern32" else 5)
    return (1 + scaled + (scaled.square() / 3 if name == "matern52" else 0)) * torch.exp(-scaled)


def _curve(draw: Draw, x: Tensor, inputs: Tensor) -> Float[Tensor, "task point"]:
    """A saturating or monotone curve, a peak, a kink, a step, a wave or a line along a direction, of unit deviation."""
    u = _projected(draw, x, inputs) - 1.2 * draw.normal(1)
    steep = draw.log_uniform(0.4, 12.0, 1)
    kind = draw.choice((0.18, 0.14, 0.12, 0.12, 0.12, 0.1, 0.12, 0.1))[:, None]
    above = u.clamp(min=0) * steep
    values = {
        "logistic": torch.sigmoid(steep * u),
        "exponential": torch.exp((-0.7 * steep.clamp(max=6.0) * (u - u.amin(1, keepdim=True))).clamp(min=-30)),
        "hill": above / (1 + above),
        "peak": torch.exp(-0.5 * (steep * u).square()),
        "kink": torch.where(u > 0, u, draw.uniform(-1, 0.5, 1) * u),
        "step": (u > 0).double() + draw.normal(1) * (u > draw.uniform(-1, 1, 1)).double(),
        "sine": torch.sin(steep.clamp(max=8.0) * u),
        "line": u,
    }
    curve = u
    for number, name in enumerate(CURVES):
        curve = torch.where(kind == number, values[name], curve)
    return _unit(curve) * draw.normal(1).sign()


def _bent(draw: Draw, f: Float[Tensor, "task point"]) -> Float[Tensor, "task point"]:
    """Functions whose values are exponential, saturate or are cut off."""
    kind = draw.choice((0.76, 0.1, 0.07, 0.07))[:, None]
    size = draw.uniform(0.3, 1.5, 1)
    bound = draw.normal(1)
    f = torch.where(kind == 1, torch.exp(size * f.clamp(max=8.0)), torch.where(kind == 2, torch.tanh(2 * size * f), f))
    return _unit(torch.where(kind == 3, torch.maximum(f, bound), f))


def _observed(draw: Draw, x: Tensor, f: Float[Tensor, "task point 1"]) -> Float[Tensor, "task point 1"]:
    """f with noise; or noise alone."""
    shape = f.shape[1:]
    size = torch.where(draw.chance(0.5, 1, 1), draw.log_uniform(*NOISE, 1, 1), draw.log_uniform(*LOUD, 1, 1))
    along = _unit(_projected(draw, x, torch.full((len(x),), 1)), 1)[..., None]
    growth = torch.exp(draw.normal(1, 1).clamp(-2, 2) * torch.where(draw.chance(0.5, 1, 1), along, f).clamp(-3, 3))
    size = torch.where(draw.chance(0.22, 1, 1), size * growth.clamp(0.02, 30), size)
    normal = draw.normal(*shape)
    freedom = draw.whole(2, 8, 1, 1)
    chi = (draw.normal(*shape, 8).square() * (torch.arange(8) < freedom[..., None])).sum(-1) / freedom
    skew = draw.uniform(0.3, 1.2, 1, 1)
    skewed = (torch.exp(skew * normal) - torch.exp(skew.square() / 2)) / (
        torch.exp(skew.square()) * (torch.exp(skew.square()) - 1)
    ).sqrt()
    kind = draw.choice((0.72, 0.12, 0.1, 0.06))[:, None, None]
    outliers = torch.where(draw.chance(0.06, *shape), draw.uniform(3, 30, 1, 1), 1.0) * normal
    noise = torch.where(kind == 1, normal / chi.sqrt().clamp(min=0.1), torch.where(kind == 2, skewed, normal))
    noise = torch.where(kind == 3, outliers, noise)
    share = torch.where(draw.chance(0.04, 1, 1), 0.0, 1.0)
    y = share * f + size * noise
    levels = draw.log_uniform(1, 30, 1, 1).round()  # rounded to few values, as counts and ratings are
    step = (y.amax(1, keepdim=True) - y.amin(1, keepdim=True)).clamp(min=1e-6) / levels
    return torch.where(draw.chance(0.08, 1, 1), (y / step).round() * step, y)
