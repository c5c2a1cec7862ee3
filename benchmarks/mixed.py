"""Score statsmodels' MixedLM on the tasks of `nvdp bench --suite tables`.

    python benchmarks/mixed.py --folds 1 --json results/bench/mixed.json

A natural spline of x for the population, a random intercept and slope per task. New tasks are predicted by their best
linear unbiased predictor and its variance. Tables of one output; of large tables 300 training tasks.
"""

import argparse
import json
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nvdp
from nvdp.bench.tables import CASES, CONTEXTS, FOLDS, TABLES, _tasks
from nvdp.bench.timing import machine
from nvdp.posteriors.prediction import Prediction
from nvdp.system import source_commit
from nvdp.tables.rivals import Rival, score_cases, scored_cases, summary
from nvdp.tables.tasks import Arrays, folds_of_groups
from nvdp.tasks import Task

MOST_TASKS, KNOTS = 300, 5


def mixed_lm(tasks: list[Arrays]) -> Rival:
    """A linear mixed model by restricted maximum likelihood."""
    from patsy import build_design_matrices, dmatrix
    from statsmodels.regression.mixed_linear_model import MixedLM

    x, y = (np.concatenate(part)[:, 0] for part in zip(*tasks, strict=True))
    groups = np.repeat(np.arange(len(tasks)), [len(each) for each, _ in tasks])
    centre, spread, level, unit = x.mean(), x.std(), y.mean(), y.std()
    knots = min(KNOTS, len(np.unique(x)) - 1)
    design = dmatrix(f"0 + cr(x, df={knots})", {"x": (x - centre) / spread}, return_type="matrix")
    low, high = ((end(x) - centre) / spread for end in (np.min, np.max))

    def features(at: Any) -> tuple[Any, Any]:
        scaled = (np.asarray(at)[:, 0] - centre) / spread
        (wide,) = build_design_matrices([design.design_info], {"x": np.clip(scaled, low, high)})
        return np.asarray(wide), np.stack([np.ones_like(scaled), scaled], 1)

    wide, own = features(x[:, None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = MixedLM((y - level) / unit, wide, groups, own).fit(reml=True)
    beta, between, noise = np.asarray(fitted.fe_params), np.asarray(fitted.cov_re), float(fitted.scale)

    def predict(task: Task) -> Prediction:
        (wide, own), (wide_at, own_at) = features(task.x_context), features(task.x_target)
        gain = own_at @ between @ own.T @ np.linalg.inv(own @ between @ own.T + noise * np.eye(len(own)))
        mean = wide_at @ beta + gain @ ((np.asarray(task.y_context)[:, 0] - level) / unit - wide @ beta)
        variance = np.sum((own_at - gain @ own) @ between * own_at, 1) + noise
        mean, std = (torch.as_tensor(part)[None, :, None] for part in (mean, np.sqrt(np.maximum(variance, 1e-12))))
        return Prediction(mean, std).scaled([level], [unit])

    return predict


def main() -> None:
    """Fit and score each of them on each table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folds", type=int, default=1, help="how many of the five folds")
    parser.add_argument("--tables", default="pigs,spruces,milk,batting")
    parser.add_argument("--json", type=Path, default=Path("results/bench/mixed.json"))
    options = parser.parse_args()
    methods = {"statsmodels": mixed_lm}
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
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"suite": "mixed", "commit": source_commit() or nvdp.__version__, "machine": machine(True), "rows": rows}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
