"""What means over views and further extractors bring: the nearest class mean of features on validation classes.

python benchmarks/views.py omniglot-fewshot miniimagenet --ways 20 5 --json results/bench/views.json

The extractors are those that `nvdp reproduce table3` leaves in the cache. Scored are all features of the first one for
single views, their means over its views, its components, which table 3 uses, and those of the first two,
three … extractors, concatenated. Rows of other tasks that the file holds are kept.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nvdp.data.class_pools import ClassPool
from nvdp.data.episodes import EpisodeConfig, class_source, draw_episodes
from nvdp.data.features import CachedFeatures, Extract, extractor_folder, images_at_once
from nvdp.experiments.table3 import extractors_of
from nvdp.randomness import derived_generator
from nvdp.system import use_threads, write_text
from nvdp.training.checkpoint import load_tensors
from nvdp.training.config import PretrainConfig
from nvdp.training.nearest_mean import nearest_mean_hits
from nvdp.training.pretrained_extractor import EXTRACTOR
from nvdp.training.pretraining_model import build_classifier, evaluated
from nvdp.training.run_folder import CONFIG

EPISODES, SEED, QUERIES = 600, 0, 15
SHOTS = (1, 5)


def all_features(folder: Path, **changes: Any) -> Extract:
    """An extractor before its components, with some settings changed."""
    config = replace(PretrainConfig.load(folder / CONFIG), components=None, **changes)
    model, (tensors, _) = build_classifier(config, 1), load_tensors(folder / EXTRACTOR)
    tensors.pop("projection", None)
    model.extractor.load_state_dict(tensors)
    return evaluated(model.requires_grad_(False))


def feature_pool(images: ClassPool, extract: Extract) -> ClassPool:
    """Images of classes as features."""
    parts = [
        extract(images.vectors(np.array(index), places)) for index, places in images.every_class(images_at_once(images))
    ]
    return replace(images, points=torch.cat(parts).numpy())


def accuracies(pool: ClassPool, way: int) -> dict[str, dict[str, float]]:
    """Accuracy and its standard error by shots, on the same episodes for every pool of the same classes."""
    scores = {}
    for shot in SHOTS:
        shape = EpisodeConfig(way, shot, min(QUERIES, int(pool.counts.min()) - shot))
        batch = draw_episodes(pool, shape, EPISODES, derived_generator(SEED, "views", shot))
        hits = nearest_mean_hits(batch, batch.x)
        scores[str(shot)] = {"accuracy": hits.mean().item(), "stderr": (hits.std() / EPISODES**0.5).item()}
    return scores


def row(task: str, way: int) -> dict[str, Any]:
    """Accuracies of a task by what its features are."""
    names = list(extractors_of(task, "cpu"))
    source, first = class_source(task), extractor_folder(names[0])
    images = source.split("validation")
    pools = {
        "single views": feature_pool(images, all_features(first, views="image")),
        "means over views": feature_pool(images, all_features(first)),
        "their components": CachedFeatures(source, names[0]).split("validation"),
    }
    for count in range(2, len(names) + 1):
        pools[f"{count} extractors"] = CachedFeatures(source, ",".join(names[:count])).split("validation")
    scores = {name: accuracies(pool, way) for name, pool in pools.items()}
    return {"task": task, "way": way, "episodes": EPISODES, "scores": scores}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--ways", type=int, nargs="+", help="classes of an episode, one number for each task")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_threads(1)
    ways = options.ways or [5] * len(options.tasks)
    rows = [row(task, way) for task, way in zip(options.tasks, ways, strict=True)]
    for each in rows:
        print(json.dumps(each))
    if options.json:
        before = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
        kept = {each["task"]: each for each in [*before, *rows]}
        rows = list(kept.values())
        write_text(options.json, json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
