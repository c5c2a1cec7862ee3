"""Suite ``quality``: log-likelihood after some seconds of training for every model, NVDP with the paper's recipe too.

Every row is a training of its own, whose schedule ends with its seconds. So a suite can stop and go on row by row.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from nvdp.data.gp import GPTaskBatch
from nvdp.data.registry import task_source
from nvdp.data.source import validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.inferred import InferredGP
from nvdp.evaluation.metrics import RegressionScores, evaluate
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.training.config import RunConfig
from nvdp.training.loop import trainer_in_memory
from nvdp.training.presets import preset_config

RECIPES = (  # model, preset
    ("nvdp-conv", "quick"),
    ("convgnp", "quick"),
    ("convcnp", "quick"),
    ("nvdp-attentive", "quick"),
    ("anp", "quick"),
    ("tnp-d", "quick"),
    ("nvdp", "quick"),
    ("nvdp", "paper"),
    ("np+cnp+vp", "quick"),
    ("np+cnp", "quick"),
    ("np+vp", "quick"),
    ("np", "quick"),
    ("cnp", "quick"),
)
SECONDS = (30.0, 60.0, 120.0, 300.0, 1_200.0)
# Some tasks are far worse than others: the LL of 128 has a standard error of 0.05 to 0.1, of 1,024 one of 0.02 to 0.04.
TRIAL_STEPS, VALIDATION_TASKS, QUICK_TASKS, SAMPLES = 10, 1_024, 128, 4
MIN_STD = ModelConfig().likelihood.min_std
NOTES = {
    "recipe": "the presets of `nvdp train`; a schedule that ends is stretched to end with the seconds",
    "seconds": "processor time of training alone, data generation included; scoring is not counted",
    "LL": f"mean parameters, validation tasks, the same for all; E log is the paper's formula, {SAMPLES} samples",
    "LL_stderr": "over tasks",
    "ceiling_LL": "exact GP that knows each task's kernel, σ ≥ 0.1",
    "attainable_LL": "exact GP that must infer the kernel from the context, as the models must, σ ≥ 0.1",
}


@dataclass
class Recipe:
    """A recipe in training, with a clock that runs only while it trains."""

    config: RunConfig
    budget: float  # seconds
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.source = task_source(self.config.task)
        self.trainer = trainer_in_memory(self.config, self.source, lambda: self.spent / self.budget)
        self.model = cast(MetaModel, self.trainer.model)

    def train_until(self, seconds: float) -> None:
        """Train until its own clock shows that many seconds; the schedule follows the clock."""
        self.model.train()
        began = time.process_time() - self.spent
        while self.spent < seconds:
            self.trainer.take_step()
            self.spent = time.process_time() - began

    def row(self, validation: int) -> dict[str, Any]:
        """Its scores at this time."""
        batches = validation_tasks(self.source, VALIDATION_SEED, validation)
        scores = evaluate(self.model.eval(), batches, SAMPLES)["scores"]
        return {
            "model": self.config.model.name,
            "shape": self.config.task,
            "recipe": self.config.preset,
            "budget": self.budget,
            "tasks": validation,
            "samples": SAMPLES,
            "seconds": self.spent,
            "steps": self.trainer.step,
            "ours_ms": 1e3 * self.spent / self.trainer.step,
            "autograd_ms": None,
            "floor_ms": None,
            **{name: scores[name]["mean_parameters"] for name in ("LL", "RLL", "PLL")},
            **{f"{name}_expected_log": scores[name]["expected_log"] for name in ("LL", "RLL", "PLL")},
            "LL_stderr": scores["LL"]["stderr"],
            **ceilings(self.config.task, validation),
        }


def quality_rows(
    seconds: Sequence[float] = SECONDS,
    validation: int = VALIDATION_TASKS,
    recipes_of: Sequence[tuple[str, str]] = RECIPES,
    done: Sequence[dict[str, Any]] = (),
    save: Callable[[list[dict[str, Any]]], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Train each recipe for each number of seconds, the shortest first, and score it.

    Args:
        seconds: Of each training.
        validation: Tasks that score it.
        recipes_of: Models and presets.
        done: Rows that were measured before; they are kept.
        save: Called with all rows after each new one.
        say: Called with a line about each new row.

    Returns:
        A row for each training, by seconds and recipe.

    Raises:
        InputError: If an earlier row was scored on other numbers of tasks or samples.
    """
    for row in done:
        if (scored := (row.get("tasks"), row.get("samples"))) != (validation, SAMPLES):
            said = f"the row of {row['model']} after {row['budget']:g} s was scored on {scored[0]} tasks"
            said += f" with {scored[1]} samples; expected {validation:,} and {SAMPLES}"
            raise InputError(f"{said}: choose another file")
    rows = list(done)
    wanted = [(model, preset, budget) for budget in sorted(seconds) for model, preset in recipes_of]
    known = {(row["model"], row["recipe"], row["budget"]) for row in rows}
    for model, preset, budget in wanted:
        if (model, preset, budget) in known:
            continue
        recipe = started(model, preset, budget)
        recipe.train_until(budget)
        new = recipe.row(validation)
        rows.append(new)
        known.add((model, preset, budget))
        order = [(row["model"], row["recipe"]) for row in rows]
        rows.sort(key=lambda row: (row["budget"], order.index((row["model"], row["recipe"]))))
        if save is not None:
            save(rows)
        if say is not None:
            count = len(known.intersection(wanted))
            say(f"{model}, {preset}, {budget:g} s: LL {new['LL']:.3f} ({count} of {len(wanted)})")
    return rows


