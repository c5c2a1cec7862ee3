"""CelebA: faces, here 32 × 32 in colour (Liu et al. 2015); for non-commercial research, not to be passed on.

The central 148 × 148 square of each aligned 178 × 218 picture, resized by area means. Splits are the official
partition, which goes by file number; no person is in two of them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nvdp.data.image_files import Splits, archive_members, checked_images, open_picture, read_npz
from nvdp.data.public.fetch import PublicFile, PublicSet
from nvdp.errors import InputError

SIZE, ALIGNED, CROP = 32, (178, 218), (15, 35, 163, 183)
FIRST_VALIDATION, FIRST_TEST = 162_771, 182_638  # file numbers


def from_npz(path: Path) -> Splits:
    """The splits of celeba32.npz."""
    images, number = read_npz(path, "images", "file_number")
    return _splits(checked_images(images, SIZE, 3, path), number, path)


def from_public_files(paths: Sequence[Path]) -> Splits:
    """The splits of img_align_celeba, as a zip or unpacked."""
    from PIL import Image

    (path,) = paths
    images, numbers = [], []
    for match, data in archive_members(path, r"(?:^|/)(\d{6})\.(?:jpg|png)$"):
        picture = open_picture(data, f"{path}: {match.string}")
        if picture.size != ALIGNED:
            raise InputError(
                f"{path}: {match.string} is {picture.width}×{picture.height}; CelebA's aligned pictures are 178×218"
            )
        face = picture.convert("RGB").crop(CROP).resize((SIZE, SIZE), Image.Resampling.BOX)
        images.append(np.asarray(face))
        numbers.append(int(match[1]))
    if not images:
        raise InputError(f"{path} holds no NNNNNN.jpg: is it another set?")
    return _splits(np.stack(images), np.array(numbers), path)


def _splits(images: np.ndarray, number: np.ndarray, path: Path) -> Splits:
    part = np.digitize(number, (FIRST_VALIDATION, FIRST_TEST))
    splits = {"train": images[part == 0], "validation": images[part == 1], "test": images[part == 2]}
    for name, found in splits.items():
        if not len(found):
            raise InputError(f"{path} holds {len(images)} CelebA pictures but none of the {name} part")
    return splits


CELEBA = PublicSet(
    name="celeba",
    size=SIZE,
    channels=3,
    counts={"train": 162_770, "validation": 19_867, "test": 19_962},
    npz="celeba32.npz",
    npz_sha256="43bdbb9c35154b98e6d123763e5f0029013b02226a88258f3191e82546723cea",
    files=(
        PublicFile(
            "img_align_celeba.zip",
            "46fb89443c578308acf364d7d379fe1b9efb793042c0af734b6112e4fd3a8c74",
            ("img_align_celeba",),
        ),
    ),
    folders=("celeba", "CelebA", "CelebA/Img"),
    download=None,  # its terms must be accepted by a person
    home="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    terms="non-commercial research only, not to be passed on; Z. Liu, P. Luo, X. Wang, X. Tang",
    from_npz=from_npz,
    from_public_files=from_public_files,
)
