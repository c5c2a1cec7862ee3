"""Suite ``tables``: `nvdp fit` on tables of many short series, beside rivals: scores, and the time of a prediction.

The tables are simulated, so that they need no download and the same command gives the same tables.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from nvdp.bench.timing import interleaved
from nvdp.data.tables import Columns
from nvdp.loading import load
from nvdp.tables.fit import GP_ALONE, MEAN_CURVE, HowToFit, fit_table
from nvdp.tables.rivals import context_gp
from nvdp.tasks import Task

CONTEXT, TARGETS = 4, 20
RIVALS = {"gp": GP_ALONE, "mean_curve": MEAN_CURVE}
NOTES = {
    "ours": "adapt a fitted model to 4 points of a task and predict at 20",
    "gp": "scikit-learn's GP fitted to the same points, without the other tasks",
    "mean_curve": "mean and spread of the training points near x, whatever their task",
    "scores": "tasks that no method has learned from, a third of each task's points as context",
}


@dataclass(frozen=True)
class SimulatedTable:
    """A family of curves: `kind` is lines, growth (logistic curves) or seasons (sines)."""

    kind: str
    tasks: int
    points: int = 10

    def __str__(self) -> str:
        return f"{self.kind}: {self.tasks} tasks of {self.points} points"

    def frame(self) -> pd.DataFrame:
        """Its rows: task, x and y.

        >>> SimulatedTable("lines", tasks=3, points=5).frame().shape
        (15, 3)
        """
        random = np.random.default_rng(0)
        task = np.repeat(np.arange(self.tasks), self.points)
        x = random.uniform(0, 10, len(task))
        a, b = random.normal(size=(2, self.tasks))[:, task]
        y = {
            "lines": 20 + 3 * a + (2 + 0.5 * b) * x,
            "growth": (10 + 2 * a) / (1 + np.exp(-(x - 5 - b))),
            "seasons": (2 + 0.5 * a) * np.sin(x + b),
        }[self.kind]
        return pd.DataFrame({"task": task, "x": x, "y": y + random.normal(0, 0.2, len(task))})


TABLES = (SimulatedTable("lines", 100), SimulatedTable("growth", 100), SimulatedTable("seasons", 300))
QUICK_TABLES = (SimulatedTable("growth", 40),)


def table_rows(seconds: float, rounds: int, tables: Sequence[SimulatedTable] = TABLES) -> list[dict[str, Any]]:
    """One row for each table, after a fit of that many seconds."""
    return [_row(table, seconds, rounds) for table in tables]


def _row(table: SimulatedTable, seconds: float, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "table.csv", Path(folder) / "model"
        table.frame().to_csv(file, index=False)
        report = fit_table(file, Columns("task", ("x",), ("y",)), out, HowToFit(minutes=seconds / 60)).report
        fitted = load(out)
    task, rival = _new_task(), context_gp(fitted.units)

    def ours(_: int) -> None:
        fitted.adapt(task.x_context, task.y_context).predict(task.x_target)

    def gp(_: int) -> None:
        rival(task)

    timings = interleaved({"ours": ours, "gp": gp}, rounds)
    names = {"ours": next(name for name in report["scores"] if name not in RIVALS.values())} | RIVALS
    return {
        "model": names["ours"],
        "shape": str(table),
        "autograd_ms": None,
        "floor_ms": None,
        **timings.columns(),
        "gp_over_ours": timings.ratio("gp", "ours"),
        "fit_seconds": report["seconds"],
        "steps": report["steps"],
        **_scores(names, report["scores"]),
    }


def _scores(names: Mapping[str, str], scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    metrics = ("LL", "RMSE", "coverage90")
    return {f"{name}_{metric}": scores[title][metric] for name, title in names.items() for metric in metrics}


def _new_task() -> Task:
    x = torch.linspace(0, 10, CONTEXT + TARGETS)[:, None]
    chosen = torch.arange(CONTEXT) * (CONTEXT + TARGETS) // CONTEXT
    rest = torch.ones(len(x), dtype=torch.bool).index_fill(0, chosen, False)
    y = torch.sin(x)
    return Task(x[chosen], y[chosen], x[rest], y[rest])
