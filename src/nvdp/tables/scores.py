"""Scores of a fit beside its rivals, all on the same contexts of held-out tasks, and what they say."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from nvdp.tables import rivals
from nvdp.tables.fitted import Fitted
from nvdp.tables.prior import fit_prior
from nvdp.tables.rivals import SCORED_CASES, Case, Rival, score_cases, scored_cases, summary
from nvdp.tables.tasks import Arrays, is_ordered, standardised

WORST = 5  # tasks of the report
LEVEL = 0.005  # nats: a smaller difference says nothing of who predicts better
CONTEXTS = (1, 2, 4, 8)  # sizes at which the learning curve of the report is measured
CaseScores = dict[str, list[Case]]


def competitors(fitted: Fitted, ordered: bool, seed: int = 0) -> dict[str, Rival]:
    """A fitted model, first, and its rivals, by name.

    Args:
        fitted: The model and the tasks that all of them learn from.
        ordered: Whether x is one input, so that there is a last value.
        seed: Of the mixed model's sample of tasks.

    Returns:
        What each predicts.
    """
    units, learning = fitted.units, fitted.learning
    found: dict[str, Rival] = {fitted.outcome.config.model.name: rivals.fitted_model(fitted.predictor())}
    if fitted.process is not None:
        sets = standardised(learning, units).sets
        found[rivals.HIERARCHICAL] = rivals.process_rival(fitted.process.plain, units)
        found[rivals.MIXED] = rivals.process_rival(fit_prior(sets, ("line",), seed).plain, units)
    found[rivals.GP_ALONE] = rivals.context_gp(units)
    found[rivals.MEAN_CURVE] = rivals.mean_curve(learning, units)
    if ordered:
        found[rivals.LAST_VALUE] = rivals.last_value(learning, units)
    return found


class TableScores:
    """Scores of a fit, possibly over folds, beside its rivals: all on the same contexts of held-out tasks."""

    def __init__(self, seed: int, forecast: bool) -> None:
        self.seed, self.forecast, self.folds = seed, forecast, 0
        self.by_kind: dict[str, CaseScores] = {}  # random contexts, or what comes first
        self.by_size: dict[int, CaseScores] = {}
        self.uncalibrated: list[Case] = []
        self.levels: dict[str, list[float]] = {"before": [], "after": []}  # of the interval that holds an output
        self.by_task: dict[str, list[Case]] = {}
        self.ours = "nvdp"

    def add(self, fitted: Fitted, scored: list[Arrays], names: Sequence[str]) -> None:
        """Score tasks that the fit has not learned from."""
        ordered, seed = is_ordered(scored), self.seed + self.folds
        self.folds += 1
        everyone = competitors(fitted, ordered, self.seed)
        self.ours = next(iter(everyone))
        kinds = {"forecast": True} if self.forecast else {"random": False} | ({"forecast": True} if ordered else {})
        for kind, prefix in kinds.items():
            cases = scored_cases(scored, seed, prefix=prefix)
            _extend(self.by_kind.setdefault(kind, {}), everyone, cases)
            if prefix == self.forecast:
                ours, tasks = self.by_kind[kind][self.ours][-len(cases) :], min(len(scored), SCORED_CASES)
                for place, case in enumerate(ours):
                    self.by_task.setdefault(names[place % tasks], []).append(case)
        quick = {name: rival for name, rival in everyone.items() if name in (self.ours, rivals.HIERARCHICAL)}
        for size in CONTEXTS:
            cases = scored_cases(scored, seed, size, self.forecast, 60)
            if cases:
                _extend(self.by_size.setdefault(size, {}), quick, cases)
        uncalibrated = replace(fitted.adjustment, sizes=(), factors=(1.0,), factors_ahead=(1.0,), tail=(0.0, 1.0))
        plain = replace(fitted.predictor(), adjustment=uncalibrated)
        cases = scored_cases(scored, seed, prefix=self.forecast)
        self.uncalibrated += score_cases(rivals.fitted_model(plain), cases)
        for name, predictor in (("before", plain), ("after", fitted.predictor())):
            self.levels[name] += rivals.distances(rivals.fitted_model(predictor), cases)

    def calibration(self) -> dict[str, Any]:
        """Coverage of the scored tasks before and after calibration, and of intervals of several levels."""
        kind = "forecast" if self.forecast else "random"
        after = summary(next(iter(self.by_kind[kind].values())))
        before = summary(self.uncalibrated)
        found = {
            name: {"LL": each.LL, "coverage90": each.coverage90, "coverage50": each.coverage50}
            for name, each in (("before", before), ("after", after))
        }
        shares = {
            name: [round(float(np.mean(np.array(values) <= level)), 4) for level in rivals.LEVELS]
            for name, values in self.levels.items()
        }
        return found | {"levels": list(rivals.LEVELS), "shares": shares}

    def worst(self) -> list[dict[str, Any]]:
        """The tasks that were predicted worst, by log-likelihood."""
        each = [{"task": name, **asdict(summary(cases))} for name, cases in self.by_task.items()]
        return sorted(each, key=lambda row: row["LL"])[:WORST]

    def report(self) -> dict[str, Any]:
        """All scores, and the first line of the report."""
        kinds = {kind: _summaries(scores) for kind, scores in self.by_kind.items()}
        main = "forecast" if self.forecast else "random"
        return {
            "verdict": verdict(kinds[main]),
            "scores": kinds[main],
            "forecast_scores": kinds.get("forecast"),
            "worst": self.worst(),
            "by_context": {str(size): _summaries(scores) for size, scores in self.by_size.items()},
        }


def verdict(scores: dict[str, dict[str, float]]) -> str:
    """Whether the fit or one of its rivals predicts the held-out tasks best.

    >>> verdict({"nvdp": {"LL": 0.2, "RMSE": 1.0}, "mixed model": {"LL": 0.1, "RMSE": 0.9}})
    'nvdp has the best log-likelihood of the held-out tasks; mixed model has a lower RMSE (0.9 against 1).'
    """
    (ours, own), *others = scores.items()
    name, best = max(others, key=lambda item: item[1]["LL"])
    closest, nearest = min(others, key=lambda item: item[1]["RMSE"])
    line = f"{ours} has the best log-likelihood of the held-out tasks"
    if abs(best["LL"] - own["LL"]) < LEVEL:
        line = f"{ours} and {name} are level on the held-out tasks: LL {own['LL']:.3f} and {best['LL']:.3f}"
    elif best["LL"] > own["LL"]:
        line = f"{name} predicts the held-out tasks better than {ours}: LL {best['LL']:.3f} against {own['LL']:.3f}"
    if nearest["RMSE"] < own["RMSE"]:
        return f"{line}; {closest} has a lower RMSE ({nearest['RMSE']:.4g} against {own['RMSE']:.4g})."
    first = best["LL"] <= own["LL"] - LEVEL
    return f"{line}; {'it also' if first else ours} has the lowest RMSE."


def _summaries(scores: CaseScores) -> dict[str, dict[str, float]]:
    return {name: asdict(summary(cases)) for name, cases in scores.items()}


def _extend(scores: CaseScores, competitors: dict[str, Rival], cases: Sequence[Any]) -> None:
    for name, rival in competitors.items():
        scores.setdefault(name, []).extend(score_cases(rival, cases))
