"""Scores of a fit beside its rivals, all on the same contexts of held-out tasks, and what they say."""

from collections.abc import Mapping, Sequence
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
Ranked = dict[str, dict[str, float]]  # by name, the fit first


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

    def __init__(self, seed: int, forecast: bool, outputs: Sequence[str] = ("y",)) -> None:
        self.seed, self.forecast, self.folds = seed, forecast, 0
        self.outputs = outputs
        self.by_kind: dict[str, CaseScores] = {}  # random contexts, or what comes first
        self.by_output: dict[str, dict[str, CaseScores]] = {}  # of a kind, if there are several outputs
        self.context_sizes: dict[str, list[int]] = {}  # of a kind, the smallest and the largest
        self.by_size: dict[int, CaseScores] = {}
        self.uncalibrated: list[Case] = []
        self.levels: dict[str, list[float]] = {"before": [], "after": []}  # of the interval that holds an output
        self.tasks: dict[str, list[str]] = {}  # of a kind, the name of the task of each case
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
            sizes = [*self.context_sizes.get(kind, []), *(len(case.x_context) for case in cases)]
            self.context_sizes[kind] = [min(sizes), max(sizes)]
            asked = {name: rivals.once(rival) for name, rival in everyone.items()}
            _extend(self.by_kind.setdefault(kind, {}), asked, cases)
            for place, output in enumerate(self.outputs if len(self.outputs) > 1 else ()):
                _extend(self.by_output.setdefault(kind, {}).setdefault(output, {}), asked, cases, place)
            held = min(len(scored), SCORED_CASES)
            known = [not bool(case.y_target.isnan().all()) for case in cases]  # others have no score
            self.tasks.setdefault(kind, []).extend(names[i % held] for i in range(len(cases)) if known[i])
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

    @property
    def main(self) -> str:
        """The kind of contexts that the fit is for."""
        return "forecast" if self.forecast else "random"

    def calibration(self) -> dict[str, Any]:
        """Coverage of the scored tasks before and after calibration, and of intervals of several levels."""
        after = summary(next(iter(self.by_kind[self.main].values())))
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
        by_task: dict[str, list[Case]] = {}
        for name, case in zip(self.tasks[self.main], self.by_kind[self.main][self.ours], strict=True):
            by_task.setdefault(name, []).append(case)
        each = [{"task": name, **asdict(summary(cases))} for name, cases in by_task.items()]
        return sorted(each, key=lambda row: row["LL"])[:WORST]

    def standard_errors(self) -> dict[str, float | None]:
        """Of each rival: the standard error of its difference to the fit in LL, over tasks; None of one task."""
        names = np.array(self.tasks[self.main])
        (_, ours), *others = self.by_kind[self.main].items()
        found: dict[str, float | None] = {}
        for rival, cases in others:
            gain = np.array([b.log_likelihood - a.log_likelihood for a, b in zip(ours, cases, strict=True)])
            means = [gain[names == name].mean() for name in np.unique(names)]
            found[rival] = float(np.std(means, ddof=1) / len(means) ** 0.5) if len(means) > 1 else None
        return found

    def report(self) -> dict[str, Any]:
        """All scores, and the first line of the report."""
        kinds = {kind: _summaries(scores) for kind, scores in self.by_kind.items()}
        outputs = {
            kind: {output: _summaries(scores) for output, scores in each.items() if all(scores.values())}
            for kind, each in self.by_output.items()
        }
        errors = self.standard_errors()
        return {
            "verdict": verdict(kinds[self.main], outputs.get(self.main), errors),
            "scores": kinds[self.main],
            "standard_errors": errors,
            "forecast_scores": kinds.get("forecast"),
            "by_output": outputs,
            "context_sizes": self.context_sizes,
            "worst": self.worst(),
            "by_context": {str(size): _summaries(scores) for size, scores in self.by_size.items()},
        }


def verdict(
    scores: Ranked, by_output: dict[str, Ranked] | None = None, errors: Mapping[str, float | None] | None = None
) -> str:
    """Whether the fit or one of its rivals predicts the held-out tasks best.

    Args:
        scores: Of the fit, first, and of its rivals.
        by_output: The same for each of several outputs; errors of different units have no mean.
        errors: Of each rival, the standard error of the difference to the fit in log-likelihood, if it is known.

    >>> scores = {"nvdp": {"LL": 0.2, "RMSE": 1.0}, "last value": {"LL": 0.1, "RMSE": 0.9}}
    >>> print(*verdict(scores, errors={"last value": 0.02}).split("; "), sep="\\n")
    nvdp has the best log-likelihood of the held-out tasks: 0.200 against 0.100 of last value (difference 0.100 ± 0.020)
    last value has a lower RMSE (0.9 against 1).
    """
    (ours, own), *others = scores.items()
    name, best = max(others, key=lambda item: item[1]["LL"])
    gap, error = abs(own["LL"] - best["LL"]), (errors or {}).get(name)
    (first, ahead), (second, behind) = sorted([(ours, own), (name, best)], key=lambda each: -each[1]["LL"])
    size = f"{ahead['LL']:.3f} against {behind['LL']:.3f}"
    told = "" if error is None else f" (difference {gap:.3f} ± {error:.3f})"
    if gap < LEVEL:
        line = f"{ours} and {name} are level on the held-out tasks: LL {own['LL']:.3f} and {best['LL']:.3f}"
    elif error is not None and gap < 2 * error:
        near = "is ahead in the log-likelihood of the held-out tasks, within two standard errors"
        line = f"{first} {near}: {size} of {second}{told}"
    elif first == ours:
        line = f"{ours} has the best log-likelihood of the held-out tasks: {size} of {second}{told}"
    else:
        line = f"{name} predicts the held-out tasks better than {ours}: LL {size}{told}"
    if by_output is None:
        return f"{line}; {_lowest_error(scores)}."
    return f"{line}; " + "; ".join(f"of {output} {_lowest_error(each)}" for output, each in by_output.items()) + "."


def _lowest_error(scores: Ranked) -> str:
    (ours, own), *others = scores.items()
    name, best = min(others, key=lambda item: item[1]["RMSE"])
    lowest, reached = f"{best['RMSE']:.4g}", f"{own['RMSE']:.4g}"
    if lowest == reached:
        return f"{ours} and {name} have the same RMSE ({reached})"
    if best["RMSE"] < own["RMSE"]:
        return f"{name} has a lower RMSE ({lowest} against {reached})"
    return f"{ours} has the lowest RMSE ({reached})"


def _summaries(scores: CaseScores) -> dict[str, dict[str, float]]:
    return {name: asdict(summary(cases)) for name, cases in scores.items()}


def _extend(scores: CaseScores, competitors: dict[str, Rival], cases: Sequence[Any], output: int | None = None) -> None:
    for name, rival in competitors.items():
        scores.setdefault(name, []).extend(score_cases(rival, cases, output))
