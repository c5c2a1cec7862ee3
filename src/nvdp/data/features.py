"""Features of all images of a set, computed once by a pretrained extractor and kept beside it.

An extractor's folder (``nvdp pretrain``) holds features/SPLIT.npy: a row for each image, sorted by class, rotated
classes last. An episode of features has the same images as an episode of images. Features of several extractors are
concatenated.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.class_pools import ClassPool, ClassSource, cached_array, read_cached
from nvdp.data.image_files import SPLITS, check_split
from nvdp.data.public.fetch import cache_folder
from nvdp.errors import InputError
from nvdp.system import write_text

FOLDER, CLASSES = "features", "classes.json"
MOST_NUMBERS = 1 << 21  # of the images that pass an extractor together
LONG_MINUTES = 1.0  # from which features are announced
ROWS = 1 << 13  # of features that are concatenated at a time
Extract = Callable[[Float[Tensor, "image vector"]], Float[Tensor, "image feature"]]


def extractor_folder(name: str) -> Path:
    """The folder of an extractor: a folder as it is, or the name of one in the user's cache."""
    return Path(name) if Path(name).is_dir() else cache_folder() / "extractors" / name


def extractor_names(features: str) -> list[str]:
    """The folders of extractors, or their names in the cache, which are given with commas between them.

    >>> extractor_names("first, second")
    ['first', 'second']
    """
    names = [features] if Path(features).is_dir() else [name.strip() for name in features.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InputError(f"features of '{features}'; expected folders of different extractors with commas between them")
    return names


def extractor_folders(features: str) -> list[Path]:
    """The folders of the extractors that features come from."""
    return [extractor_folder(name) for name in extractor_names(features)]


def concatenated(parts: Sequence[Float[Tensor, "image _"]]) -> Float[Tensor, "image feature"]:
    """The features of several extractors as one vector, all scaled to the same norm; those of one as they are.

    >>> concatenated([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.1]])]).round(decimals=3)
    tensor([[0.8490, 1.1310, 0.0000, 1.4140]])
    """
    if len(parts) == 1:
        return parts[0]
    norm = math.sqrt(sum(part.shape[-1] for part in parts) / len(parts))
    return torch.cat([norm * F.normalize(part, dim=-1) for part in parts], dim=-1)


@dataclass(frozen=True)
class CachedFeatures:
    """The classes of a source as the features of extractors: folders or names in the cache, with commas between."""

    source: ClassSource
    extractors: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.source.name

    @property
    def size(self) -> int:
        """Rows, and columns, of the images behind the features."""
        return self.source.size

    @property
    def channels(self) -> int:
        """Their channels."""
        return self.source.channels

    @property
    def features(self) -> int:
        """Numbers of a feature vector."""
        folders = extractor_folders(self.extractors)
        return sum(int(described_features(folder, self.name)["features"]) for folder in folders)

    def split(self, name: str) -> ClassPool:
        """The features of a split; those of one extractor are mapped."""
        check_split(name)
        folders = extractor_folders(self.extractors)
        return _pool(folders[0], self.name, name) if len(folders) == 1 else _joint_pool((*folders,), self.name, name)


def has_features(folder: Path) -> bool:
    """Whether a folder holds features at all."""
    return (folder / FOLDER / CLASSES).exists()


def described_features(folder: Path, task: str) -> dict[str, Any]:
    """What an extractor's folder says about its features: their number, their classes and their origin."""
    described = any_features(folder, task)
    if described["task"] != task:
        raise InputError(f"{folder} holds features of {described['task']}; the task is {task}")
    return described


def any_features(folder: Path, task: str) -> dict[str, Any]:
    """The same, whatever task the features were made for."""
    path = folder / FOLDER / CLASSES
    try:
        described = json.loads(path.read_text())
        return {name: described[name] for name in ("task", "features", "origin", "splits")} | described
    except FileNotFoundError:
        command = f"nvdp pretrain {task} --resume --out {folder}"
        raise InputError(f"{folder} holds no features; make them with `{command}`") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); `nvdp pretrain … --resume` writes it again") from None


