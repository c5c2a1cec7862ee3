"""Suite ``adapt``: from the context of a new task to predictions, time and quality beside each other."""

import os
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nvdp.bench.peers import (
    MODULES,
    Gaussian,
    Method,
    Points,
    adapted,
    fine_tuned,
    gpytorch_gp,
    missing_peers,
    sklearn_gp,
)
from nvdp.bench.timing import Span, Timings, interleaved, measured
from nvdp.data.gp import DOMAIN, LENGTH_SCALES, NOISE, SIGNAL_SCALES, GPTaskBatch, rbf_kernel
from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.models.base import MetaModel
from nvdp.nn.likelihoods import gaussian_log_prob
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch
from nvdp.training.run_folder import load_run

CONTEXTS, TARGETS, MANY, MANY_CONTEXT = (5, 50, 500), 400, 1000, 50
TURN_MS = 20.0
NAMES = ("ours", "attentive", "finetune", *MODULES)
NOTES = {
    "ours": "NVDP (pretrained gp-nvdp, or --run): adapt, and predict with mean parameters at 400 targets",
    "fastest": "the same in bfloat16 (torch.autocast) on all cores",
    "attentive": "the same by the attentive NVDP (pretrained gp), which predicts in closed form",
    "finetune": "5 Adam steps on the context with the same network, then the same prediction",
    "sklearn": "GaussianProcessRegressor, Constant × RBF + White, default optimiser, no restarts, fitted to it",
    "gpytorch": "ExactGP, scaled RBF, 50 Adam iterations at 0.1 as in its tutorial, fitted to the context",
    "ll": "mean log-likelihood of the targets, true functions drawn from a GP; oracle: the true kernel, no floor on σ",
    "turn": "for one task a turn lasts at least 20 ms: as many calls, each with another task, as fit",
    "first": "the first call of each turn, which finds the caches as the other methods left them",
    "many": "1,000 tasks: ours at once; the others one by one, timed on `loop_tasks` tasks and scaled up",
}


