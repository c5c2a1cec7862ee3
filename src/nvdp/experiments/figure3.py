"""Figure 3: active learning on GP functions, from one random point to twenty points.

Every model of table 1 with learned variance chooses its own points by the variance across its sampled functions, as in
the paper. For comparison it also learns from random points and from the points that the exact GP chooses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.active import SCORES, ActiveRun, Learner, exact_learner, follow, learn, model_learner, random_order
from nvdp.data.gp import GPTaskBatch, GPTasks
from nvdp.data.source import validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.results import DIGITS
from nvdp.experiments.studies import attentive
from nvdp.experiments.table1 import paper_rows
from nvdp.models.base import RegressionModel
from nvdp.plots.curves import ActiveCurve, figure_active
from nvdp.training.run_folder import load_run

VARIANCE = "-learned"
TASKS = {"quick": 32, "cpu": 256, "paper": 2_048}
POINTS = 20  # one at random, 19 chosen
SIZES = (1, 2, 3, 4, 5, 7, 10, 13, 16, 20)  # at which a given order of points is scored
EVERY = 4  # candidates are every fourth point of the validation grid: 0.04 apart, length scales are at least 0.1
EXACT, OWN, RANDOM, ORACLE = "exact GP", "own", "random", "oracle"
BEYOND = ("nvdp-attentive", "anp")  # not in the paper; trained for the same time


def plan(budget: str) -> Sequence[PlannedRun]:
    """The runs of table 1 with learned variance, and two models whose targets read the context."""
    papers = [run for run in paper_rows(budget) if run.name.endswith(VARIANCE)]
    beyond = [replace(run, name=run.name + VARIANCE) for run in attentive(budget) if run.name in BEYOND]
    return [*papers, *beyond]


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Curves by learner and by how points are chosen: mean over tasks and standard error."""
    loaded = {name.removesuffix(VARIANCE).upper(): load_run(folder)[:2] for name, folder in folders.items()}
    config = next(iter(loaded.values()))[0]
    return {
        "steps": config.steps,
        **learned({name: model for name, (_, model) in loaded.items()}, TASKS[config.preset]),
    }


def learned(models: Mapping[str, RegressionModel], tasks: int) -> dict[str, Any]:
    """Active learning by some models and by the exact GP, on so many tasks."""
    if tasks < 2:
        raise InputError(f"active learning is compared over at least 2 tasks; got {tasks}")
    batches = candidates(tasks)
    exact = exact_learner(next(iter(models.values())).config.likelihood.min_std)
    orders = [random_order(batch, POINTS, VALIDATION_SEED, chunk) for chunk, batch in enumerate(batches)]
    best = [learn(exact, batch, order[:, :1], POINTS - 1) for batch, order in zip(batches, orders, strict=True)]
    oracle_orders = [run.order for run in best]
    curves = {EXACT: {OWN: ActiveRun.join(best), RANDOM: _along(exact, batches, orders)}}
    for name, model in models.items():
        learner = model_learner(model)
        pairs = zip(batches, orders, strict=True)
        curves[name] = {
            OWN: ActiveRun.join([learn(learner, batch, order[:, :1], POINTS - 1) for batch, order in pairs]),
            RANDOM: _along(learner, batches, orders),
            ORACLE: _along(learner, batches, oracle_orders),
        }
    return {
        "tasks": sum(len(batch) for batch in batches),
        "candidates": batches[0].x.shape[1],
        "curves": {name: {way: _to_json(run) for way, run in ways.items()} for name, ways in curves.items()},
        "gain": {name: _gain(ways[OWN], ways[RANDOM]) for name, ways in curves.items()},
    }


def candidates(tasks: int) -> list[GPTaskBatch]:
    """Validation tasks on a grid of [−2, 2]; every point is a candidate."""
    batches = []
    for batch in validation_tasks(GPTasks(), VALIDATION_SEED, tasks):
        assert isinstance(batch, GPTaskBatch)
        parts = {part: getattr(batch, part)[:, ::EVERY] for part in ("x", "y", "is_context", "mask")}
        batches.append(replace(batch, **parts))
    return batches


def _along(learner: Learner, batches: Sequence[GPTaskBatch], orders: Sequence[Any]) -> ActiveRun:
    return ActiveRun.join([follow(learner, *pair, SIZES) for pair in zip(batches, orders, strict=True)])


def _to_json(run: ActiveRun) -> dict[str, Any]:
    values: dict[str, Any] = {"sizes": list(run.sizes)}
    for name in SCORES:
        mean, stderr = run.curve(name)
        values[name] = {"mean": [round(v, DIGITS) for v in mean], "stderr": [round(v, DIGITS) for v in stderr]}
    return values


def _gain(own: ActiveRun, given: ActiveRun) -> dict[str, Any]:
    """LL with own points minus LL with random points: mean of paired differences and standard error."""
    at = [own.sizes.index(size) for size in given.sizes]
    difference = replace(given, scores={name: own.scores[name][:, at] - given.scores[name] for name in SCORES})
    mean, stderr = difference.curve("LL")
    rounded = {"mean": [round(v, DIGITS) for v in mean], "stderr": [round(v, DIGITS) for v in stderr]}
    return {"sizes": list(given.sizes), **rounded}


def draw(data: dict[str, Any], path: Path, main: str = "NVDP") -> Sequence[Path]:
    """Draw the figure: left all models with their own points, right one and the exact GP with points of each kind."""
    first = (EXACT, main)  # so that it has the same colour in both panels
    names = [*first, *(name for name in data["curves"] if name not in first)]
    own = {name: _curve(data["curves"][name][OWN]) for name in names}
    ways = data["curves"][main]
    by_choice = {f"{main}, {OWN} choice": ways[OWN], f"{main}, exact GP's choice": ways[ORACLE]}
    by_choice |= {f"{main}, random points": ways[RANDOM]}
    exact = data["curves"][EXACT]
    by_choice |= {f"{EXACT}, {OWN} choice": exact[OWN], f"{EXACT}, random points": exact[RANDOM]}
    return figure_active(own, {name: _curve(values) for name, values in by_choice.items()}, EXACT, path)


def _curve(values: dict[str, Any]) -> ActiveCurve:
    return ActiveCurve(np.array(values["sizes"]), np.array(values["LL"]["mean"]), np.array(values["LL"]["stderr"]))


FIGURE3 = Experiment("figure3", "Figure 3: active learning on GP functions", plan, collect, draw)