def features_problem(folder: Path, task: str, origin: str) -> str | None:
    """Why a folder's features cannot be used, or are not those of an extractor of that origin; None if they can."""
    try:
        described = described_features(folder, task)
        if described["origin"] != origin:
            return f"{folder} has features of other weights or views than its extractor's"
        for split in SPLITS:
            _pool(folder, task, split)
    except InputError as error:
        return str(error)
    return None


@cache
def _joint_pool(folders: tuple[Path, ...], task: str, split: str) -> ClassPool:
    pools = [_pool(folder, task, split) for folder in folders]
    for folder, pool in zip(folders, pools, strict=True):
        if not np.array_equal(pool.counts, pools[0].counts) or pool.names != pools[0].names:
            raise InputError(
                f"{folder} has other {split} classes than {folders[0]}; expected features of the same images"
            )
    points = np.empty((len(pools[0].points), sum(pool.features for pool in pools)), np.float32)
    for start in range(0, len(points), ROWS):
        rows = slice(start, start + ROWS)
        points[rows] = concatenated([torch.tensor(pool.points[rows]) for pool in pools]).numpy()
    return replace(pools[0], points=points)


@cache
def _pool(folder: Path, task: str, split: str) -> ClassPool:
    described = described_features(folder, task)
    part = described["splits"][split]
    shape = (sum(part["counts"]), int(described["features"]))
    points = read_cached(folder / FOLDER / f"{split}.npy", described["origin"], shape, "float32")
    if points is None:
        raise InputError(
            f"{folder / FOLDER / split}.npy is missing, damaged or of other weights; "
            "`nvdp pretrain … --resume` writes it again"
        )
    return ClassPool(points, np.array(part["counts"]), tuple(part["names"]))


def write_features(
    source: ClassSource, folder: Path, extract: Extract, features: int, origin: str, said: Callable[[str], None] = print
) -> None:
    """Pass every image of a source through an extractor and save the features, unless they are saved already.

    `origin` identifies the extractor's weights: features of other weights are computed again.
    """
    splits = {}
    for split in SPLITS:
        pool = source.split(split)
        counts = pool.class_counts

        def parts(pool: ClassPool = pool, split: str = split) -> Iterator[np.ndarray]:
            return _timed(_extracted(pool, extract), split, int(pool.class_counts.sum()), said)

        cached_array(folder / FOLDER / f"{split}.npy", origin, (int(counts.sum()), features), "float32", parts)
        splits[split] = {"counts": counts.tolist(), "names": [pool.name(index) for index in range(pool.classes)]}
        said(f"{split}: features of {counts.sum():,} images of {pool.classes:,} classes")
    described = {"task": source.name, "features": features, "origin": origin, "splits": splits}
    write_text(folder / FOLDER / CLASSES, json.dumps(described) + "\n")


def images_at_once(pool: ClassPool) -> int:
    """How many images pass an extractor together: its maps need some hundred times the memory of the images.

    >>> images_at_once(ClassPool(np.zeros((1, 84, 84, 3), np.uint8), np.array([1]), ["a"]))
    99
    """
    return max(1, MOST_NUMBERS // pool.features)


def _timed(parts: Iterator[np.ndarray], split: str, images: int, said: Callable[[str], None]) -> Iterator[np.ndarray]:
    """The same parts; says after the first one how long all will take, if that is long."""
    began = time.monotonic()
    for index, part in enumerate(parts):
        if index == 0 and (minutes := (time.monotonic() - began) / 60 * images / max(1, len(part))) > LONG_MINUTES:
            said(f"{split}: features of {images:,} images will take about {max(2, round(minutes))} minutes")
        yield part


@torch.no_grad()
def _extracted(pool: ClassPool, extract: Extract) -> Iterator[np.ndarray]:
    waiting: list[Tensor] = []
    batch, count = images_at_once(pool), 0
    for index, places in pool.every_class(batch):
        waiting.append(pool.vectors(np.array(index), places))
        count += len(places)
        if count >= batch:
            yield extract(torch.cat(waiting)).float().cpu().numpy()
            waiting, count = [], 0
    if waiting:
        yield extract(torch.cat(waiting)).float().cpu().numpy()
