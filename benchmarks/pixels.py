"""Random pixels, pixels of largest variance and pixels that explain their neighbours: PSNR of completed test images.

python benchmarks/pixels.py RUN [RUN ...] --json results/bench/pixels.json

RUN is the folder of a run of images, or the name of a pretrained model. The images are those of figure 4. Each is
completed from the same random pixels and from contexts that grow from ten of them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.experiments.figure4 import SEED, shown_test_images
from nvdp.images.completion import PixelChoice, random_contexts
from nvdp.loading import find_run
from nvdp.models.base import RegressionModel
from nvdp.system import use_threads, write_text
from nvdp.training.run_folder import load_run

SIZES = (10, 30, 100)


def row(name: str, model: RegressionModel, task: str) -> dict[str, Any]:
    """PSNR by way and size for a model: means, and standard errors of differences from random pixels."""
    chosen = shown_test_images(task)
    images = len(chosen)
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
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_threads(1)
    rows = []
    for name in options.runs:
        config, model, _ = load_run(find_run(name))
        rows.append(row(Path(name).name, model, config.task))
        print(json.dumps(rows[-1]))
    if options.json:
        write_text(options.json, json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
