"""Files of images as uint8 arrays: npz, idx, zip, single pictures; an error names the damaged file."""

import gzip
import io
import lzma
import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8
from numpy.lib.npyio import NpzFile

from nvdp.data.source import DataConfig
from nvdp.errors import InputError, unknown_name
from nvdp.system import write_whole

if TYPE_CHECKING:
    from PIL import Image

Images = UInt8[np.ndarray, "_image _row _column _channel"]  # sizes differ between sets
Splits = dict[str, Images]  # by "train", "validation", "test"
SPLITS = ("train", "validation", "test")
DAMAGE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
KINDS = {1: "grey", 3: "colour"}
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


def check_split(name: str) -> None:
    """Refuse an unknown split."""
    if name not in SPLITS:
        raise unknown_name("split", name, SPLITS)


def read_npz(path: Path, *names: str) -> tuple[np.ndarray, ...]:
    """The named arrays of an npz file."""
    try:
        with path.open("rb") as stream:  # NumPy itself would leave a damaged file open
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise ValueError("it holds a single array")
            missing = [name for name in names if name not in file.files]
            if missing:
                found = ", ".join(file.files) or "nothing"
                raise InputError(f"{path} holds {found}; expected an array '{missing[0]}': is it another set?")
            return tuple(file[name] for name in names)
    except InputError:  # a ValueError too, as some kinds of damage are
        raise
    except DAMAGE:  # NumPy's own message advises to load it unsafely
        raise InputError(f"{path} is damaged or no npz file") from None


def read_idx(path: Path) -> UInt8[np.ndarray, "image row column"]:
    """The images of an idx file, plain or gzip: 00 00 08 03, three sizes, then bytes."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except DAMAGE as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if data[:4] != b"\0\0\x08\x03" or len(data) < 16:
        raise InputError(f"{path} begins with bytes {data[:4].hex(' ')}; an idx file of images begins with 00 00 08 03")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", count=3, offset=4))
    if len(data) != 16 + math.prod(shape):
        raise InputError(f"{path} holds {len(data)} bytes; {shape} images need {16 + math.prod(shape)}: cut short?")
    return np.frombuffer(data, np.uint8, offset=16).reshape(shape)


def checked_images(images: np.ndarray, size: int, channels: int, path: Path) -> Images:
    """Images of the expected size as (image, row, column, channel), or a line that quotes the shape found."""
    expected = (size, size) if channels == 1 else (size, size, channels)
    if images.dtype != np.uint8 or images.shape[1:] != expected or not len(images):
        raise InputError(
            f"{path} holds images of shape {images.shape}, {images.dtype}; expected (images, "
            f"{', '.join(map(str, expected))}), uint8: is it another set?"
        )
    return images.reshape(len(images), size, size, channels)


def archive_members(path: Path, pattern: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """The files of a zip or a folder, in order of their names, whose path matches: the match and the bytes."""
    try:
        if path.is_dir():
            files = {str(file.relative_to(path.parent).as_posix()): file for file in path.rglob("*") if file.is_file()}
            for name in sorted(files):
                if match := re.search(pattern, name):
                    yield match, files[name].read_bytes()
            return
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if match := re.search(pattern, name):
                    yield match, archive.read(name)
    except (zipfile.BadZipFile, zlib.error, OSError) as error:
        raise InputError(f"{path} is damaged or no zip file: {error}") from None


def open_picture(file: Path | bytes, name: str) -> "Image.Image":
    """A decoded picture, turned upright; `name` is what an error calls it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd metadata: only pixels are used
        try:
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as picture:
                picture.load()
                return ImageOps.exif_transpose(picture)
        except FileNotFoundError:
            raise InputError(f"{name} does not exist") from None
        except IsADirectoryError:
            raise InputError(f"{name} is a folder; expected a picture") from None
        except UnidentifiedImageError:
            raise InputError(f"{name} is no image, or a damaged one") from None
        except (*DAMAGE, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"{name} is a damaged image: {error}") from None


def picture_channels(picture: "Image.Image") -> int:
    """1 for a grey picture, 3 for colour; transparency does not count."""
    return 1 if picture.mode in ("1", "L", "La", "LA", "F") or picture.mode.startswith("I") else 3


def looks_grey(picture: "Image.Image") -> bool:
    """Whether a picture is grey, also if it is saved in colour: its three channels are the same."""
    if picture_channels(picture) == 1:
        return True
    channels = np.asarray(picture.convert("RGB"))
    return bool((channels == channels[..., :1]).all())


def picture_array(picture: "Image.Image", size: int, channels: int) -> UInt8[np.ndarray, "row column channel"]:
    """The largest central square of a picture at size × size, grey or in colour."""
    from PIL import Image, ImageOps

    if picture.mode.startswith("I"):  # 16 bits a pixel
        picture = Image.fromarray((np.asarray(picture).clip(0, 65_535) >> 8).astype(np.uint8))
    picture = picture.convert("L" if channels == 1 else "RGB")
    fitted = ImageOps.fit(picture, (size, size), Image.Resampling.BOX)  # area means, as CelebA's pictures are made
    return np.asarray(fitted, dtype=np.uint8).reshape(size, size, channels)


def read_pictures(files: Sequence[Path], config: DataConfig) -> Iterator[UInt8[np.ndarray, "row column channel"]]:
    """The central squares of pictures; all grey or all in colour as the first one, unless `channels` converts them."""
    channels = config.channels
    for file in files:
        picture = open_picture(file, str(file))
        found = picture_channels(picture)
        channels = channels or found
        if config.channels is None and found != channels:
            raise InputError(
                f"{file} is {KINDS[found]} but {files[0].name} is {KINDS[channels]}; "
                "convert all with --channels 1 (grey) or 3 (colour)"
            )
        yield picture_array(picture, config.size, channels)


def write_picture(path: Path, pixels: Float[np.ndarray, "row column channel"]) -> None:
    """Write intensities in [0, 1] as a PNG, grey or in colour."""
    from PIL import Image

    if path.suffix.lower() != ".png":
        raise InputError(f"cannot write {path}: its suffix is '{path.suffix}'; expected .png")
    values = np.rint(pixels * 255).astype(np.uint8)
    picture = Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda beside: picture.save(beside, format="PNG"))
