"""Suite ``quality``: log-likelihood after some seconds of training for every model, NVDP with the paper's recipe too.

Every row is a training of its own, whose schedule ends with its seconds. So a suite can stop and go on row by row.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import nvdp
from nvdp.data.gp import GPTaskBatch
from nvdp.data.registry import task_source
from nvdp.data.source import validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.inferred import InferredGP
from nvdp.evaluation.metrics import RegressionScores, evaluate
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.experiments.results import paper_numbers
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.processes import in_processes
from nvdp.system import source_commit
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
UNLIMITED = 10**9  # steps: the clock ends a training
# Some tasks are far worse than others: the LL of 128 has a standard error of 0.05 to 0.1, of 1,024 one of 0.02 to 0.04.
TRIAL_STEPS, VALIDATION_TASKS, QUICK_TASKS, SAMPLES = 10, 1_024, 128, 4
MIN_STD = ModelConfig().likelihood.min_std
NOTES = {
    "recipe": "the presets of `nvdp train`; a schedule that ends is stretched to end with the seconds",
    "seconds": "processor time of training alone, data generation included; scoring is not counted",
    "LL": f"mean parameters, validation tasks, the same for all; E log is the paper's formula, {SAMPLES} samples",
    "LL_stderr": "over tasks",
    "jobs": "trainings side by side; with several, they slow each other down",
    "ceiling_LL": "exact GP that knows each task's kernel, σ ≥ 0.1",
    "attainable_LL": "exact GP that must infer the kernel from the context, as the models must, σ ≥ 0.1",
}


@dataclass
class Recipe:
    """A recipe in training, with a clock that runs only while it trains; the clock alone moves the schedule."""

    config: RunConfig
    budget: float  # seconds
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.config = replace(self.config, steps=UNLIMITED)
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
            "commit": source_commit() or nvdp.__version__,
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
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Train each recipe for each number of seconds, the shortest first, and score it.

    Args:
        seconds: Of each training.
        validation: Tasks that score it.
        recipes_of: Models and presets.
        done: Rows that were measured before; they are kept.
        save: Called with all rows after each new one.
        say: Called with a line about each new row.
        jobs: Trainings at the same time, each in a process of its own if there are several.

    Returns:
        A row for each training, by seconds and recipe.

    Raises:
        InputError: If an earlier row was scored on other numbers of tasks or samples, or a process was killed.
    """
    for row in done:
        if (scored := (row.get("tasks"), row.get("samples"))) != (validation, SAMPLES):
            said = f"the row of {row['model']} after {row['budget']:g} s was scored on {scored[0]} tasks"
            said += f" with {scored[1]} samples; expected {validation:,} and {SAMPLES}"
            raise InputError(f"{said}: choose another file")
    rows = list(done)
    wanted = [(model, preset, budget) for budget in sorted(seconds) for model, preset in recipes_of]
    known = {_key(row) for row in rows}
    with closing(_trained_rows([one for one in wanted if one not in known], validation, jobs)) as trained:
        for new in trained:
            rows.append(new)
            known.add(_key(new))
            rows.sort(key=_place)
            if save is not None:
                save(rows)
            if say is not None:
                which = f"{new['model']}, {new['recipe']}, {new['budget']:g} s"
                say(f"{which}: LL {new['LL']:.3f} ({len(known.intersection(wanted))} of {len(wanted)})")
    return rows


def trained_row(model: str, preset: str, budget: float, validation: int = VALIDATION_TASKS) -> dict[str, Any]:
    """Train one recipe for some processor seconds and score it."""
    recipe = started(model, preset, budget)
    recipe.train_until(budget)
    return recipe.row(validation)


def _key(row: dict[str, Any]) -> tuple[str, str, float]:
    return row["model"], row["recipe"], row["budget"]


def _place(row: dict[str, Any]) -> tuple[float, int]:
    """By seconds, then in the order of the recipes; those of other versions are last."""
    recipe = (row["model"], row["recipe"])
    return row["budget"], RECIPES.index(recipe) if recipe in RECIPES else len(RECIPES)


