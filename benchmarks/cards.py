"""Scores of the pretrained models by context size, for their cards: log-likelihood and coverage of intervals.

    python benchmarks/cards.py            # all of MODELS; `python benchmarks/general.py` measures general

Tasks are those of validation, with other context sizes; targets are all other points. The rows go into the scores.json
of each model, which `nvdp info NAME` prints.
"""

import argparse
import json
from importlib.resources import files
from pathlib import Path

import torch

import nvdp
from nvdp.data.registry import IMAGE_TASKS, task_source
from nvdp.data.source import validation_tasks
from nvdp.evaluation.joint import regrouped
from nvdp.system import write_text

MODELS = dict.fromkeys(("gp", "gp-nvdp", "gp-rates"), "GP functions") | {"mnist": "test images of MNIST"}
SIZES, TASKS, SEED = (1, 3, 5, 10, 20, 50, 100), 512, 20220
TARGETS = 100


def by_context(name: str, data: str) -> list[dict[str, float | str]]:
    """A row for each context size."""
    predictor = nvdp.load(name)
    assert predictor.config is not None
    split = {"split": "test"} if predictor.config.task in IMAGE_TASKS else {}
    source, rows = task_source(predictor.config.task, predictor.config.data, **split), []
    for size in SIZES:
        generator, found = torch.Generator().manual_seed(size), {"LL": [], "coverage90": [], "coverage50": []}
        for batch in validation_tasks(source, SEED, TASKS):
            tasks = regrouped(batch, size, TARGETS, generator)
            if tasks is None:
                continue
            target = tasks.target.compact()
            prediction = predictor.model.adapt(tasks.context.compact()).predict(target.x)
            found["LL"].append(prediction.log_prob(target.y).mean(-1))
            for level in (50, 90):
                low, high = (prediction.quantile(0.5 + side * level / 200) for side in (-1, 1))
                found[f"coverage{level}"].append(((low <= target.y) & (target.y <= high)).float().mean((-2, -1)))
        rows.append(
            {"data": data, "context": size} | {key: torch.cat(each).mean().item() for key, each in found.items()}
        )
    return rows


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    torch.set_num_threads(1)
    for name in parser.parse_args().models:
        path = Path(str(files("nvdp") / "weights" / name / "scores.json"))
        record = json.loads(path.read_text()) | {"by_context": by_context(name, MODELS[name])}
        write_text(path, json.dumps(record, indent=1) + "\n")
        print(name, *record["by_context"], sep="\n", flush=True)


if __name__ == "__main__":
    main()
