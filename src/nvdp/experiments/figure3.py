"""Figure 3: active learning on GP functions, from one random point to twenty that each model chose for itself.

Every model of table 1 (learned variance) is scored after its own choices, by the variance across sampled functions as
in the paper, and beside them along random points and along the choices of the exact GP, the two ends of the scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.active import SCORES, ActiveRun, Learner, exact_learner, follow, learn, model_learner, random_order
from nvdp.data.gp import GPTaskBatch, GPTasks
from nvdp.data.source import validation_tasks
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.experiments.attentive import plan as attentive_plan
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.table1 import paper_rows
from nvdp.plots.curves import ActiveCurve, figure_active
from nvdp.training.run_folder import load_run

VARIANCE = "-learned"
TASKS = {"quick": 32, "cpu": 256, "paper": 2_048}
POINTS = 20  # one at random, 19 chosen
SIZES = (1, 2, 3, 4, 5, 7, 10, 13, 16, 20)  # at which given orders are scored
EVERY = 4  # candidates are every fourth point of the validation grid: 0.04 apart, kernels at least 0.1 long
EXACT, OWN, RANDOM, ORACLE = "exact GP", "own", "random", "oracle"
DIGITS = 4


BEYOND = ("nvdp-attentive", "anp")  # not the paper's, trained for as long


def plan(budget: str) -> Sequence[PlannedRun]:
    """The runs of table 1 with a learned variance, and two whose targets read the context."""
    papers = [run for run in paper_rows(budget) if run.name.endswith(VARIANCE)]
    beyond = [replace(run, name=run.name + VARIANCE) for run in attentive_plan(budget) if run.name in BEYOND]
    return [*papers, *beyond]


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Curves by learner and by who chooses: the mean over tasks and its standard error."""
    loaded = {name.removesuffix(VARIANCE).upper(): load_run(folder)[:2] for name, folder in folders.items()}
    config, model = next(iter(loaded.values()))
    batches = candidates(TASKS[config.preset])
    exact = exact_learner(model.config.likelihood.min_std)
    orders = [random_order(batch, POINTS, VALIDATION_SEED, chunk) for chunk, batch in enumerate(batches)]
    best = [learn(exact, batch, order[:, :1], POINTS - 1) for batch, order in zip(batches, orders, strict=True)]
    oracle_orders = [run.order for run in best]
    curves = {EXACT: {OWN: ActiveRun.join(best), RANDOM: _along(exact, batches, orders)}}
    for name, (_, model) in loaded.items():
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
        "steps": config.steps,
        "curves": {name: {way: _to_json(run) for way, run in ways.items()} for name, ways in curves.items()},
        "gain": {name: _gain(ways[OWN], ways[RANDOM]) for name, ways in curves.items()},
    }


def candidates(tasks: int) -> list[GPTaskBatch]:
    """Validation tasks on a grid of [−2, 2], any point of which may be asked for."""
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
    """LL after the learner's own choices less that after random ones, task by task."""
    at = [own.sizes.index(size) for size in given.sizes]
    difference = replace(given, scores={name: own.scores[name][:, at] - given.scores[name] for name in SCORES})
    mean, stderr = difference.curve("LL")
    rounded = {"mean": [round(v, DIGITS) for v in mean], "stderr": [round(v, DIGITS) for v in stderr]}
    return {"sizes": list(given.sizes), **rounded}


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """The figure as PNG and PDF: every model by its own choices, and NVDP by who chooses."""
    first = (EXACT, "NVDP")  # then the others: NVDP has the same colour on both sides
    names = [*first, *(name for name in data["curves"] if name not in first)]
    own = {name: _curve(data["curves"][name][OWN]) for name in names}
    ways = data["curves"]["NVDP"]
    by_whom = {f"NVDP, {OWN} choice": ways[OWN], "NVDP, exact GP's choice": ways[ORACLE]}
    by_whom |= {"NVDP, random points": ways[RANDOM]}
    exact = data["curves"][EXACT]
    by_whom |= {f"{EXACT}, {OWN} choice": exact[OWN], f"{EXACT}, random points": exact[RANDOM]}
    return figure_active(own, {name: _curve(values) for name, values in by_whom.items()}, EXACT, path)


def _curve(values: dict[str, Any]) -> ActiveCurve:
    return ActiveCurve(np.array(values["sizes"]), np.array(values["LL"]["mean"]), np.array(values["LL"]["stderr"]))


FIGURE3 = Experiment("figure3", "Figure 3: active learning on GP functions", plan, collect, draw)
