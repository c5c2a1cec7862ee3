"""Omniglot for few-shot classification: 1,100 characters train, 100 validate, 423 test (the split of Vinyals et al.).

A fixed permutation of all 1,623 character numbers chooses them, as the few-shot papers do, so a test character is new
but its alphabet need not be. The 1,200 of the training side hold the 100 that validate. Training characters turned by
90, 180 and 270 degrees are classes of their own; validation and test characters are shown upright only.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from nvdp.data.class_pools import ClassPool
from nvdp.data.images import check_split, prepared
from nvdp.data.public.fetch import Found, locate, ways_to_provide
from nvdp.data.public.omniglot import OMNIGLOT, SIZE, numbered_from_npz, numbered_from_public_files
from nvdp.errors import InputError
from nvdp.randomness import derived_generator

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
        """The characters of a split; with `train`, their turned versions too."""
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