def beside_earlier(rows: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the LL of the same model, recipe and seconds in an earlier version, where it was measured.

    Args:
        rows: Of the suite.
        earlier: Of the suite, by an earlier version of the package.

    Returns:
        Copies of the rows; `before_LL` is in those that were measured before and are not the same row.

    >>> row = {"model": "cnp", "recipe": "quick", "budget": 30.0, "steps": 900, "LL": 0.4}
    >>> [each.get("before_LL") for each in beside_earlier([row], [row | {"LL": 0.1, "steps": 800}])]
    [0.1]
    >>> "before_LL" in beside_earlier([row], [row])[0]
    False
    """
    known = {(row["model"], row["recipe"], row["budget"]): row for row in earlier}

    def beside(row: dict[str, Any]) -> dict[str, Any]:
        before = known.get((row["model"], row["recipe"], row["budget"]), row)
        same = (before["LL"], before["steps"]) == (row["LL"], row["steps"])
        return row if same else row | {"before_LL": before["LL"]}

    return [beside(row) for row in rows]


def not_run(rows: Sequence[dict[str, Any]]) -> str:
    """A sentence with the trainings of the full suite that have no row; empty if there are none.

    >>> not_run([{"model": name, "recipe": preset, "budget": s} for s in SECONDS[:-1] for name, preset in RECIPES])
    'Not run: 1,200 s of all models.'
    """
    done = {(row["model"], row["recipe"], row["budget"]) for row in rows}
    parts = []
    for seconds in SECONDS:
        missing = [recipe for recipe in RECIPES if (*recipe, seconds) not in done]
        names = [model if preset == "quick" else f"{model} ({preset})" for model, preset in missing]
        if missing:
            parts.append(f"{seconds:,.0f} s of " + ("all models" if len(missing) == len(RECIPES) else ", ".join(names)))
    return f"Not run: {'; '.join(parts)}." if parts else ""


@cache
def ceilings(task: str, validation: int) -> dict[str, float]:
    """LL of the exact GP that knows each task's kernel, and of the one that infers it."""
    ceiling, inferred = RegressionScores(), InferredGP(MIN_STD)
    for tasks in validation_tasks(task_source(task), VALIDATION_SEED, validation):
        assert isinstance(tasks, GPTaskBatch)
        ceiling.add_log_likelihoods("ceiling_LL", tasks.oracle(min_std=MIN_STD).log_prob(tasks.y.double()), tasks)
        ceiling.add_log_likelihoods("attainable_LL", inferred.log_prob(tasks)[..., None], tasks)
    return {name: ceiling.scores()["LL"][name] for name in ("ceiling_LL", "attainable_LL")}


def started(model: str, preset: str, seconds: float) -> Recipe:
    """A recipe whose number of steps is what the seconds allow, judged by a trial of a few steps."""
    config = preset_config("gp", model, preset)
    trial = Recipe(config, seconds)
    trial.trainer.take_step()
    began = time.process_time()
    for _ in range(TRIAL_STEPS):
        trial.trainer.take_step()
    steps = max(1, round(seconds * TRIAL_STEPS / (time.process_time() - began)))
    return Recipe(replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 10)), seconds)
