"""A prior from the table itself: a hierarchical GP estimated by marginal likelihood, and training tasks drawn from it.

Tasks are independent given the population curve Φβ, and β is integrated out through its normal equations. So the cost
of the likelihood is one small Cholesky factor per task. All values are standardised.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.frames import FrameTasks
from nvdp.models.hierarchical_gp import ConditionedGP, HierarchicalGP
from nvdp.models.task_kernel import ALL_PARTS, PARAMETER_STD, ROUNDING, Kernel, Observations, Sets
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

MOST_TASKS, MOST_POINTS = 160, 32  # that the kernel is learned from, and of each
MOST_FOR_CURVE = 1_000  # tasks that the population curve is learned from
KNOTS, KNOTS_OF_MANY_INPUTS = 20, 32  # of the population curve
ITERATIONS, FURTHER_ITERATIONS = 40, 8
SCALES = (0.35, 0.6, 1.0, 1.6, 2.6)  # that a task's function and its noise may have
SCALE_STD, SCALE_TASKS = 0.4, 4.0  # prior of the logarithm of a scale, and as how many tasks it counts
LEAST_SHARE = 0.004  # of a pair of scales that is kept
ROUNDS = 100  # of expectation and maximisation
DRAWN_POINTS = (4, 24)  # of a drawn task at inputs of its own
MOST_DRAWN = 40


def fit_prior(
    sets: Sets, parts: tuple[str, ...] = ALL_PARTS, seed: int = 0, start: HierarchicalGP | None = None
) -> HierarchicalGP:
    """Estimate all parameters from training tasks (x, y), in standardised units; y may hold NaN.

    Args:
        sets: The tasks. Of many, the kernel is learned from a random sample.
        parts: What a task adds to the population curve. `("line",)` is a linear mixed model.
        seed: Of the sample.
        start: A process of some of the tasks, from whose parameters a shorter search begins.

    Returns:
        The fitted process.

    >>> from nvdp.tasks import Task
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> sets = [(x, 2 * x + torch.randn(1, generator=generator)) for _ in range(20)]
    >>> process = fit_prior(sets)
    >>> prediction = process.predict(Task(x[:2], 2 * x[:2] + 1, x[2:], 2 * x[2:] + 1))
    >>> bool((prediction.mean - (2 * x[2:] + 1)).abs().max() < 0.1)
    True
    """
    generator = derived_generator(seed, "prior", "sample")
    order = torch.randperm(len(sets), generator=generator).tolist()
    outputs = sets[0][1].shape[1]
    sampled = [_some_points(sets[index], generator) for index in order[:MOST_FOR_CURVE]]
    sampled = [(x, y) for x, y in sampled if (~y.isnan()).any()]
    kernel = Kernel(sets[0][0].shape[1], outputs, _varying(sampled), _knots(sampled, generator), parts)
    few = Observations.of(sampled[: max(40, MOST_TASKS // outputs)])
    if start is None or start.kernel.varying != kernel.varying:
        values = _most_likely(kernel, few, kernel.start, ITERATIONS)
        root = _uncertainty(kernel, few, values)
    else:
        values, root = _most_likely(kernel, few, start.values, FURTHER_ITERATIONS), start.root
    normal, right = _normal_equations(kernel, values, Observations.of(sampled))
    factor = torch.linalg.cholesky(normal)
    curve, covariance = torch.cholesky_solve(right[:, None], factor)[:, 0], torch.cholesky_inverse(factor)
    tails = _tails(kernel, values, curve, few)
    process = HierarchicalGP(kernel, values, root, curve, covariance, tails, -float(_loss(kernel, few, values)))
    return with_scales(process, few)


def with_scales(process: HierarchicalGP, seen: Observations) -> HierarchicalGP:
    """The process with the scales of tasks integrated out: how many tasks have which pair of scales.

    The shares maximise the likelihood of the tasks (expectation and maximisation), with a weak prior around 1.
    """
    pairs = torch.cartesian_prod(*2 * [torch.tensor(SCALES, dtype=torch.float64)])
    start = torch.softmax(-0.5 * (pairs.log() / SCALE_STD).square().sum(1), 0)
    every = replace(process, scales=pairs, shares=start)
    parts = [ConditionedGP(every, seen.part(first, 40)).log_weights for first in range(0, len(seen.x), 40)]
    likelihood, shares = torch.cat(parts, 1) - start.log()[:, None], start  # up to a constant of each task
    for _ in range(ROUNDS):
        shares = torch.softmax(likelihood + shares.log()[:, None], 0).sum(1) + SCALE_TASKS * start
        shares = shares / shares.sum()
    kept = shares >= LEAST_SHARE
    return replace(process, scales=pairs[kept], shares=shares[kept] / shares[kept].sum())


def _some_points(task: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = task
    most = max(4, MOST_POINTS // y.shape[1])
    if len(x) <= most:
        return x, y
    kept = torch.randperm(len(x), generator=generator)[:most]
    return x[kept], y[kept]


def _varying(sets: Sets) -> tuple[int, ...]:
    """Inputs that differ between the points of some task; all, if none does."""
    changes = torch.stack([x.amax(0) - x.amin(0) for x, _ in sets]).amax(0) > ROUNDING
    return tuple(torch.nonzero(changes)[:, 0].tolist()) or tuple(range(len(changes)))


def _knots(sets: Sets, generator: torch.Generator) -> Float[Tensor, "knot x"]:
    """An even grid over one input; of several, points far from each other."""
    x = torch.cat([x for x, _ in sets]).double()
    if x.shape[1] == 1:
        return torch.linspace(float(x.min()), float(x.max()), KNOTS, dtype=torch.float64)[:, None]
    x = x[torch.randperm(len(x), generator=generator)[:2_000]]
    chosen, distance = [x[0]], (x - x[0]).square().sum(1)
    while len(chosen) < KNOTS_OF_MANY_INPUTS and float(distance.max()) > ROUNDING:
        chosen.append(x[int(distance.argmax())])
        distance = torch.minimum(distance, (x - chosen[-1]).square().sum(1))
    return torch.stack(chosen)


def _whitened(
    kernel: Kernel, values: Tensor, seen: Observations
) -> tuple[Float[Tensor, "task point point"], Float[Tensor, "task point feature"], Float[Tensor, "task point"]]:
    """The factor of each task's covariance, and features and outputs divided by it; padding is left alone."""
    both = seen.mask[:, :, None] & seen.mask[:, None, :]
    covariance = kernel.of_task(values, seen.x, seen.output) * both
    noise = kernel.noise(values, seen.x, seen.output).square() + ROUNDING
    factor = torch.linalg.cholesky(covariance + torch.diag_embed(torch.where(seen.mask, noise, 1.0)))
    features = kernel.curve_features(values, seen.x, seen.output) * seen.mask[..., None]
    both_sides = torch.cat([features, (seen.y * seen.mask)[..., None]], -1)
    divided = torch.linalg.solve_triangular(factor, both_sides, upper=False)
    return factor, divided[..., :-1], divided[..., -1]


