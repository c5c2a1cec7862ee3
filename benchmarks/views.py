"""What means over views, more extractors and distillation bring: the nearest class mean on validation classes.

python benchmarks/views.py EXTRACTOR[,EXTRACTOR] ... --json results/bench/views.json

The committed file, with the extractors that `nvdp reproduce table3` leaves in the cache:

O=table3-omniglot-fewshot-cpu M=table3-miniimagenet-cpu
python benchmarks/views.py $O,$O-1,$O-2 $M,$M-1,$M-2 --ways 20 5 --json results/bench/views.json

An extractor is a folder of `nvdp pretrain`, or the name of one in the cache; a comma joins the first, the second and
their pupil. Scored are the first one's features of single views, each one's features as they are, and features of
several, concatenated.
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
from nvdp.data.features import CachedFeatures, Extract, extractor_folder, extractor_names, images_at_once
from nvdp.randomness import derived_generator
from nvdp.system import use_threads, write_text
from nvdp.training.checkpoint import load_tensors
from nvdp.training.config import PretrainConfig
from nvdp.training.nearest_mean import nearest_mean_hits
from nvdp.training.pretrain import EXTRACTOR, build_classifier, evaluated
from nvdp.training.run_folder import CONFIG

EPISODES, SEED, QUERIES = 600, 0, 15
SHOTS = (1, 5)


def of_single_views(extractor: str) -> Extract:
    """An extractor without its views."""
    folder = extractor_folder(extractor)
    model = build_classifier(replace(PretrainConfig.load(folder / CONFIG), views="image"), 1)
    model.extractor.load_state_dict(load_tensors(folder / EXTRACTOR)[0])
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


def row(extractors: str, way: int) -> dict[str, Any]:
    """Accuracies of a task by what its features are."""
    first, second, pupil = extractor_names(extractors)
    config = PretrainConfig.load(extractor_folder(first) / CONFIG)
    source = class_source(config.task, config.data)
    pools = {"single views of the first": feature_pool(source.split("validation"), of_single_views(first))}
    for title, names in {
        "means over views of the first": (first,),
        "of the second": (second,),
        "of the pupil": (pupil,),
        "of the first and the second": (first, second),
        "of the first and the pupil": (first, pupil),
        "of the second and the pupil": (second, pupil),
        "of all three": (first, second, pupil),
    }.items():
        pools[title] = CachedFeatures(source, ",".join(names)).split("validation")
    scores = {title: accuracies(pool, way) for title, pool in pools.items()}
    return {"task": config.task, "way": way, "episodes": EPISODES, "scores": scores}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extractors", nargs="+")
    parser.add_argument("--ways", type=int, nargs="+", help="classes of an episode, one number for each task")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    use_threads(1)
    ways = options.ways or [5] * len(options.extractors)
    rows = [row(extractors, way) for extractors, way in zip(options.extractors, ways, strict=True)]
    for each in rows:
        print(json.dumps(each))
    if options.json:
        write_text(options.json, json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
