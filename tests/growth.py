"""A table of growing trees, and `nvdp fit` on it; shared by the tests of `nvdp fit` and `nvdp predict`."""

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from nvdp.cli import app, data, evaluate, fit, predict, runs, score, store  # noqa: F401  (they add their commands)

COLUMNS = ["--task", "tree", "--x", "day", "--y", "size"]
FEW = ["--steps", "6", "--quiet"]


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def growth(tasks=12, rows=6, seed=0):
    random = np.random.default_rng(seed)
    day = random.uniform(0, 10, (tasks, rows))
    size = random.normal(5, 1, (tasks, 1)) * day + random.normal(0, 0.1, day.shape)
    return pd.DataFrame({"tree": np.repeat(np.arange(tasks), rows), "day": day.ravel(), "size": size.ravel()})


def fitted(frame, folder, *more):
    frame.to_csv(folder / "table.csv", index=False)
    return run("fit", folder / "table.csv", *COLUMNS, "--out", folder / "model", *FEW, *more)