def _loss(kernel: Kernel, seen: Observations, values: Tensor) -> Float[Tensor, ""]:
    """Minus the log marginal likelihood of an output, β integrated out."""
    factor, features, y = _whitened(kernel, values, seen)
    features, y = features.flatten(0, 1), y.flatten()
    normal = torch.linalg.cholesky(features.mT @ features + torch.eye(features.shape[1]).to(features))
    fitted = torch.linalg.solve_triangular(normal, (features.mT @ y)[:, None], upper=False)
    log_det = factor.diagonal(dim1=1, dim2=2).log().sum() + normal.diagonal().log().sum()
    count = int(seen.mask.sum())
    return (0.5 * (y @ y - fitted.square().sum()) + log_det) / count + 0.5 * math.log(2 * math.pi)


def _most_likely(
    kernel: Kernel, seen: Observations, start: Float[Tensor, " parameter"], iterations: int
) -> Float[Tensor, " parameter"]:
    count = int(seen.mask.sum())
    moved = torch.zeros(int(kernel.free.sum()), dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([moved], lr=0.5, max_iter=iterations, line_search_fn="strong_wolfe")

    def values() -> Tensor:
        return start.index_put((kernel.free,), start[kernel.free] + moved)

    def closure() -> Tensor:
        search.zero_grad()
        now = values()
        loss = _loss(kernel, seen, now) - kernel.log_prior(now) / count
        loss.backward()
        return loss

    try:
        with torch.enable_grad():
            search.step(closure)
    except RuntimeError:  # not positive definite: a step too far: what was found before it stays
        pass
    found = values().detach()
    return found if bool(found.isfinite().all()) else start


def _uncertainty(kernel: Kernel, seen: Observations, values: Tensor) -> Float[Tensor, "parameter parameter"]:
    """A root of the inverse Hessian: how far the parameters may be from the most likely ones."""
    count, free = int(seen.mask.sum()), torch.nonzero(kernel.free)[:, 0]
    root = torch.zeros(len(values), len(values), dtype=torch.float64)
    if len(free) > 40:
        return root

    def gradient(at: Tensor) -> Tensor:
        at = at.clone().requires_grad_(True)
        with torch.enable_grad():
            loss = count * _loss(kernel, seen, at) - kernel.log_prior(at)
            return torch.autograd.grad(loss, at)[0][free]

    try:
        here, step = gradient(values), 1e-4
        rows = [
            (gradient(values.index_add(0, index, torch.tensor([step]).double())) - here) / step
            for index in free[:, None]
        ]
    except RuntimeError:
        return root
    hessian = torch.stack(rows)
    eigenvalues, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
    least = 1 / PARAMETER_STD**2
    root[free[:, None], free] = vectors / eigenvalues.clamp(min=least).sqrt().clamp(min=2.0)  # at most 0.5 each
    return root


def _normal_equations(kernel: Kernel, values: Tensor, seen: Observations) -> tuple[Tensor, Tensor]:
    """The precision of β and its right-hand side, task by task in parts."""
    size = kernel.outputs * (len(kernel.knots) + 1 + kernel.inputs)
    normal, right = torch.eye(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for start in range(0, len(seen.x), 100):
        _, features, y = _whitened(kernel, values, seen.part(start, 100))
        features = features.flatten(0, 1)
        normal, right = normal + features.mT @ features, right + features.mT @ y.flatten()
    return normal, right


def _tails(kernel: Kernel, values: Tensor, curve: Tensor, seen: Observations) -> float:
    """Degrees of freedom of the noise, from the kurtosis of whitened residuals that have one variance in each task."""
    _, features, y = _whitened(kernel, values, seen)
    residual = (y - features @ curve) * seen.mask
    count = seen.mask.sum(1).double()
    enough = count >= 3
    if int(enough.sum()) < 5:
        return math.inf
    square = (residual.square().sum(1) / count.clamp(min=1))[enough]
    scaled, points = residual[enough] / square.clamp(min=ROUNDING).sqrt()[:, None], seen.mask[enough].sum()
    excess = float((scaled.pow(4).sum() / points) / (scaled.square().sum() / points) ** 2) / 3 - 1
    return math.inf if excess < 0.15 else max(4.5, 4 + 2 / excess)


@dataclass(frozen=True)
class DrawnTasks:
    """Training tasks of which a share is drawn from a prior that was fitted to the others.

    Half of the drawn tasks have the inputs of a real task, the others inputs of their own.
    """

    name: ClassVar[str] = "csv"
    real: FrameTasks
    prior: HierarchicalGP = field(repr=False)
    share: float = 0.5
    residuals: bool = False  # tasks are shown as residuals of the prior

    @property
    def x_dim(self) -> int:
        """Features of an input."""
        return self.real.x_dim + (self.real.y_dim if self.residuals else 0)

    @property
    def y_dim(self) -> int:
        """Values of an output."""
        return self.real.y_dim

    @cached_property
    def _pool(self) -> Float[Tensor, "point x"]:
        return torch.cat([x for x, _ in self.real.sets[:2_000]])

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Drawn and real tasks in one batch."""
        generator = derived_generator(seed, "prior", "train", step)
        drawn = round(self.share * tasks)
        sets = self.prior.draw([self._inputs(generator) for _ in range(drawn)], generator) if drawn else []
        chosen = torch.randint(len(self.real.sets), (tasks - drawn,), generator=generator).tolist()
        cut = [self.real.cut(task, generator) for task in sets]
        batch = TaskBatch.collate(cut + [self.real.cut(self.real.sets[index], generator, True) for index in chosen])
        return self.prior.residuals(batch) if self.residuals else batch

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """Tasks of the table alone."""
        return self.real.validation_chunk(seed, chunk)

    def _inputs(self, generator: torch.Generator) -> Float[Tensor, "point x"]:
        x = self.real.sets[int(torch.randint(len(self.real.sets), (), generator=generator))][0]
        if len(x) > MOST_DRAWN:
            x = x[torch.randperm(len(x), generator=generator)[:MOST_DRAWN]]
        if float(torch.rand((), generator=generator)) < 0.5 and len(x) >= DRAWN_POINTS[0]:
            return x
        size = int(torch.randint(DRAWN_POINTS[0], DRAWN_POINTS[1] + 1, (), generator=generator))
        others = self._pool[torch.randint(len(self._pool), (size,), generator=generator)]
        if self.real.x_dim == 1:
            low, high = self._pool.min(), self._pool.max()
            return torch.where(
                torch.rand(size, 1, generator=generator) < 0.5,
                others,
                low + (high - low) * torch.rand(size, 1, generator=generator),
            )
        own = x[:1].expand(size, -1).clone()  # what is constant within a task stays so
        own[:, self.prior.kernel.varying] = others[:, self.prior.kernel.varying]
        return own
