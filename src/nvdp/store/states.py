"""What a row of a store is, wherever the store is kept: a task's name, count, sums and checksum."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError, check_format

STORE_VERSION, OLD_VERSION = 3, 2  # the old one's checksums do not cover the names of tasks
States = tuple[Float[Tensor, "task feature"], Int[Tensor, " task"]]
Row = tuple[Any, Any, Any, Any]  # (name, count, bytes of the sums, checksum)
MadeBy = tuple[bytes, str]  # the encoder's fingerprint, and the units as text


def states_of(names: Sequence[str], found: Iterable[Row], features: int, place: object, version: int) -> States:
    """Feature sums and counts of tasks from the rows that were found; zeros for a task without one."""
    rows = {row[0]: row for row in found}
    counts, sums = torch.zeros(len(names), dtype=torch.int64), np.zeros((len(names), features))
    for index, name in enumerate(names):
        if name in rows:
            _, count, data, _ = row = rows[name]
            if not is_whole(*row, version) or len(data) != 8 * features:
                raise InputError(f"{place}: the state of task '{name}' is damaged")
            counts[index], sums[index] = count, np.frombuffer(data, "<f8")
    return torch.from_numpy(sums), counts


def rows_of(names: Sequence[str], states: States, version: int) -> Iterator[tuple[str, int, bytes, int]]:
    """The rows that keep these states."""
    sums, counts = states
    for name, count, row in zip(names, counts.tolist(), sums.numpy().astype("<f8"), strict=True):
        data = row.tobytes()
        yield name, count, data, checksum(name, count, data, version)


def check_about(about: dict[str, Any], place: object) -> dict[str, Any]:
    """What a store says about itself, if it is of a version that can be read and says all there is."""
    if about.get("version") != OLD_VERSION:
        check_format(place, about.get("version"), STORE_VERSION, "observe the points again")
    if set(about) != {"version", "encoder", "features", "units"} or not isinstance(about["encoder"], bytes):
        raise InputError(f"{place} is damaged: it does not say which encoder and units its states are of")
    return about


def compare(about: dict[str, Any], made_by: MadeBy, place: object) -> None:
    """Refuse states of another encoder or of points in other units."""
    encoder, units = made_by
    if about and about["encoder"] != encoder:
        raise InputError(
            f"{place} holds states of the encoder {about['encoder'].hex()}; this model's is {encoder.hex()}"
        )
    if about and about["units"] != units:
        raise InputError(f"{place} holds states of points in other units: {about['units']}; now {units}")


def checksum(name: str, count: int, data: bytes, version: int) -> int:
    """Of a row; that of the old version leaves out the name."""
    before = "" if version == OLD_VERSION else name
    return zlib.crc32(data, zlib.crc32(before.encode(), count & 0xFFFFFFFF) if before else count & 0xFFFFFFFF)


def is_whole(name: Any, count: Any, data: Any, told: Any, version: int) -> bool:
    """Whether a row is as it was written."""
    types = isinstance(name, str) and isinstance(count, int) and isinstance(data, bytes)
    return types and count >= 0 and checksum(name, count, data, version) == told
