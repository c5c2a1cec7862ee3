"""Log-likelihood against hours of a core: every run on GP functions with learned variance."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nvdp.experiments.report_tables import Results
from nvdp.experiments.results import paper_numbers
from nvdp.models.registry import model_spec
from nvdp.plots.curves import Curve, figure_hours

EXPERIMENTS = ("table1", "attentive", "learning", "quarter", "rivals")
FLAVOUR = "expected_log"  # the paper's formula
PAPER_NETWORK, PAPER_STEPS = ", paper's network", 500_000
FEWEST_STEPS = 5_000  # of runs that a curve is fitted to: the first steps follow another one
POWERS = np.linspace(0.1, 1.0, 91)


@dataclass(frozen=True)
class Trained:
    """A run: its model, its length and its LL by the paper's formula."""

    model: str
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
            runs.append(Trained(title, result["steps"], result["seconds"], score))
    for row in _quality(results.folder):
        title = row["model"] if row["recipe"] != "paper" else f"{row['model']}{PAPER_NETWORK}"
        runs.append(Trained(title, row["steps"], row["seconds"], row[f"LL_{FLAVOUR}"]))
    return runs


def _title(name: str, inputs: dict[str, Any]) -> str:
    return name if model_spec(name).reader or inputs["fourier"] else f"{name}{PAPER_NETWORK}"


def _quality(folder: Path) -> list[dict[str, Any]]:
    path = folder / "bench" / "quality.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def draw_hours(results: Results, path: Path) -> None:
    """Draw models with several runs: every run as a point, and what had been reached by a time as a line."""
    by_model: dict[str, list[tuple[float, float]]] = {}
    for run in sorted(trained_runs(results), key=lambda run: (not run.model.startswith("nvdp"), run.seconds)):
        by_model.setdefault(run.model, []).append((run.seconds / 3_600, run.log_likelihood))
    points: dict[str, Curve] = {}
    for name, own in by_model.items():
        if len(own) > 1:
            hours, scores = np.array(own).T
            points[name] = hours, scores
    if points:
        lines = {"the paper's NVDP": _paper()}
        if rows := _quality(results.folder):
            lines["attainable"] = rows[0]["attainable_LL"]
        figure_hours(points, path, lines)


def _paper() -> float:
    return float(paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"][0])


def extrapolated(
    steps: Float[np.ndarray, " run"], scores: Float[np.ndarray, " run"], error: float, to: int, draws: int = 400
) -> tuple[float, float]:
    """LL after more steps by a curve a − b · steps^(−c) with 0.1 ≤ c ≤ 1, and its standard deviation.

    Args:
        steps: Of at least three runs.
        scores: Their LL.
        error: Standard deviation of a run's LL over seeds, by which the scores are drawn anew.
        to: The steps to go to.
        draws: How often.

    Returns:
        The value and its standard deviation over draws.

    >>> steps = np.array([1e4, 3e4, 1e5])
    >>> value, _ = extrapolated(steps, 0.8 - 20 * steps**-0.4, 0.0, 500_000)
    >>> round(float(value), 3), round(0.8 - 20 * 5e5**-0.4, 3)
    (0.695, 0.695)
    """

    def fitted(values: Float[np.ndarray, " run"]) -> float:
        best, result = np.inf, np.nan
        for power in POWERS:
            design = np.stack([np.ones(len(steps)), steps**-power], axis=1)
            weights, *_ = np.linalg.lstsq(design, values, rcond=None)
            distance = float(np.square(design @ weights - values).sum())
            if distance < best:
                best, result = distance, float(weights @ [1.0, float(to) ** -power])
        return result

    random = np.random.default_rng(0)
    drawn = [fitted(scores + error * random.standard_normal(len(scores))) for _ in range(draws)]
    return fitted(scores), float(np.std(drawn))


def paper_length_in_words(results: Results) -> str:
    """What plain NVDP would reach after the paper's steps, by a curve through its runs."""
    runs, sentences = trained_runs(results), []
    seeds = [run.log_likelihood for run in runs if (run.model, run.steps) == ("nvdp", FEWEST_STEPS)]
    if len(seeds) < 3:
        return ""
    error = statistics.stdev(seeds)
    for model in (f"nvdp{PAPER_NETWORK}", "nvdp"):
        own: dict[int, list[float]] = {}
        for run in sorted(runs, key=lambda run: run.steps):
            if run.model == model and run.steps >= FEWEST_STEPS:
                own.setdefault(run.steps, []).append(run.log_likelihood)
        if len(own) < 3:
            continue
        steps, scores = np.array(list(own), float), np.array([statistics.mean(each) for each in own.values()])
        value, deviation = extrapolated(steps, scores, error, PAPER_STEPS)
        counted = ", ".join(f"{count:,}" for count in own)
        sentences.append(
            f"A curve a − b · steps^(−c) through the runs of `{model}` with {counted} steps gives an LL of {value:.2f} "
            f"± {deviation:.2f} after the paper's {PAPER_STEPS:,} steps, where the paper has {_paper():.2f}; ± comes "
            f"from the spread of {error:.3f} over seeds alone."
        )
    return " ".join(sentences)


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