def _trained_rows(
    wanted: Sequence[tuple[str, str, float]], validation: int, jobs: int
) -> Generator[dict[str, Any], None, None]:
    """The rows of what is wanted, as they are done."""
    if jobs == 1:
        yield from (trained_row(*one, validation) | {"jobs": 1} for one in wanted)
        return
    calls = [(*one, validation) for one in wanted]
    yield from (row | {"jobs": jobs} for row in in_processes(trained_row, calls, jobs))


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
    known = {_key(row): row for row in earlier}

    def beside(row: dict[str, Any]) -> dict[str, Any]:
        before = known.get(_key(row), row)
        same = (before["LL"], before["steps"]) == (row["LL"], row["steps"])
        return row if same else row | {"before_LL": before["LL"]}

    return [beside(row) for row in rows]


def not_run(rows: Sequence[dict[str, Any]]) -> str:
    """A sentence with the trainings of the full suite that have no row; empty if there are none.

    >>> not_run([{"model": name, "recipe": preset, "budget": s} for s in SECONDS[:-1] for name, preset in RECIPES])
    'Not run: 1,200 s of all models.'
    """
    done = {_key(row) for row in rows}
    parts = []
    for seconds in SECONDS:
        missing = [recipe for recipe in RECIPES if (*recipe, seconds) not in done]
        names = [model if preset == "quick" else f"{model} ({preset})" for model, preset in missing]
        if missing:
            parts.append(f"{seconds:,.0f} s of " + ("all models" if len(missing) == len(RECIPES) else ", ".join(names)))
    return f"Not run: {'; '.join(parts)}." if parts else ""


def in_words(rows: Sequence[dict[str, Any]]) -> str:
    """After how many seconds each model passes the paper's LL, and which is best.

    >>> row = {"model": "cnp", "recipe": "quick", "budget": 30.0, "LL": 0.4, "LL_expected_log": 0.4}
    >>> rows = [row, row | {"budget": 60.0, "LL": 0.9, "LL_expected_log": 0.9}, row | {"model": "np"}]
    >>> print(in_words([each | {"attainable_LL": 1.1} for each in rows]))
    E log of LL passes 0.83, the paper's NVDP, after 60 s: cnp; not within 30 s: np.
    Best LL after 60 s: cnp, 0.900 (attainable 1.100).
    """
    paper = paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"][0]
    longest = max(row["budget"] for row in rows)
    names = {_key(row)[:2]: row["model"] + ("" if row["recipe"] == "quick" else f" ({row['recipe']})") for row in rows}
    groups: dict[tuple[bool, float], list[str]] = {}
    for key, name in names.items():
        own = [row for row in rows if _key(row)[:2] == key]
        above = [row["budget"] for row in own if row["LL_expected_log"] > paper]
        seconds = min(above) if above else max(row["budget"] for row in own)
        groups.setdefault((not above, seconds), []).append(name)
    parts = [
        f"{'not within' if never else 'after'} {seconds:,.0f} s: {', '.join(models)}"
        for (never, seconds), models in sorted(groups.items())
    ]
    top = max((row for row in rows if row["budget"] == longest), key=lambda row: row["LL"])
    leader = f"{names[_key(top)[:2]]}, {top['LL']:.3f} (attainable {top['attainable_LL']:.3f})"
    return (
        f"E log of LL passes {paper}, the paper's NVDP, {'; '.join(parts)}.\nBest LL after {longest:,.0f} s: {leader}."
    )


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
    """A recipe whose warm-up is at most a tenth of what the seconds allow, judged by a trial of a few steps."""
    config = preset_config("gp", model, preset)
    trial = Recipe(config, seconds)
    trial.trainer.take_step()
    began = time.process_time()
    for _ in range(TRIAL_STEPS):
        trial.trainer.take_step()
    steps = round(seconds * TRIAL_STEPS / (time.process_time() - began))
    return Recipe(replace(config, warmup_steps=min(config.warmup_steps, steps // 10)), seconds)
