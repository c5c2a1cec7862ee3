"""Public sets of images: their files, where to find or download them, and a cache of prepared images."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nvdp.data.image_files import Splits
from nvdp.errors import InputError
from nvdp.system import write_whole


@dataclass(frozen=True)
class PublicFile:
    """One published file: its name, its checksum, and its names when unpacked."""

    name: str
    sha256: str
    unpacked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A set's files on this machine: one npz, or the public files."""

    paths: tuple[Path, ...]
    is_npz: bool


@dataclass(frozen=True)
class PublicSet:
    """A set of images with official splits."""

    name: str
    size: int
    channels: int
    counts: dict[str, int]  # images of each split when the set is complete
    npz: str | None  # the whole set as one file, where there is such a file
    npz_sha256: str | None
    files: tuple[PublicFile, ...]
    folders: tuple[str, ...]  # below the data folder, where the public files usually are
    download: str | None  # the address of the files, if a program may download them
    home: str
    terms: str
    from_npz: Callable[[Path], Splits]
    from_public_files: Callable[[Sequence[Path]], Splits]
    layout: str | None = None  # of unpacked files, where their names do not say it

    def find(self, folder: Path) -> Found | None:
        """The set's files in a folder of data, the npz first."""
        if self.npz is not None and (folder / self.npz).is_file():
            return Found((folder / self.npz,), True)
        for place in (folder, *(folder / inner for inner in self.folders)):
            paths = [
                next((place / name for name in (file.name, *file.unpacked) if (place / name).exists()), None)
                for file in self.files
            ]
            if all(paths):
                return Found(tuple(path for path in paths if path is not None), False)
        return None

    def read(self, found: Found) -> Splits:
        """The images of every split."""
        return self.from_npz(found.paths[0]) if found.is_npz else self.from_public_files(found.paths)


VARIABLE, CACHE_VARIABLE = "NVDP_DATA", "NVDP_CACHE"


def use_data_folder(folder: Path | None) -> None:
    """Take data from this folder first, in this process and those it starts; what ``--data-dir`` does."""
    if folder is not None:
        os.environ[VARIABLE] = str(folder)


def data_folder() -> Path | None:
    """The folder that ``NVDP_DATA`` or ``--data-dir`` names."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    if not Path(value).is_dir():
        raise InputError(f"{VARIABLE} or --data-dir is {value}, which is not a folder")
    return Path(value)


def cache_folder() -> Path:
    """The user's cache, where downloads and decoded images go; ``NVDP_CACHE`` names another folder."""
    import pooch  # type: ignore[import-untyped]

    return Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("nvdp"))


def locate(public_set: PublicSet) -> Found | None:
    """The files of a set on this machine."""
    named = data_folder()
    found = public_set.find(named) if named else None
    return found or public_set.find(cache_folder())


def ways_to_provide(public_set: PublicSet) -> str:
    """One line: how to provide a set that is not on this machine."""
    files = " and ".join(file.name for file in public_set.files)
    third = (
        f"download it with `nvdp data fetch {public_set.name}`"
        if public_set.download
        else f"accept its terms at {public_set.home} and put {files} into {cache_folder()}"
    )
    if public_set.npz is None:
        return f"name a folder with {files}, or with {public_set.layout}, by {VARIABLE} or --data-dir, or {third}"
    return f"set {VARIABLE} to a folder with {public_set.npz}, name a folder with {files} by --data-dir, or {third}"


def download(public_set: PublicSet) -> list[Path]:
    """Fetch the public files of a set into the cache; a file whose checksum is wrong is not kept."""
    if public_set.download is None:
        raise InputError(f"{public_set.name} cannot be downloaded by a program: {ways_to_provide(public_set)}")
    import pooch

    pooch.get_logger().setLevel("WARNING")
    paths = []
    for file in public_set.files:
        url = public_set.download + file.name
        try:
            path = pooch.retrieve(url, f"sha256:{file.sha256}", file.name, cache_folder() / public_set.name)
        except ValueError as error:  # pooch's word for a wrong checksum
            raise InputError(f"{url} is not the file it should be: {' '.join(str(error).split())}") from None
        except OSError as error:  # errors of requests too, whose text is a paragraph
            raise InputError(f"cannot download {url} ({type(error).__name__}): is this machine online?") from None
        paths.append(Path(path))
    return paths


def verify(public_set: PublicSet, found: Found) -> list[str]:
    """A line for each file: its checksum matches, or none is known; a mismatch is an error."""
    if found.is_npz:
        known = {found.paths[0]: public_set.npz_sha256}
    else:
        by_name = {file.name: file.sha256 for file in public_set.files}
        known = {path: by_name[path.name] for path in found.paths if path.name in by_name}
    lines = []
    for path in found.paths:
        if path not in known:
            lines.append(f"{path}: unpacked, so there is no checksum to compare")
            continue
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != known[path]:
            raise InputError(f"{path} has sha256 {actual}; the published file has {known[path]}")
        lines.append(f"{path}: sha256 matches")
    return lines


def prepared(name: str, found: Found, read: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays that `read` makes from a set's files, cached for as long as the files do not change."""
    state = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in found.paths]
    key = hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()
    path = cache_folder() / "prepared" / f"{name}-{key}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            return {part: file[part] for part in file.files}
    splits = read()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda beside: _save(beside, splits))
    except (OSError, InputError):  # without a cache it takes longer, nothing else
        return splits
    return splits


def _save(path: Path, splits: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, **splits)  # type: ignore[arg-type]
