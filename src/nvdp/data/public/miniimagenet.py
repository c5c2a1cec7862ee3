"""miniImageNet: 100 classes of 600 pictures, 84 × 84 in colour, split 64/16/20 (Ravi & Larochelle 2017).

For non-commercial research and not to be passed on, so there is no address to download it from. It is read from two npz
files of JPEG bytes, or from class folders in miniimagenet/train, val and test; decoded once into the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nvdp.data.class_pools import PART, ClassPool, cached_array, class_files, file_digest, first_file, pool_of_files
from nvdp.data.image_files import SPLITS, Splits, check_split, open_picture, picture_array, read_npz
from nvdp.data.public.fetch import PublicFile, PublicSet, cache_folder, locate, ways_to_provide
from nvdp.data.source import DataConfig
from nvdp.errors import InputError

SIZE, CHANNELS = 84, 3
THEIR_SPLIT = {"train": "train", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class MiniImageNetClasses:
    """The classes of miniImageNet, wherever this machine has it."""

    name: str = "miniimagenet"
    size: int = SIZE
    channels: int = CHANNELS

    @property
    def features(self) -> int:
        """Numbers of an image."""
        return self.channels * self.size**2

    def split(self, name: str) -> ClassPool:
        """The classes of a split, mapped from the cache of decoded images."""
        check_split(name)
        found = locate(MINIIMAGENET)
        if found is None:
            raise InputError(f"miniimagenet is not on this machine: {ways_to_provide(MINIIMAGENET)}")
        return _pool(found.paths, name)


@cache
def _pool(paths: Sequence[Path], split: str) -> ClassPool:
    path = paths[0] if split == "train" else paths[1]
    if path.is_dir():
        folder = path if split == "train" else path / THEIR_SPLIT[split]
        classes = class_files(folder)
        return pool_of_files(classes, DataConfig(size=SIZE, channels=CHANNELS), first_file(classes), str(folder))
    return _pool_of_npz(path, split)


def _pool_of_npz(path: Path, split: str) -> ClassPool:
    labels, offsets, class_names, class_split = read_npz(path, "labels", "offsets", "class_names", "class_split")
    classes = np.flatnonzero(class_split == THEIR_SPLIT[split])
    chosen = np.flatnonzero(np.isin(labels, classes))
    if not len(chosen) or (np.diff(labels[chosen].astype(int)) < 0).any() or len(offsets) != len(labels) + 1:
        raise InputError(f"{path} holds no {split} images of miniImageNet by class: is it another set?")

    def parts() -> Iterator[np.ndarray]:
        (jpeg,) = read_npz(path, "jpeg")
        for start in range(0, len(chosen), PART):
            pictures = []
            for image in chosen[start : start + PART]:
                name = f"{path}: image {image} ({class_names[labels[image]]})"
                picture = open_picture(jpeg[offsets[image] : offsets[image + 1]].tobytes(), name)
                pictures.append(picture_array(picture, SIZE, CHANNELS))
            yield np.stack(pictures)

    place = cache_folder() / "decoded" / f"miniimagenet-{split}.npy"
    images = cached_array(place, file_digest(path), (len(chosen), SIZE, SIZE, CHANNELS), "uint8", parts)
    counts = np.bincount(labels[chosen], minlength=len(class_split))[classes]
    return ClassPool(images, counts, tuple(class_names[classes].tolist()))


def _splits(paths: Sequence[Path]) -> Splits:
    return {split: _pool(tuple(paths), split).points for split in SPLITS}


def _no_single_file(path: Path) -> Splits:
    raise InputError(f"{path}: miniImageNet is two files, or folders")


MINIIMAGENET = PublicSet(
    name="miniimagenet",
    size=SIZE,
    channels=CHANNELS,
    counts={"train": 38_400, "validation": 9_600, "test": 12_000},
    npz=None,
    npz_sha256=None,
    files=(
        PublicFile(
            "miniimagenet_train.npz",
            "528e01020939108e1f16afcca053e749b56a738e0e3657ffd86e2e036e548aaf",
            ("miniimagenet/train",),
        ),
        PublicFile(
            "miniimagenet_val_test.npz",
            "64b5ef1eccd554faa416bccae415adc51667527d5aa7f3519142086927ba107a",
            ("miniimagenet",),
        ),
    ),
    folders=(),
    download=None,  # ImageNet's terms must be accepted by a person
    home="https://image-net.org/download.php",
    terms="non-commercial research and education only, not to be passed on; ImageNet (ILSVRC 2012)",
    from_npz=_no_single_file,
    from_public_files=_splits,
    layout="miniimagenet/train, val and test of class folders",
)
