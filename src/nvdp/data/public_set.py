"""A public set of images: what it is called and made of, and where its files may lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvdp.data.image_files import Splits


@dataclass(frozen=True)
class PublicFile:
    """One file as its home gives it out, its checksum, and the names it has when unpacked."""

    name: str
    md5: str
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
    folders: tuple[str, ...]  # where inside a folder of data the public files usually lie
    download: str | None  # the address that file names are appended to, if anyone may download
    home: str
    terms: str
    from_npz: Callable[[Path], Splits]
    from_public_files: Callable[[Sequence[Path]], Splits]
    layout: str | None = None  # how unpacked files must lie, where their names do not say it

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
