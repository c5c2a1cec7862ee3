"""Log-likelihood against hours of a core: every run on GP functions with learned variance."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nvdp.experiments.entries import read_entries
from nvdp.experiments.report_tables import Results
from nvdp.experiments.results import paper_numbers
from nvdp.experiments.schemas import BENCH, EARLIER_QUALITY
from nvdp.models.registry import model_spec
from nvdp.plots.curves import Curve, figure_hours

EXPERIMENTS = ("table1", "attentive", "learning", "quarter", "long", "rivals")
FLAVOUR = "expected_log"  # the paper's formula
PAPER_NETWORK, PAPER_STEPS = ", paper's network", 500_000
FEWEST_STEPS = 5_000  # of runs that a curve is fitted to: the first steps follow another one
POWERS = np.linspace(0.1, 1.0, 91)
RECIPE = ("optimizer", "schedule", "learning_rate", "gradient_clip", "tasks_per_step", "objective", "kl")
MOST_DRAWN = 8  # models, besides the paper's network


@dataclass(frozen=True)
class Trained:
    """A run: its model, how it was trained, its length and its LL by the paper's formula."""

    model: str
    recipe: tuple[Any, ...]
    steps: int
    seconds: float
    log_likelihood: float


def trained_runs(results: Results) -> list[Trained]:
    """Runs of the experiments and of the bench's suite ``quality`` on the paper's GP functions."""
    runs = []
    for result in (each for what in EXPERIMENTS for each in results.runs(what).values()):
        model = result["config"]["model"]
        if result["config"]["task"] == "gp" and model["likelihood"]["variance"] == "learned":
            score = result["evaluation"]["scores"]["LL"][FLAVOUR]
            title = _title(model["name"], model["inputs"])
            recipe = tuple(result["config"].get(name) for name in RECIPE)
            runs.append(Trained(title, recipe, result["steps"], result["seconds"], score))
    for row in _quality(results.folder):
        title = row["model"] if row["recipe"] != "paper" else f"{row['model']}{PAPER_NETWORK}"
        runs.append(Trained(title, (row["recipe"],), row["steps"], row["seconds"], row[f"LL_{FLAVOUR}"]))
    return runs


def _title(name: str, inputs: dict[str, Any]) -> str:
    return name if model_spec(name).reader or inputs["fourier"] else f"{name}{PAPER_NETWORK}"


def _quality(folder: Path) -> list[dict[str, Any]]:
    paths = [path for path in sorted((folder / "bench").glob("quality*.json")) if path.name != EARLIER_QUALITY]
    return [row for path in paths for row in read_entries(path, BENCH["quality"], "rows")["rows"]]


def drawn_points(results: Results) -> dict[str, Curve]:
    """(hours, LL) of the models that the figure shows: with several runs, the best eight, and the paper's NVDP."""
    by_model: dict[str, list[tuple[float, float]]] = {}
    for run in sorted(trained_runs(results), key=lambda run: run.seconds):
        by_model.setdefault(run.model, []).append((run.seconds / 3_600, run.log_likelihood))
    several = {name: np.array(own).T for name, own in by_model.items() if len(own) > 1}
    best = sorted(several, key=lambda name: -several[name][1].max())
    shown = [name for name in best if PAPER_NETWORK not in name][:MOST_DRAWN]
    shown += [name for name in best if name == f"nvdp{PAPER_NETWORK}"]
    return {name: (several[name][0], several[name][1]) for name in shown}


def draw_hours(results: Results, path: Path) -> None:
    """Draw every run as a point, and what had been reached by a time as a line."""
    if points := drawn_points(results):
        lines = {"the paper's NVDP": _paper()}
        if rows := _quality(results.folder):
            lines["attainable"] = rows[0]["attainable_LL"]
        figure_hours(points, path, lines)


