"""Where data lies on this machine: a folder the user names, then the user's cache; and downloads into that cache.

Downloads come from a set's public home and are checked against a known checksum; nothing is downloaded unasked.
"""

import hashlib
import os
from pathlib import Path

from nvdp.data.public_set import Found, PublicSet
from nvdp.errors import InputError

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
    """One line: how to get a set that is not here."""
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
            path = pooch.retrieve(url, f"md5:{file.md5}", file.name, cache_folder() / public_set.name)
        except ValueError as error:  # pooch's word for a wrong checksum
            raise InputError(f"{url} is not the file it should be: {' '.join(str(error).split())}") from None
        except OSError as error:  # the errors of requests among them, whose text is a paragraph
            raise InputError(f"cannot download {url} ({type(error).__name__}): is this machine online?") from None
        paths.append(Path(path))
    return paths


def verify(public_set: PublicSet, found: Found) -> list[str]:
    """A line about each file: its checksum matches, or it has none that is known; a mismatch is an error."""
    if found.is_npz:
        known = {found.paths[0]: ("sha256", public_set.npz_sha256)}
    else:
        by_name = {file.name: ("md5", file.md5) for file in public_set.files}
        known = {path: by_name[path.name] for path in found.paths if path.name in by_name}
    lines = []
    for path in found.paths:
        if path not in known:
            lines.append(f"{path}: unpacked, so there is no checksum to compare")
            continue
        kind, expected = known[path]
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, kind).hexdigest()
        if actual != expected:
            raise InputError(f"{path} has {kind} {actual}; the published file has {expected}")
        lines.append(f"{path}: {kind} matches")
    return lines
