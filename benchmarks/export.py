"""Export of models to ONNX: size, and the largest difference between ONNX Runtime and PyTorch.

    python benchmarks/export.py --json results/bench/export.json

The models that come with the package, and folders of ``nvdp fit`` for a table of drawn growth curves (100 steps of
training: only the difference counts), around a hierarchical GP and of a network alone. Differences are shares of the
spread of y. A model that cannot be exported has its reason.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import torch

import nvdp
from nvdp.errors import InputError
from nvdp.export import export_onnx
from nvdp.loading import Predictor

SIZES = ((1, 1), (2, 30), (7, 11), (20, 2), (50, 100), (100, 300))  # of context and queries
FITS = {"nvdp fit": ("auto", "kg"), "nvdp fit --model nvdp": ("nvdp", "kg")}


def growth_table() -> pd.DataFrame:
    """Weights and heights of 40 animals at 12 days, drawn."""
    random, rows = np.random.default_rng(0), []
    for animal in range(40):
        day = np.sort(random.uniform(0, 100, 12))
        kg = 20 + random.normal(0, 2) + (0.5 + random.normal(0, 0.1)) * day + random.normal(0, 1, 12)
        cm = 50 + 3 * np.sqrt(kg) + random.normal(0, 1, 12)
        rows.append(pd.DataFrame({"animal": animal, "day": day, "kg": kg, "cm": cm}))
    return pd.concat(rows)


def predictors(names: list[str], folder: Path) -> Iterator[tuple[str, Predictor, int | None]]:
    """Name, model and number of inputs of everything that is tried."""
    for name in ("gp-nvdp", "gp", "gp-rates", "general", "mnist", "omniglot"):
        yield name, nvdp.load(name), None
    yield "general, 3 inputs", nvdp.load("general"), 3
    growth_table().to_csv(folder / "growth.csv", index=False)
    for number, (name, (model, outputs)) in enumerate(FITS.items()):
        if not names or name in names:
            out = folder / f"fit-{number}"
            what = ["--task", "animal", "--x", "day", "--y", outputs, "--model", model, "--steps", "100", "--quiet"]
            command = [sys.executable, "-m", "nvdp", "fit", str(folder / "growth.csv"), *what, "--out", str(out)]
            subprocess.run(command, check=True, capture_output=True)
            yield name, nvdp.load(out), None


def largest_differences(predictor: Predictor, file: Path, inputs: int | None) -> dict[str, float]:
    """Of every output over all sizes, at inputs of the range of training."""
    session, generator = onnxruntime.InferenceSession(str(file)), torch.Generator().manual_seed(0)
    largest: dict[str, float] = {}
    for points, queries in SIZES:
        (x, y, at), spread = _question(predictor, points, queries, inputs, generator)
        prediction = predictor.adapt(x, y).predict(at)
        given = {"context_x": x.numpy(), "context_y": y.numpy(), "x": at.numpy()}
        outputs = [output.name for output in session.get_outputs()]
        for name, theirs in zip(outputs, session.run(None, given), strict=True):
            apart = ((getattr(prediction, name) - torch.from_numpy(theirs)) / spread).abs().max().item()
            largest[name] = max(largest.get(name, 0.0), apart)
    return largest


def _question(
    predictor: Predictor, points: int, queries: int, inputs: int | None, generator: torch.Generator
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    if predictor.kind == "classification":
        labels = torch.eye(predictor.model.config.num_classes).repeat(1 + points % 5, 1)
        x = torch.rand(len(labels) + queries, predictor.model.config.x_dim, generator=generator)
        return (x[: len(labels)], labels, x[len(labels) :]), torch.ones(1)
    units, wide = predictor.units, inputs or predictor.widths.x[0]
    low, high = (
        torch.tensor(getattr(units, name) or (end,) * wide) for name, end in (("x_low", -2.0), ("x_high", 2.0))
    )
    part = torch.rand(points + queries, wide, generator=generator)
    x = (low.nan_to_num(neginf=-2.0) + (high.nan_to_num(posinf=2.0) - low.nan_to_num(neginf=-2.0)) * part).float()
    centre, spread = (torch.tensor(getattr(units, name) or (0.5,)) for name in ("y_centre", "y_spread"))
    y = (centre + spread * 0.5 * torch.sin(6 * part.sum(-1, keepdim=True))).float()
    return (x[:points], y[:points], x[points:]), spread


def main() -> None:
    """Export, compare, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default="", help="names of models, separated by |; the rows of others are kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    there = options.json is not None and options.json.exists() and options.models
    rows: dict[str, Any] = json.loads(options.json.read_text()) if there else {}
    names = options.models.split("|") if options.models else []
    with tempfile.TemporaryDirectory() as folder:
        for name, predictor, inputs in predictors(names, Path(folder)):
            if names and name not in names:
                continue
            file, row = Path(folder) / "model.onnx", {"model": predictor.model.config.name}
            try:
                export_onnx(predictor, file, inputs)
                row |= {"bytes": file.stat().st_size, **largest_differences(predictor, file, inputs)}
            except InputError as error:
                row["refused"] = str(error)
            rows[name] = row
            print(json.dumps({name: row}), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