def adapt_rows(
    run: Path | None, rounds: int, seconds: float, contexts: Sequence[int] = CONTEXTS, many: int = MANY
) -> list[dict[str, Any]]:
    """A row for each context size, each round with a task of its own, and one for many tasks at once."""
    model = _model(run)
    together = {"ours": model, "attentive": load("gp")}
    methods: dict[str, Method] = {name: adapted(own) for name, own in together.items()}
    methods["finetune"] = fine_tuned(model)
    absent = missing_peers()
    for name, make in (("sklearn", sklearn_gp), ("gpytorch", gpytorch_gp)):
        if MODULES[name] not in absent:
            methods[name] = make()
    rows = [_one_task_row(model, methods, size, rounds, seconds) for size in contexts]
    return [*rows, _many_tasks_row(together, methods, many, max(5, rounds // 4))]


def gp_tasks(tasks: int, context: int, targets: int, seed: int = 0) -> GPTaskBatch:
    """Functions from a GP with random kernels: the context anywhere, the targets on a grid, all with noise.

    >>> gp_tasks(2, 5, 20).target.count
    tensor([20., 20.])
    """
    generator = derived_generator(seed, "bench adapt", context)

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    length_scale, signal_scale = uniform(*LENGTH_SCALES, tasks), uniform(*SIGNAL_SCALES, tasks)
    grid = torch.linspace(*DOMAIN, targets, dtype=torch.float64)[None, :, None].expand(tasks, -1, -1)
    x = torch.cat([uniform(*DOMAIN, tasks, context, 1), grid], dim=1)
    covariance = rbf_kernel(x, x, length_scale, signal_scale)
    covariance.diagonal(dim1=-2, dim2=-1).add_(NOISE**2)
    white = torch.randn(tasks, context + targets, 1, generator=generator, dtype=torch.float64)
    plain = TaskBatch.first_points_as_context(x.float(), (torch.linalg.cholesky(covariance) @ white).float(), context)
    return GPTaskBatch(plain.x, plain.y, plain.is_context, plain.mask, length_scale, signal_scale)


def _one_task_row(
    model: MetaModel, methods: dict[str, Method], size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    batch = gp_tasks(rounds, size, TARGETS)
    scores: dict[str, dict[int, float]] = {name: {} for name in methods}
    first: dict[str, list[float]] = {name: [] for name in methods}

    def work(name: str, index: int) -> Span:
        """A turn: the round's task, and further ones until the time is over; milliseconds of one call."""
        spans: list[Span] = []
        while not spans or sum(wall for wall, _ in spans) < TURN_MS:
            task = (index + len(spans)) % rounds
            x, y, answer = batch.x[task], batch.y[task], list[Gaussian]()
            spans.append(measured(partial(_answer, answer, methods[name], x[:size], y[:size], x[size:])))
            mean, std = (part.double() for part in answer[0])
            scores[name][task] = float(gaussian_log_prob(y[size:].double(), mean, std).mean())
        first[name].append(spans[0][0])  # of the warm-up, too
        return statistics.mean(wall for wall, _ in spans), statistics.mean(cpu for _, cpu in spans)

    timings = interleaved({name: partial(work, name) for name in methods}, rounds, seconds=seconds)
    done = batch.first(len(timings.spans["ours"]))
    oracle = done.oracle().log_prob(done.y.double())[0, :, size:].mean()
    quality: dict[str, Any] = {"oracle_ll": float(oracle)}
    for name, by_task in scores.items():
        values = [by_task[task] for task in range(len(done))]  # those that all have answered
        quality[f"{name}_ll"] = statistics.mean(values)
        quality[f"{name}_ll_stderr"] = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    quality |= {f"{name}_first_ms": statistics.median(spans) for name, (_, *spans) in first.items()}
    shape = f"S={size}, {TARGETS} targets, 1 task"
    return _row(model, shape, 1, size, timings, {}) | quality


def _answer(answer: list[Gaussian], method: Method, x: Points, y: Points, x_target: Points) -> None:
    answer.append(method(x, y, x_target))


def _many_tasks_row(
    together: dict[str, MetaModel], methods: dict[str, Method], many: int, loop_tasks: int
) -> dict[str, Any]:
    batch, size = gp_tasks(many, MANY_CONTEXT, TARGETS), MANY_CONTEXT
    x, y, x_target = batch.x[:, :size], batch.y[:, :size], batch.x[:, size:]
    loop_tasks = min(loop_tasks, many)
    quality: dict[str, float] = {}

    def at_once(name: str, _: int) -> None:
        with torch.no_grad():
            prediction = together[name].adapt(x, y).predict(x_target)
        quality[f"{name}_ll"] = float(gaussian_log_prob(batch.y[:, size:], prediction.mean, prediction.std).mean())

    def fastest(_: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                prediction = together["ours"].adapt(x, y).predict(x_target)
        finally:
            torch.set_num_threads(threads)
        quality["fastest_ll"] = float(gaussian_log_prob(batch.y[:, size:], prediction.mean, prediction.std).mean())

    def loop(name: str, _: int) -> None:
        for index in range(loop_tasks):
            methods[name](x[index], y[index], x_target[index])

    variants = {name: partial(at_once if name in together else loop, name) for name in methods}
    timings = interleaved(variants | {"fastest": fastest}, rounds=5)
    scale = {name: many / loop_tasks for name in methods if name not in together}
    row = _row(together["ours"], f"S={size}, {TARGETS} targets, {many} tasks", many, size, timings, scale)
    oracle = batch.oracle().log_prob(batch.y.double())[0, :, size:].mean()
    if "sklearn" in timings.spans:
        row["sklearn_over_fastest"] = timings.ratio("sklearn", "fastest") * scale["sklearn"]
    return row | quality | {"loop_tasks": loop_tasks, "oracle_ll": float(oracle)}


def _row(
    model: MetaModel, shape: str, tasks: int, size: int, timings: Timings, scale: dict[str, float]
) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model.config.name, "shape": shape, "tasks": tasks, "context": size}
    row |= {"targets": TARGETS, "autograd_ms": None, "floor_ms": None} | timings.columns(scale)
    for name in NAMES[1:]:
        known = name in timings.spans
        row.setdefault(f"{name}_ms", None)
        row[f"{name}_over_ours"] = timings.ratio(name, "ours") * scale.get(name, 1.0) if known else None
    return row


def _model(run: Path | None) -> MetaModel:
    if run is None:
        return load("gp-nvdp")
    config, model, _ = load_run(run)
    if config.task != "gp":
        raise InputError(f"{run} was trained on {config.task}; the adapt suite needs a model of gp functions")
    return model
