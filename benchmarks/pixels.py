"""Random pixels, pixels of largest variance and pixels that explain their neighbours: PSNR of completed test images.

python benchmarks/pixels.py RUN [RUN ...] --json results/bench/pixels.json

RUN is the folder of a run of images, or the name of a pretrained model. Every image is completed from the same random
pixels and from contexts that grow from ten of them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nvdp.data.images import PublicImages
from nvdp.images.completion import PixelChoice, random_contexts
from nvdp.loading import find_run
from nvdp.models.base import RegressionModel
from nvdp.randomness import derived_generator
from nvdp.system import use_threads, write_text
from nvdp.training.run_folder import load_run

SIZES, SEED = (10, 30, 100), 4


def row(name: str, model: RegressionModel, task: str, images: int) -> dict[str, Any]:
    """PSNR by way and size for a model: means, and standard errors of differences from random pixels."""
    pictures = PublicImages(task).split("test")
    order = torch.randperm(len(pictures), generator=derived_generator(SEED, "figure4", task))
    chosen = pictures[order[:images].numpy()]
    choice, alone = PixelChoice(model, chosen, seed=SEED), PixelChoice(model, chosen, seed=SEED, length_scale=0.0)
    ways = {
        "random": random_contexts(chosen, SIZES, SEED),
        "largest variance": alone.uncertain_contexts(SIZES),
        "explained variance": choice.uncertain_contexts(SIZES),
    }
    scores = {way: [choice.psnr(shown) for shown in contexts] for way, contexts in ways.items()}
    return {
        "run": name,
        "model": model.config.name,
        "task": task,
        "images": images,
        "sizes": SIZES,
        "PSNR": {way: [float(each.mean()) for each in by_size] for way, by_size in scores.items()},
        "stderr": {
            way: [
                float((each - plain).std(ddof=1) / np.sqrt(images))
                for each, plain in zip(by_size, scores["random"], strict=True)
            ]
            for way, by_size in scores.items()
        },
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_threads(1)
    rows = []
    for name in options.runs:
        config, model, _ = load_run(find_run(name))
        rows.append(row(Path(name).name, model, config.task, options.images))
        print(json.dumps(rows[-1]))
    if options.json:
        write_text(options.json, json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
