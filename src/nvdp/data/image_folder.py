"""Any folder of pictures as images of one size: a tenth of the files validates, a tenth tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from nvdp.data.config import DataConfig
from nvdp.data.image_files import KINDS, Images, Splits, open_picture, picture_array, picture_channels
from nvdp.data.image_sets import check_split
from nvdp.errors import InputError
from nvdp.randomness import derived_generator

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
FEWEST, SHARE = 3, 10  # pictures a folder must hold; one in so many validates, and as many test


@dataclass(frozen=True)
class FolderImages:
    """The pictures of a folder and those inside it, each cut to its central square.

    They are all grey or all in colour, as the first one is, unless `channels` takes them to one of the two.
    """

    config: DataConfig
    name: str = "images"

    @property
    def size(self) -> int:
        """Rows, and columns."""
        return self.config.size

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        if self.config.channels is not None:
            return self.config.channels
        first = picture_files(self.config)[0]
        return picture_channels(open_picture(first, str(first)))

    def split(self, name: str) -> Images:
        """The images of a split, the same for the same files."""
        check_split(name)
        return _read(self.config)[name]


def picture_files(config: DataConfig) -> list[Path]:
    """The picture files of a folder in order of their names."""
    if config.folder is None:
        raise InputError("the task images needs a folder of pictures: --folder DIR")
    folder = Path(config.folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; the task images takes a folder of pictures")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if len(files) < FEWEST:
        raise InputError(
            f"{folder} holds {len(files)} pictures; expected at least {FEWEST} files ending in {', '.join(SUFFIXES)}"
        )
    return files


def read_pictures(files: Sequence[Path], config: DataConfig) -> Iterator[UInt8[np.ndarray, "row column channel"]]:
    """The central squares of pictures that are all grey or all in colour, as the first one or as `channels` says."""
    channels = config.channels
    for file in files:
        picture = open_picture(file, str(file))
        found = picture_channels(picture)
        channels = channels or found
        if config.channels is None and found != channels:
            raise InputError(
                f"{file} is {KINDS[found]} but {files[0].name} is {KINDS[channels]}; "
                "take all to one kind with --channels 1 (grey) or 3 (colour)"
            )
        yield picture_array(picture, config.size, channels)


@cache
def _read(config: DataConfig) -> Splits:
    images = np.stack(list(read_pictures(picture_files(config), config)))
    order = torch.randperm(len(images), generator=derived_generator(0, "folder of pictures", "split")).numpy()
    few = max(1, len(images) // SHARE)
    parts = {"validation": order[:few], "test": order[few : 2 * few], "train": order[2 * few :]}
    return {name: images[np.sort(part)] for name, part in parts.items()}