def _paper() -> float:
    return float(paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"][0])


def extrapolated(
    steps: Float[np.ndarray, " run"],
    scores: Float[np.ndarray, " run"],
    errors: Float[np.ndarray, " run"],
    target: int,
    draws: int = 400,
) -> tuple[float, float]:
    """LL after more steps by a curve a − b · steps^(−c) with 0.1 ≤ c ≤ 1, and its standard deviation.

    Args:
        steps: Of at least three runs.
        scores: Their LL.
        errors: Standard deviation of each over seeds, by which the scores are redrawn.
        target: The steps to extrapolate to.
        draws: Number of redrawn vectors of scores.

    Returns:
        The value and its standard deviation over draws.

    >>> steps = np.array([1e4, 3e4, 1e5])
    >>> value, _ = extrapolated(steps, 0.8 - 20 * steps**-0.4, np.zeros(3), 500_000)
    >>> round(float(value), 3), round(0.8 - 20 * 5e5**-0.4, 3)
    (0.695, 0.695)
    """

    redrawn = scores + errors * np.random.default_rng(0).standard_normal((draws, len(scores)))
    values = np.concatenate([scores[None], redrawn])
    distances, ends = [], []
    for power in POWERS:
        design = np.stack([np.ones(len(steps)), steps**-power], axis=1)
        weights = values @ np.linalg.pinv(design).T
        distances.append(np.square(weights @ design.T - values).sum(1))
        ends.append(weights @ [1.0, float(target) ** -power])
    chosen = np.array(ends)[np.argmin(distances, axis=0), np.arange(len(values))]
    return float(chosen[0]), float(chosen[1:].std())


def paper_length_in_words(results: Results) -> str:
    """What plain NVDP would reach after the paper's steps, by a curve through its runs of one recipe."""
    runs = [run for run in trained_runs(results) if run.model == "nvdp" and run.steps >= FEWEST_STEPS]
    first = [run for run in runs if run.steps == FEWEST_STEPS]
    if len(first) < 3:
        return ""
    own: dict[int, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.steps):
        if run.recipe == first[0].recipe:
            own.setdefault(run.steps, []).append(run.log_likelihood)
    if len(own) < 3:
        return ""
    seeds = own[FEWEST_STEPS]
    error = statistics.stdev(seeds)
    steps, scores = np.array(list(own), float), np.array([statistics.mean(each) for each in own.values()])
    errors = np.array([error / len(each) ** 0.5 for each in own.values()])
    value, deviation = extrapolated(steps, scores, errors, PAPER_STEPS)
    counted = ", ".join(f"{count:,}" for count in own)
    return (
        f"A curve a − b · steps^(−c) through the runs of `nvdp` with {counted} steps gives an LL of {value:.2f} ± "
        f"{deviation:.2f} after the paper's {PAPER_STEPS:,} steps, where the paper has {_paper():.2f}. The ± comes "
        f"from the spread of {error:.3f} over {len(seeds)} seeds with {FEWEST_STEPS:,} steps. The curve's form is a "
        f"guess: {len(own)} points have to give three parameters."
    )


def hours_in_words(results: Results) -> str:
    """Which models passed the paper's NVDP, and in which time the first of their runs did."""
    runs = sorted(trained_runs(results), key=lambda run: run.seconds)
    passed: dict[str, float] = {}
    best: dict[str, float] = {}
    for run in runs:
        best[run.model] = max(run.log_likelihood, best.get(run.model, run.log_likelihood))
        if run.log_likelihood > _paper():
            passed.setdefault(run.model, run.seconds)
    above = ", ".join(f"`{name}` {seconds / 60:.1f}" for name, seconds in passed.items())
    below = ", ".join(f"`{name}` {score:.2f}" for name, score in best.items() if name not in passed)
    words = f"Minutes of the shortest run above the paper's LL of {_paper():.2f}: {above or 'none'}."
    return f"{words} Best LL of the other models: {below or 'none'}." if runs else ""
