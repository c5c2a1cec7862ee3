"""What the pretrained model `general` does: units, few points, noise, distance, time, gap to the exact posterior.

python benchmarks/general.py [--seconds S]     # results/bench/general.json, and scores.json beside the weights
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import nvdp
from nvdp.bench.real import summary
from nvdp.data.priors import Draw, PriorTasks, draw_tasks, standardised
from nvdp.evaluation.metrics import evaluate
from nvdp.randomness import derived_generator
from nvdp.system import keep_freed_memory, write_text

ROOT = Path(__file__).resolve().parents[1]
RESULT, REAL = ROOT / "results" / "bench" / "general.json", ROOT / "results" / "bench" / "real.json"
WEIGHTS = ROOT / "src" / "nvdp" / "weights" / "general"
VALIDATION = {"seed": 20_220, "chunk": 64}
GAP_SIZES, GAP_TASKS = (3, 10, 20), 200


def on_the_prior(general, sizes=(0, 1, 2, 3, 5, 10, 20, 50, 100, 300), tasks=1_024):
    """Scores on new tasks of its own prior, by size of context; targets of a task are not independent."""
    rows = []
    for size in sizes:
        each, parts = (128, tasks // 128) if size < 100 else (32, 4)
        found = []
        for part in range(parts):
            draw = Draw(derived_generator(VALIDATION["seed"], "general", "by context", 1_000 * part + size), each)
            batch = standardised(draw, *draw_tasks(draw, torch.full((each,), size), size, 32), size)
            target = batch.target.compact()
            prediction = general.model.posterior_given(batch.context).predict(target.x)
            away = (prediction.cdf(target.y) - 0.5).abs()
            of_tasks = (prediction.log_prob(target.y), away <= 0.45, away <= 0.25)
            found.append(torch.stack([values.double().mean((1, 2)) for values in of_tasks]))
        values = torch.cat(found, 1)
        means, errors = values.mean(1).tolist(), (values.std(1) / values.shape[1] ** 0.5).tolist()
        row = dict(zip(("LL", "coverage90", "coverage50"), means, strict=True))
        rows.append({"context": size, "tasks": values.shape[1], **row, "coverage90_stderr": errors[1]})
    return rows


def behaviour(general):
    """The table of odd cases: each is a fact, measured."""
    random = np.random.default_rng(0)
    x, at = random.uniform(0, 5, (40, 1)), np.linspace(-1, 6, 50)[:, None]
    y = np.sin(2 * x) + 0.2 * random.normal(size=x.shape)
    here = general.adapt(x, y).predict(at)
    rows = {}
    for name, (a, b, c, d) in {
        "x × 1000": (1e3, 0, 1, 0),
        "x + 2000": (1, 2e3, 1, 0),
        "y × 1000": (1, 0, 1e3, 0),
        "y + 1000": (1, 0, 1, 1e3),
    }.items():
        there = general.adapt(a * x + b, c * y + d).predict(a * at + b)
        change = ((there.mean - d) / c - here.mean).abs().max() / here.std.mean()
        rows[name] = f"largest change of the mean {change.item():.1e} standard deviations"
    for size in (0, 1, 2):
        prediction = general.adapt(x[:size], y[:size]).predict(at)
        z = ((prediction.cdf(torch.tensor(np.sin(2 * at))) - 0.5).abs() <= 0.45).double().mean().item()
        rows[f"{size} points"] = (
            f"mean std {prediction.std.mean().item():.2f}; the true curve is inside 90 % at {z:.0%}"
        )
    twice = general.adapt(np.zeros((2, 1)), [[-1.0], [1.0]]).predict([[0.0]])
    rows["y = −1 and +1 at one x"] = f"{twice.mean.item():.2f} ± {twice.std.item():.2f}"
    for noise in (0.01, 0.1, 0.3, 1.0):
        deviations = []
        for seed in range(5):
            own = np.random.default_rng(seed)
            noisy = np.sin(2 * x) + noise * own.normal(size=x.shape)
            deviations.append(general.adapt(x, noisy).predict(np.linspace(1, 4, 20)[:, None]).std.mean().item())
        rows[f"noise {noise}, 40 points"] = f"predicted std {np.mean(deviations):.3f}"
    far = general.adapt(x, y).predict([[5.0], [10.0], [50.0], [5000.0]]).std.flatten().tolist()
    rows["x = 5, 10, 50, 5000; context in [0, 5]"] = "std " + ", ".join(f"{value:.2f}" for value in far)
    many = random.uniform(0, 5, (1_000, 1))
    start = time.process_time()
    error = general.adapt(many, np.sin(2 * many) + 0.2 * random.normal(size=many.shape)).predict(at[8:43]).mean
    error = (error - torch.tensor(np.sin(2 * at[8:43]))).square().mean().sqrt().item()
    rows["1,000 points, noise 0.2"] = (
        f"RMSE to the true curve {error:.3f} in {1e3 * (time.process_time() - start):.0f} ms"
    )
    return rows


def times(general, rounds=15):
    """Processor milliseconds of fit and predict at 400 queries, one thread."""
    rows = []
    for size in (5, 50, 500):
        x, at = np.random.default_rng(0).uniform(0, 5, (size, 1)), np.linspace(0, 5, 400)[:, None]
        spent = []
        for _ in range(rounds):
            start = time.process_time()
            nvdp.NVDPRegressor.predict(_fitted(general, x), at, return_std=True)
            spent.append(1e3 * (time.process_time() - start))
        rows.append({"context": size, "queries": 400, "ms": float(np.median(spent))})
    return rows


def _fitted(general, x):
    estimator = nvdp.NVDPRegressor()
    estimator.predictor_ = general
    return estimator.fit(x, np.sin(x[:, 0]))


def gap(general):
    """Log-likelihood beside the exact posterior that integrates over kernel and noise, on RBF functions of the prior.

    Tasks: one input, uniform on [−1.73, 1.73], RBF length and noise log-uniform as in the prior. The exact posterior
    weighs a grid of 12 lengths × 8 noise levels × 5 signal sizes by its marginal likelihood of the raw context.
    """
    lengths, noises = torch.logspace(math.log10(0.05), math.log10(6), 12), torch.logspace(math.log10(0.004), 0.18, 8)
    signals = torch.logspace(-0.6, 0.6, 5)
    grid = torch.cartesian_prod(lengths, noises, signals).double()
    rows = []
    for size in GAP_SIZES:
        generator = derived_generator(0, "gap", size)
        ours, exact = [], []
        for _ in range(GAP_TASKS):
            u = torch.rand(3, generator=generator, dtype=torch.float64)
            length = math.exp(math.log(0.05) + float(u[0]) * math.log(120))
            noise = math.exp(math.log(0.004) + float(u[1]) * math.log(375))
            x = (torch.rand(size + 20, 1, generator=generator, dtype=torch.float64) * 2 - 1) * 1.73
            covariance = torch.exp(-0.5 * ((x - x.T) / length).square())
            covariance.diagonal().add_(noise**2 + 1e-9)
            y = torch.linalg.cholesky(covariance) @ torch.randn(size + 20, 1, generator=generator, dtype=torch.float64)
            prediction = general.within([-1.73], [1.73]).adapt(x[:size], y[:size]).predict(x[size:])
            ours.append(prediction.log_prob(y[size:]).mean().item())
            exact.append(_integrated(x, y, size, grid))
        difference = np.array(exact) - np.array(ours)
        error = float(difference.std() / math.sqrt(len(difference)))
        rows.append({"context": size, "ours": float(np.mean(ours)), "exact": float(np.mean(exact)), "stderr": error})
    return rows


def _integrated(x, y, size, grid):
    """Mean log density of single targets under the posterior over the grid; noise is relative to the signal."""
    length, ratio, signal = (part[:, None, None] for part in grid.T)
    kernel = signal**2 * torch.exp(-0.5 * ((x - x.T)[None] / length).square())
    noise = (signal * ratio) ** 2
    inner = kernel[:, :size, :size] + (noise + 1e-9 * signal**2) * torch.eye(size, dtype=torch.float64)
    factor, cross = torch.linalg.cholesky(inner), kernel[:, :size, size:]
    white_y = torch.linalg.solve_triangular(factor, y[:size].expand(len(grid), -1, -1), upper=False)
    white = torch.linalg.solve_triangular(factor, cross, upper=False)
    evidence = -0.5 * white_y.square().sum((1, 2)) - factor.diagonal(dim1=1, dim2=2).log().sum(1)
    mean = (white * white_y).sum(1)
    std = (signal[:, 0] ** 2 - white.square().sum(1) + noise[:, 0]).clamp(min=1e-9).sqrt()
    density = -0.5 * ((y[size:, 0] - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(torch.log_softmax(evidence, 0)[:, None] + density, 0).mean().item()


def in_turn(general, tasks=12, points=15):
    """Joint log-likelihood per point, fed back one by one, in blocks of 5, and as if points were independent."""
    from nvdp.evaluation.in_turn import joint_log_prob

    rows = []
    for size in (3, 10):
        totals: dict[int, list[float]] = {1: [], 5: [], points: []}
        for seed in range(tasks):
            draw = Draw(derived_generator(seed, "in turn", size), 1)
            x, y, _, inputs = draw_tasks(draw, torch.tensor([size]), size, points)
            x, y = x[0, :, : int(inputs)], y[0]
            for block, values in totals.items():
                joint = joint_log_prob(general, x[:size], y[:size], x[size:], y[size:], block=block).item()
                values.append(joint / points + math.log(y.std().item()))
        names = {1: "one_by_one", 5: "blocks_of_5", points: "independent"}
        rows.append({"context": size, **{names[b]: float(np.median(v)) for b, v in totals.items()}})
    return rows


def measure(seconds):
    """Everything, in one file; and the scores beside the weights."""
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    general = nvdp.load("general")
    with torch.no_grad():
        prior = on_the_prior(general)
        chunks = [PriorTasks().validation_chunk(VALIDATION["seed"], chunk) for chunk in range(8)]
        result = {
            "prior": prior,
            "behaviour": behaviour(general),
            "times": times(general),
            "gap": gap(general),
            "in_turn": in_turn(general),
        }
        evaluation = evaluate(general.model, chunks)
    write_text(RESULT, json.dumps(result, indent=1) + "\n")
    config = general.config
    evaluation = {"model": config.model.name, "task": config.task, "steps": config.steps} | evaluation
    evaluation |= {"validation": VALIDATION}
    record = {"what": "general", "steps": config.steps, "seconds": seconds, "evaluation": evaluation}
    if seconds is None:
        record["seconds"] = json.loads((WEIGHTS / "scores.json").read_text())["seconds"]
    scored = summary(json.loads(REAL.read_text())["rows"]) if REAL.exists() else []
    ours = [row for row in scored if row["method"] == "ours" and row["part"] == "final"]
    real = [{"data": "final real sets", **row} for row in ours]
    keys = ("data", "context", "LL", "coverage90", "coverage50")
    by_context = [{k: row[k] for k in keys} for row in ({"data": "its own prior", **row} for row in prior)]
    record["by_context"] = by_context + [{k: row[k] for k in keys} for row in real]
    write_text(WEIGHTS / "scores.json", json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="of training, for the card")
    measure(parser.parse_args().seconds)
