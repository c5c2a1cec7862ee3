"""Omniglot: 1,623 characters of 50 alphabets, each drawn 20 times, here 28 × 28 grey, ink 255 on 0 (Lake et al. 2015).

Characters have their original number, the XXXX of XXXX_YY.png. The set is split in two ways. For image completion the
official background alphabets train, but for the last four, which validate; the official evaluation alphabets test.

For few-shot classification 1,100 characters train, 100 validate and 423 test (the split of Vinyals et al.). A fixed
permutation of all characters chooses them, so a test character is new but its alphabet need not be. Training characters
rotated by 90, 180 and 270 degrees are further classes; validation and test characters are upright only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from nvdp.data.class_pools import ClassPool
from nvdp.data.image_files import Images, Splits, archive_members, check_split, checked_images, open_picture, read_npz
from nvdp.data.public.fetch import Found, PublicFile, PublicSet, locate, prepared, ways_to_provide
from nvdp.errors import InputError
from nvdp.randomness import derived_generator

SIZE = 28
FIRST_VALIDATION, FIRST_TEST = 837, 965  # character numbers: Ojibwe … Tifinagh validate, Angelic … ULOG test


def from_npz(path: Path) -> Splits:
    """The splits of omniglot.npz."""
    return _splits(*numbered_from_npz(path))


def from_public_files(paths: Sequence[Path]) -> Splits:
    """The splits of images_background and images_evaluation, as zips or unpacked."""
    return _splits(*numbered_from_public_files(paths))


def numbered_from_npz(path: Path) -> tuple[Images, np.ndarray]:
    """All drawings of omniglot.npz, and the number of the character that each shows."""
    images, character = read_npz(path, "images28", "character_id")
    return checked_images(images, SIZE, 1, path), character


def numbered_from_public_files(paths: Sequence[Path]) -> tuple[Images, np.ndarray]:
    """The same of images_background and images_evaluation, as zips or unpacked."""
    from PIL import Image

    images: list[np.ndarray] = []
    characters: list[int] = []
    for path in paths:
        before = len(images)
        for match, data in archive_members(path, r"character\d+/(\d{4})_\d{2}\.png$"):
            picture = open_picture(data, f"{path}: {match.string}").convert("L")
            ink = Image.fromarray(255 - np.asarray(picture))
            images.append(np.asarray(ink.resize((SIZE, SIZE), Image.Resampling.LANCZOS)))
            characters.append(int(match[1]))
        if len(images) == before:
            raise InputError(f"{path} holds no Alphabet/characterNN/XXXX_YY.png: is it another set?")
    return np.stack(images)[..., None], np.array(characters)


def _splits(images: Images, character: np.ndarray) -> Splits:
    part = np.digitize(character, (FIRST_VALIDATION, FIRST_TEST))
    return {"train": images[part == 0], "validation": images[part == 1], "test": images[part == 2]}


OMNIGLOT = PublicSet(
    name="omniglot",
    size=SIZE,
    channels=1,
    counts={"train": 16_720, "validation": 2_560, "test": 13_180},
    npz="omniglot.npz",
    npz_sha256="0e1b226f9c7e9994d93e7e2b4983a8658198630962562c4b71829c568ed62c08",
    files=(
        PublicFile(
            "images_background.zip",
            "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            ("images_background",),
        ),
        PublicFile(
            "images_evaluation.zip",
            "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            ("images_evaluation",),
        ),
    ),
    folders=("omniglot-py", "omniglot", "omniglot/python"),
    download="https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    home="https://github.com/brendenlake/omniglot",
    terms="MIT; B. Lake, R. Salakhutdinov, J. Tenenbaum",
    from_npz=from_npz,
    from_public_files=from_public_files,
)


CHARACTERS, TRAINING_SIDE, VALIDATION = 1_623, 1_200, 100


def characters_of(split: str) -> np.ndarray:
    """The character numbers (1 … 1623) of a split, ascending.

    >>> {split: len(characters_of(split)) for split in ("train", "validation", "test")}
    {'train': 1100, 'validation': 100, 'test': 423}
    """
    check_split(split)
    order = 1 + torch.randperm(CHARACTERS, generator=derived_generator(0, "omniglot few-shot", "split")).numpy()
    border = TRAINING_SIDE - VALIDATION
    parts = {"train": order[:border], "validation": order[border:TRAINING_SIDE], "test": order[TRAINING_SIDE:]}
    return np.sort(parts[split])


@dataclass(frozen=True)
class OmniglotClasses:
    """Characters as classes, wherever this machine has Omniglot."""

    name: str = "omniglot-fewshot"
    size: int = SIZE
    channels: int = 1

    @property
    def features(self) -> int:
        """Pixels of an image."""
        return self.size**2

    def split(self, name: str) -> ClassPool:
        """The characters of a split; of `train` their rotated versions too."""
        check_split(name)
        found = locate(OMNIGLOT)
        if found is None:
            raise InputError(f"omniglot is not on this machine: {ways_to_provide(OMNIGLOT)}")
        return _pool(found, name)


@cache
def _pool(found: Found, split: str) -> ClassPool:
    images, numbers = _numbered(found)
    order = np.argsort(numbers, kind="stable")
    order = order[np.isin(numbers[order], characters_of(split))]
    present, counts = np.unique(numbers[order], return_counts=True)
    names = [f"character {number}" for number in present]
    return ClassPool(images[order], counts, names, turned=split == "train")


@cache
def _numbered(found: Found) -> tuple[np.ndarray, np.ndarray]:
    if found.is_npz:
        return numbered_from_npz(found.paths[0])

    def read() -> dict[str, np.ndarray]:
        images, numbers = numbered_from_public_files(found.paths)
        return {"images": images, "numbers": numbers}

    kept = prepared("omniglot-numbered", found, read)
    return kept["images"], kept["numbers"]
