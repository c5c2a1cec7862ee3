"""Write one small file of every kind, as this version of nvdp writes them, and what they predict.

Run once for each released format: ``python tests/formats/make.py tests/formats/0.2``. Later versions must load the
files of earlier ones and predict the same: see `test_formats.py`. Never write over a folder that was released.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import nvdp
from nvdp.data.tables import Columns
from nvdp.loading import Predictor, save_fit
from nvdp.models.registry import build_model
from nvdp.store import TaskStore
from nvdp.training.config import RunConfig
from nvdp.training.presets import class_config
from nvdp.training.run_folder import save_model, start_run
from nvdp.units import Units

SMALL = {
    "decoder.width": 4,
    "decoder.layers": 1,
    "encoder.size": 4,
    "encoder.layers": 1,
    "rates.width": 4,
    "rates.layers": 1,
}
DAYS, SIZES, QUERY = [10.0, 200.0, 350.0], [20.0, 60.0, 75.0], [100.0, 300.0]
X, Y, AT = [-1.0, 0.0, 1.0], [0.3, 0.9, 0.1], [0.5, -1.5]
FEATURES, LABELS, UNKNOWN = [[0.0, 1.0], [1.0, 0.0], [0.2, 0.8]], [0, 1, 0], [[0.9, 0.1], [0.1, 0.7]]


def predictions(folder: Path, store: Path) -> dict[str, list[float]]:
    """Mean and standard deviation, or the probabilities, that each of the files gives."""
    run, fit, weights = (nvdp.load(folder / name) for name in ("run", "fit", "weights"))
    state = run.posterior_from_bytes((folder / "state.bin").read_bytes())
    with TaskStore(store, fit) as tasks:
        stored = tasks.predict("oak", QUERY)
    answers = {
        "run": run.adapt(X, Y).predict(AT),
        "fit": fit.adapt(DAYS, SIZES).predict(QUERY),
        "store": stored,
        "state": state.predict(AT),
        "weights": weights.adapt(FEATURES, LABELS).predict(UNKNOWN),
    }
    return {name: torch.cat([each.mean.flatten(), each.std.flatten()]).tolist() for name, each in answers.items()}


def model_of(config: RunConfig) -> torch.nn.Module:
    """Weights from a fixed seed, far from zero so that a prediction depends on all of them."""
    model = build_model(config.model, 5).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def main() -> None:
    """Write the folder that is named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    run = RunConfig(model=nvdp.ModelConfig("nvdp").updated(SMALL))
    start_run(folder / "run", run, resume=False)
    save_model(folder / "run", model_of(run), 7)
    (folder / "state.bin").write_bytes(nvdp.load(folder / "run").adapt(X, Y).to_bytes())

    fit = RunConfig(task="csv", model=run.model)
    units = Units.of([np.linspace(0, 720, 9)[:, None]], [np.linspace(10, 110, 9)[:, None]])
    predictor = Predictor(model_of(fit), units, fit, Columns("tree", ("day",), ("size",)))
    save_fit(folder / "fit", predictor, 7, {"steps": 7, "scores": {}})
    with TaskStore(folder / "tasks.db", nvdp.load(folder / "fit")) as tasks:
        tasks.observe("oak", DAYS, SIZES)

    weights = class_config("nvdp", len(FEATURES[0]), 2, 7, 0)
    weights = replace(weights, model=weights.model.updated({"meta.width": 4, "decoder.width": 4}))
    start_run(folder / "weights", weights, resume=False)
    save_model(folder / "weights", model_of(weights), 7)
    scores = {"steps": 7, "evaluation": {"model": "nvdp", "task": "csv", "accuracy": 0.5}}
    (folder / "weights" / "scores.json").write_text(json.dumps(scores) + "\n")
    (folder / "predictions.json").write_text(json.dumps(predictions(folder, folder / "tasks.db"), indent=1) + "\n")


if __name__ == "__main__":
    main()
