"""Omniglot: 1,623 characters of 50 alphabets, each drawn 20 times, here 28 × 28 grey, ink 255 on 0 (Lake et al. 2015).

Training images are the official background alphabets but the last four, which are the validation images; the official
evaluation alphabets are for final numbers and for transfer. Characters go by their original number, the XXXX of
XXXX_YY.png.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nvdp.data.image_files import Images, Splits, archive_members, checked_images, open_picture, read_npz
from nvdp.data.public.fetch import PublicFile, PublicSet
from nvdp.errors import InputError

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
        PublicFile("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718", ("images_background",)),
        PublicFile("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811", ("images_evaluation",)),
    ),
    folders=("omniglot-py", "omniglot", "omniglot/python"),
    download="https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    home="https://github.com/brendenlake/omniglot",
    terms="MIT; B. Lake, R. Salakhutdinov, J. Tenenbaum",
    from_npz=from_npz,
    from_public_files=from_public_files,
)
