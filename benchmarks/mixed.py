"""Score statsmodels' MixedLM and gpboost on the tasks of `nvdp bench --suite tables`.

    python benchmarks/mixed.py --folds 2 --json results/bench/mixed.json

The population's curve is a natural spline of x (statsmodels) or boosted trees (gpboost, if it is installed). A task
adds a random line. New tasks are predicted by their best linear unbiased predictor and its variance. Tables of one
output; of large tables 300 training tasks.
"""

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nvdp
from nvdp.bench.tables import CASES, CONTEXTS, FOLDS, TABLES, _tasks
from nvdp.bench.timing import machine
from nvdp.posteriors.prediction import Prediction
from nvdp.system import source_commit, write_text
from nvdp.tables.rivals import Rival, score_cases, scored_cases, summary
from nvdp.tables.tasks import Arrays, folds_of_groups
from nvdp.tasks import Task

MOST_TASKS, KNOTS = 300, 5
TREES = {"learning_rate": 0.1, "max_depth": 3, "min_data_in_leaf": 20, "verbose": -1, "num_threads": 1, "seed": 0}
MOST_TREES, TREE_FOLDS = 200, 4


class Scaled:
    """All points of the training tasks in standard units."""

    def __init__(self, tasks: list[Arrays]) -> None:
        x, y = (np.concatenate(part)[:, 0] for part in zip(*tasks, strict=True))
        self.centre, self.spread, self.level, self.unit = x.mean(), x.std(), y.mean(), y.std()
        self.x, self.y = self.inputs(x), (y - self.level) / self.unit
        self.groups = np.repeat(np.arange(len(tasks)), [len(each) for each, _ in tasks])

    def inputs(self, x: Any) -> Any:
        """Inputs in these units."""
        return (np.asarray(x) - self.centre) / self.spread

    def rival(self, curve: Callable[[Any], Any], between: Any, noise: float) -> Rival:
        """Predict new tasks given the population's curve, and the covariances of a task's line and of the noise."""

        def predict(task: Task) -> Prediction:
            x, at = (self.inputs(each)[:, 0] for each in (task.x_context, task.x_target))
            own, own_at = (np.stack([np.ones_like(each), each], 1) for each in (x, at))
            gain = own_at @ between @ own.T @ np.linalg.inv(own @ between @ own.T + noise * np.eye(len(own)))
            residual = (np.asarray(task.y_context)[:, 0] - self.level) / self.unit - curve(x)
            mean = curve(at) + gain @ residual
            variance = np.sum((own_at - gain @ own) @ between * own_at, 1) + noise
            mean, std = (torch.as_tensor(part)[None, :, None] for part in (mean, np.sqrt(np.maximum(variance, 1e-12))))
            return Prediction(mean, std).scaled([self.level], [self.unit])

        return predict


def mixed_lm(tasks: list[Arrays]) -> Rival:
    """A linear mixed model around a spline, by restricted maximum likelihood."""
    from patsy import build_design_matrices, dmatrix
    from statsmodels.regression.mixed_linear_model import MixedLM

    data = Scaled(tasks)
    knots = min(KNOTS, len(np.unique(data.x)) - 1)
    design = dmatrix(f"0 + cr(x, df={knots})", {"x": data.x}, return_type="matrix")

    def features(at: Any) -> Any:
        (wide,) = build_design_matrices([design.design_info], {"x": np.clip(at, data.x.min(), data.x.max())})
        return np.asarray(wide)

    own = np.stack([np.ones_like(data.x), data.x], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedLM(data.y, features(data.x), data.groups, own).fit(reml=True)
    beta = np.asarray(fitted.fe_params)
    return data.rival(lambda at: features(at) @ beta, np.asarray(fitted.cov_re), float(fitted.scale))


def boosted(tasks: list[Arrays]) -> Rival:
    """Boosted trees with a random line per task; cross-validation over tasks chooses the number of trees.

    The trees are added to a line through all points: without it the lines of tasks take its slope as their own.
    """
    import gpboost

    data = Scaled(tasks)
    line = np.polyfit(data.x, data.y, 1)

    def lines() -> Any:
        return gpboost.GPModel(group_data=data.groups, group_rand_coef_data=data.x, ind_effect_group_rand_coef=[1])

    def dataset() -> Any:
        return gpboost.Dataset(data.x[:, None], data.y - np.polyval(line, data.x))

    folds = [np.flatnonzero(data.groups % TREE_FOLDS == fold) for fold in range(TREE_FOLDS)]
    parts = [(np.setdiff1d(np.arange(len(data.x)), fold), fold) for fold in folds]
    options = {"folds": parts, "early_stopping_rounds": 10, "verbose_eval": False, "seed": 0}
    tried = gpboost.cv(TREES, dataset(), gp_model=lines(), num_boost_round=MOST_TREES, **options)
    model = lines()
    booster = gpboost.train(
        TREES, dataset(), gp_model=model, num_boost_round=len(next(iter(tried.values()))), verbose_eval=False
    )
    noise, *between = np.asarray(model.get_cov_pars()).ravel()[:3]
    return data.rival(
        lambda at: np.polyval(line, at) + booster.predict(at[:, None], ignore_gp_model=True),
        np.diag(np.asarray(between)),
        float(noise),
    )


def main() -> None:
    """Fit and score each of them on each table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=1, help="how many of the five folds")
    parser.add_argument("--tables", default="pigs,spruces,milk,batting")
    parser.add_argument("--json", type=Path, help="the file to write")
    options = parser.parse_args()
    methods = {"statsmodels": mixed_lm} | ({"gpboost": boosted} if importlib.util.find_spec("gpboost") else {})
    rows: list[dict[str, Any]] = []
    for table in (each for each in TABLES if each.name in options.tables.split(",")):
        tasks, groups = _tasks(table)
        cases: dict[tuple[str, str, int], list[Any]] = {}
        seconds = dict.fromkeys(methods, 0.0)
        for fold in range(options.folds):
            others, held = folds_of_groups(groups, FOLDS, seed=0)[fold]
            for name, method in methods.items():
                began = time.process_time()
                rival = method([tasks[place] for place in others[:MOST_TASKS]])
                seconds[name] += time.process_time() - began
                for kind in ("random", "first"):
                    for size in CONTEXTS:
                        asked = scored_cases([tasks[place] for place in held], fold, size, kind == "first", CASES)
                        cases.setdefault((name, kind, size), []).extend(score_cases(rival, asked))
        for (name, kind, size), found in cases.items():
            about = {"table": table.name, "method": name, "kind": kind, "context": size, "folds": options.folds}
            rows.append(about | {"fit_seconds": seconds[name] / options.folds} | asdict(summary(found)))
            print(rows[-1], flush=True)
    result = {"suite": "mixed", "commit": source_commit() or nvdp.__version__, "machine": machine(True), "rows": rows}
    if options.json:
        write_text(options.json, json.dumps(result, indent=1) + "\n")
        print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
