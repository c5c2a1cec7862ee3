"""Suite ``adapt``: time and quality of predictions for a new task, beside Gaussian processes and fine-tuning.

Every method is a function (x, y, x_target) -> (mean, std) of one task, so that all are timed and scored alike.
scikit-learn and GPyTorch are optional; they are imported when they are used.
"""

import copy
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.bench.timing import Span, Timings, interleaved, measured
from nvdp.data.gp import DOMAIN, LENGTH_SCALES, NOISE, SIGNAL_SCALES, GPTaskBatch, rbf_kernel
from nvdp.errors import InputError
from nvdp.loading import Predictor, load
from nvdp.models.base import MetaModel
from nvdp.nn.likelihoods import gaussian_log_prob
from nvdp.randomness import derived_generator
from nvdp.system import avoid_broken_amx
from nvdp.tasks import PointSet, TaskBatch
from nvdp.training.run_folder import load_run

Points = Float[Tensor, "*_ _ _"]  # (points, features), of ours also (tasks, points, features)
Gaussian = tuple[Float[Tensor, "*_ _ 1"], Float[Tensor, "*_ _ 1"]]
Method = Callable[[Points, Points, Points], Gaussian]

GPYTORCH_ITERATIONS, GPYTORCH_RATE = 50, 0.1  # as in GPyTorch's regression tutorial
FINE_TUNING_STEPS, FINE_TUNING_RATE = 5, 5e-4  # the learning rate of the paper's training
MODULES = {"sklearn": "scikit-learn", "gpytorch": "gpytorch"}

CONTEXTS, TARGETS, MANY, MANY_CONTEXT = (5, 50, 500), 400, 1000, 50
QUICK_CONTEXTS, QUICK_MANY = (5, 50), 50
TURN_MS = 20.0
TOGETHER = ("ours", "mean_weights", "conv", "general")  # methods that take many tasks at once
NAMES = (*TOGETHER, "finetune", *MODULES)
NOTES = {
    "ours": "NVDP (pretrained gp-nvdp, or --run): adapt, and predict at 400 targets in closed form",
    "mean_weights": "the same with φ at its mean (posterior.at_mean_parameters): no weight uncertainty",
    "fastest": "mean_weights in bfloat16 (torch.autocast) on all cores; slower where bfloat16 products are slow",
    "conv": "as ours, by the convolutional NVDP (pretrained gp)",
    "general": "NVDPRegressor's default, the pretrained general model, in the user's units; its mixture is scored as a "
    "Gaussian of the same mean and deviation",
    "finetune": "5 Adam steps on the context with the same network, then the same prediction",
    "sklearn": "GaussianProcessRegressor, Constant × RBF + White, default optimiser, no restarts, fitted to it",
    "gpytorch": "ExactGP, scaled RBF, 50 Adam iterations at 0.1 as in its tutorial, fitted to the context",
    "ll": "mean log-likelihood of the targets, true functions drawn from a GP; oracle: the true kernel, no floor on σ",
    "turn": "for one task a turn lasts at least 20 ms: as many calls, each with another task, as fit",
    "first": "the first call of each turn, which finds the caches as the other methods left them",
    "many": "1,000 tasks: ours at once; the others one by one, timed on `loop_tasks` tasks and scaled up",
}


def missing_peers() -> list[str]:
    """Names of the packages that are not installed, for pip."""
    return [package for module, package in MODULES.items() if find_spec(module) is None]


def adapted(model: MetaModel | Predictor, mean_weights: bool = False) -> Method:
    """Ours: adapt and predict."""

    @torch.no_grad()
    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        posterior: Any = model.adapt(x, y)
        prediction = posterior.at_mean_parameters(x_target) if mean_weights else posterior.predict(x_target)
        return prediction.mean, prediction.std

    return predict


def fine_tuned(model: MetaModel) -> Method:
    """The same network after a few gradient steps on the context's log-likelihood; each call starts from `model`."""
    start, own = copy.deepcopy(model.state_dict()), copy.deepcopy(model).requires_grad_(True)

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        own.load_state_dict(start)
        optimizer = torch.optim.Adam(own.parameters(), lr=FINE_TUNING_RATE, fused=True)
        context, noise = PointSet.of(x, y), derived_generator(0, "fine-tuning")
        for _ in range(FINE_TUNING_STEPS):
            optimizer.zero_grad()
            (-own.adapt(context).expected_log_likelihood(context, noise).sum() / y.numel()).backward()
            optimizer.step()
        return adapted(own)(x, y, x_target)

    return predict


