"""Export of models to ONNX: size, and the largest difference between ONNX Runtime and PyTorch.

python benchmarks/export.py --json results/bench/export.json
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import nvdp
from nvdp.export import export_onnx

MODELS = ("gp-nvdp", "gp")
SIZES = ((1, 1), (2, 30), (7, 11), (20, 2), (50, 100), (100, 300))  # of context and queries


def largest_differences(predictor: Any, file: Path) -> dict[str, float]:
    """Of mean and standard deviation over all sizes, at inputs of the range of training."""
    session = onnxruntime.InferenceSession(str(file))
    config, generator = predictor.model.config, torch.Generator().manual_seed(0)
    low, high = predictor.units.x_low[0], predictor.units.x_high[0]
    largest = {"mean": 0.0, "std": 0.0}
    for points, queries in SIZES:
        x = low + (high - low) * torch.rand(points + queries, config.x_dim, generator=generator)
        y = 0.5 + 0.5 * torch.sin(3 * x.sum(-1, keepdim=True)).expand(-1, config.y_dim)
        context = x[:points], y[:points]
        given = {"context_x": context[0].numpy(), "context_y": context[1].numpy(), "x": x[points:].numpy()}
        ours = predictor.adapt(*context).predict(x[points:])
        for name, theirs in zip(largest, session.run(None, given), strict=True):
            apart = (getattr(ours, name) - torch.from_numpy(theirs)).abs().max().item()
            largest[name] = max(largest[name], apart)
    return largest


def main() -> None:
    """Export, compare, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            file, predictor = Path(folder) / f"{name}.onnx", nvdp.load(name)
            export_onnx(predictor, file)
            rows[name] = {
                "model": predictor.model.config.name,
                "bytes": file.stat().st_size,
                **largest_differences(predictor, file),
            }
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
