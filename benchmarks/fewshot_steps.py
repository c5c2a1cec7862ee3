"""How many steps serve the few-shot classifiers of table 3 best on features: accuracy on validation classes.

python benchmarks/fewshot_steps.py miniimagenet-5w1s --json results/bench/fewshot-steps.json

A column is named as its runs are. Its extractors are those that `nvdp reproduce table3` leaves in the cache. Every row
of the column is trained anew for each number of steps and scored on the same episodes. Other rows that the file holds
are kept.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from nvdp.errors import unknown_name
from nvdp.evaluation.run import evaluate_run
from nvdp.experiments.plan import PlannedRun
from nvdp.experiments.table3 import GRADIENT_STEPS, PAPER_RATES, plan, rows_of
from nvdp.system import use_threads, write_text
from nvdp.training.distributed import Machine
from nvdp.training.presets import shortened
from nvdp.training.run import train

EPISODES = 400
FEW_EPISODES, MANY_CLASSES = 100, 10  # of NVDP in episodes of more classes, whose evaluation takes minutes
# A step of NVDP evaluates every query once for each class, and one of a gradient method adapts: they take fewer.
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "omniglot-fewshot": {"nvdp": (2, 8, 30, 100, 300), PAPER_RATES: (100, 500)}
    | dict.fromkeys(("matching", "protonet"), (2, 8, 30, 100, 300, 1_500))
    | dict.fromkeys(GRADIENT_STEPS, (300, 1_000)),
    "miniimagenet": {"nvdp": (2, 8, 30, 100), PAPER_RATES: (100, 500), "maml": (100, 500, 1_500)}
    | dict.fromkeys(("matching", "protonet"), (2, 8, 30, 100, 300, 1_500))
    | dict.fromkeys(("meta-sgd", "meta-dropout"), (100, 500)),
}
OTHER_STEPS = {"omniglot-fewshot": (300, 1_500), "miniimagenet": (8, 30, 100, 300, 1_500)}


def scored(run: PlannedRun, steps: int) -> dict[str, Any]:
    """Accuracy of a planned run after another number of steps, and its seconds."""
    config = shortened(run.config, steps)
    few = config.model.name == "nvdp" and config.episodes is not None and config.episodes.way > MANY_CLASSES
    episodes = FEW_EPISODES if few else EPISODES
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(config, Path(folder) / "run", machine=Machine("cpu", threads=1))
        evaluation = evaluate_run(Path(folder) / "run", episodes, split="validation", device="cpu")
    without = evaluation.get("without_sampling", evaluation)
    return {
        "episodes": episodes,
        "steps": steps,
        "seconds": outcome.seconds,
        "accuracy": without["accuracy"],
        "interval95": without["interval95"],
        "ece": without["ece"],
        "accuracy_of_samples": evaluation["accuracy"],
    }


def main() -> None:
    """Train, score, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("column", help="e.g. omniglot-20w1s or miniimagenet-5w1s")
    parser.add_argument("--only", nargs="+", default=rows_of("features"), help="rows of the table, e.g. nvdp")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_threads(1)
    runs = {run.name: run for run in plan("cpu")}
    kept = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    for row in options.only:
        if (name := f"{row}-{options.column}-features") not in runs:
            raise unknown_name("row of table 3", name, runs)
        run, task = runs[name], runs[name].config.task
        kept = [each for each in kept if (each["column"], each["row"]) != (options.column, row)]
        for steps in STEPS[task].get(row, OTHER_STEPS[task]):
            made = {"column": options.column, "row": row, "features": run.config.episodes.features}
            kept.append(made | scored(run, steps))
            print(json.dumps(kept[-1]), flush=True)
            if options.json:
                write_text(options.json, json.dumps({"rows": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