def sklearn_gp(restarts: int = 0) -> Method:
    """scikit-learn's exact GP; kernel fitted by its default optimiser (L-BFGS), from so many further starts."""
    process, kernels = import_module("sklearn.gaussian_process"), import_module("sklearn.gaussian_process.kernels")
    pools = import_module("threadpoolctl")  # comes with scikit-learn

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        kernel = kernels.ConstantKernel() * kernels.RBF(np.ones(x.shape[1])) + kernels.WhiteKernel()
        regressor = process.GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=0)
        with warnings.catch_warnings(), pools.threadpool_limits(torch.get_num_threads()):
            warnings.simplefilter("ignore")  # with few points, a kernel parameter is often near its bound
            regressor.fit(x.double().numpy(), y[:, 0].double().numpy())
            mean, std = regressor.predict(x_target.double().numpy(), return_std=True)
        return _column(mean), _column(std)

    return predict


def gpytorch_gp() -> Method:
    """GPyTorch's exact GP; marginal likelihood maximised by Adam as in its tutorial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use deprecated parts of PyTorch
        gpytorch = import_module("gpytorch")

    class ExactGP(gpytorch.models.ExactGP):  # type: ignore[name-defined]
        def __init__(self, x: Tensor, y: Tensor, likelihood: torch.nn.Module) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1]))

        def forward(self, x: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = ExactGP(x, y[:, 0], likelihood)
        model.train()
        likelihood.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=GPYTORCH_RATE)
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(GPYTORCH_ITERATIONS):
                optimizer.zero_grad()
                (-marginal(model(x), y[:, 0])).backward()
                optimizer.step()
            model.eval()
            likelihood.eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                prediction = likelihood(model(x_target))
                return prediction.mean[:, None], prediction.stddev[:, None]

    return predict


def _column(values: np.ndarray) -> Float[Tensor, "point 1"]:
    return torch.as_tensor(values, dtype=torch.float32)[:, None]


def adapt_rows(
    run: Path | None, rounds: int, seconds: float, contexts: Sequence[int] = CONTEXTS, many: int = MANY
) -> list[dict[str, Any]]:
    """A row for each context size, each round with a task of its own, and one for many tasks at once."""
    avoid_broken_amx()
    model = _model(run)
    methods = {"ours": adapted(model), "mean_weights": adapted(model, mean_weights=True)}
    methods |= {"conv": adapted(load("gp").model), "general": adapted(load("general"))}
    methods["finetune"] = fine_tuned(model)
    absent = missing_peers()
    for name, make in (("sklearn", sklearn_gp), ("gpytorch", gpytorch_gp)):
        if MODULES[name] not in absent:
            methods[name] = make()
    rows = [_one_task_row(model, methods, size, rounds, seconds) for size in contexts]
    return [*rows, _many_tasks_row(model, methods, many, max(5, rounds // 4))]


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
        """A turn: the round's task, then further ones until the time is over; returns the mean time of a call."""
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
    oracle = done.oracle().log_prob(done.y.double())[:, size:].mean()
    quality: dict[str, Any] = {"oracle_ll": float(oracle)}
    for name, by_task in scores.items():
        values = [by_task[task] for task in range(len(done))]  # tasks that every method has predicted
        quality[f"{name}_ll"] = statistics.mean(values)
        quality[f"{name}_ll_stderr"] = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    quality |= {f"{name}_first_ms": statistics.median(spans) for name, (_, *spans) in first.items()}
    shape = f"S={size}, {TARGETS} targets, 1 task"
    return _row(model, shape, 1, size, timings, {}) | quality


def _answer(answer: list[Gaussian], method: Method, x: Points, y: Points, x_target: Points) -> None:
    answer.append(method(x, y, x_target))


def _many_tasks_row(model: MetaModel, methods: dict[str, Method], many: int, loop_tasks: int) -> dict[str, Any]:
    batch, size = gp_tasks(many, MANY_CONTEXT, TARGETS), MANY_CONTEXT
    x, y, x_target = batch.x[:, :size], batch.y[:, :size], batch.x[:, size:]
    loop_tasks = min(loop_tasks, many)
    quality: dict[str, float] = {}

    def at_once(name: str, _: int) -> None:
        mean, std = methods[name](x, y, x_target)
        quality[f"{name}_ll"] = float(gaussian_log_prob(batch.y[:, size:], mean, std).mean())

    def fastest(_: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                mean, std = methods["mean_weights"](x, y, x_target)
        finally:
            torch.set_num_threads(threads)
        quality["fastest_ll"] = float(gaussian_log_prob(batch.y[:, size:], mean, std).mean())

    def loop(name: str, _: int) -> None:
        for index in range(loop_tasks):
            methods[name](x[index], y[index], x_target[index])

    variants = {name: partial(at_once if name in TOGETHER else loop, name) for name in methods}
    timings = interleaved(variants | {"fastest": fastest}, rounds=2)
    scale = {name: many / loop_tasks for name in methods if name not in TOGETHER}
    row = _row(model, f"S={size}, {TARGETS} targets, {many} tasks", many, size, timings, scale)
    oracle = batch.oracle().log_prob(batch.y.double())[:, size:].mean()
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
        return load("gp-nvdp").model
    config, model, _ = load_run(run)
    if config.task != "gp":
        raise InputError(f"{run} was trained on {config.task}; the adapt suite needs a model of gp functions")
    return model
