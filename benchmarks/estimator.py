"""Time of `NVDPRegressor` with its defaults, and accuracy of its closed form against many sampled functions.

    python benchmarks/estimator.py --json results/bench/estimator.json

The pretrained GP model, one thread: fit to 50 points, and predict mean and standard deviation at 400, after a warm-up.
Milliseconds are of wall time and of CPU time. The closed form, 64 and 1,000 sampled functions are compared with 1,000
other functions at 100 points, on tasks with 3, 10 and 50 points. Errors are root mean squares over points, in units of
the predictive standard deviation.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from nvdp.data.gp import GPTasks
from nvdp.posteriors.base import Posterior
from nvdp.posteriors.prediction import Prediction
from nvdp.system import keep_freed_memory, use_threads
from nvdp.tables import NVDPRegressor

CONTEXT, QUERIES = 50, 400
CONTEXTS = (3, 10, 50)
LEVELS = (0.05, 0.5, 0.95)
TRUTH = 1_000


def timings(samples: int, repeats: int) -> dict[str, float]:
    """Milliseconds of fit and predict together."""
    regressor = NVDPRegressor.from_pretrained("gp", samples=samples)
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, (CONTEXT, 1))
    y, at = np.sin(2 * x[:, 0]), np.linspace(-2, 2, QUERIES)[:, None]
    wall, cpu = [], []
    for repeat in range(repeats + 5):
        began, began_cpu = time.perf_counter(), time.process_time()
        regressor.fit(x, y).predict(at, return_std=True)
        if repeat >= 5:  # after a warm-up
            wall.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (time.process_time() - began_cpu))
    return {
        "wall_ms_median": round(float(np.median(wall)), 2),
        "wall_ms_fastest": round(min(wall), 2),
        "cpu_ms_median": round(float(np.median(cpu)), 2),
    }


def errors(prediction: Prediction, truth: Prediction) -> list[float]:
    """Of mean, standard deviation (relative) and quantiles."""
    parts = [(prediction.mean - truth.mean) / truth.std, prediction.std / truth.std - 1]
    parts += [(prediction.quantile(level) - truth.quantile(level)) / truth.std for level in LEVELS]
    return [part.double().square().mean().sqrt().item() for part in parts]


def accuracies() -> dict[str, dict[str, float]]:
    """Errors of the closed form and of sampled functions, averaged over tasks."""
    model, at = NVDPRegressor.from_pretrained("gp").predictor_.model, torch.linspace(-2, 2, 100)[:, None]
    collected: dict[str, list[list[float]]] = {}
    for number, points in enumerate(CONTEXTS):
        task = GPTasks().validation_chunk(0, number).first(1)
        chosen = torch.randperm(task.x.shape[1], generator=torch.Generator().manual_seed(number))[:points]
        posterior: Posterior = model.adapt(task.x[0, chosen], task.y[0, chosen])
        truth = posterior.predict(at, TRUTH, 1)
        for name, samples in (("closed form", 0), ("64 functions", 64), ("1000 functions", 1_000)):
            collected.setdefault(name, []).append(errors(posterior.predict(at, samples, 2), truth))
    names = ["mean", "std_relative", *(f"q{100 * level:02.0f}" for level in LEVELS)]
    return {
        method: {name: round(value, 5) for name, value in zip(names, np.mean(rows, 0), strict=True)}
        for method, rows in collected.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    use_threads(1)
    keep_freed_memory()
    result = {
        "context_points": CONTEXT,
        "query_points": QUERIES,
        "threads": 1,
        "load_before": os.getloadavg()[0],
        "default": timings(0, arguments.repeats),
        "64 functions": timings(64, max(5, arguments.repeats // 5)),
        "errors": accuracies(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
