"""Checkpoints without pickle: one safetensors file for everything a run needs to go on, with a checksum.

Tensors are named ``model/…``, ``optimizer/…`` and ``average/…``; the step and other plain numbers travel in the file's
metadata as JSON. Generators need no saving, as each step derives its own from the seed.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nvdp.errors import InputError
from nvdp.files import write_whole

CHECKPOINT_VERSION = 1
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` steps."""

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix/``, without it."""
        start = f"{prefix}/"
        return {name[len(start) :]: t for name, t in self.tensors.items() if name.startswith(start)}


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :meth:`Checkpoint.part`."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def checksum(tensors: dict[str, Tensor], header: str) -> str:
    """SHA-256 over names, shapes and bytes of the tensors and over the header."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_tensors(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Write tensors and plain numbers as one safetensors file with a checksum."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = json.dumps({"version": CHECKPOINT_VERSION, **numbers}, sort_keys=True)
    # One entry, as safetensors writes several in any order: the same state gives the same bytes.
    metadata = {"nvdp": json.dumps({"header": header, "sha256": checksum(tensors, header)})}
    write_whole(path, lambda beside: save_file(tensors, beside, metadata=metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_tensors` wrote; damage is reported, never loaded."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        tensors = load_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is damaged or cut short: {error}") from None
    try:
        entry = json.loads(metadata["nvdp"])
        header, expected = str(entry["header"]), entry["sha256"]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} was not written by nvdp: its header carries no checksum") from None
    if checksum(tensors, header) != expected:
        raise InputError(f"{path} is damaged: its checksum does not match")
    numbers = json.loads(header)
    if numbers["version"] != CHECKPOINT_VERSION:
        raise InputError(f"{path} has format version {numbers['version']}; this nvdp reads {CHECKPOINT_VERSION}")
    return tensors, numbers


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{checkpoint.step:09d}.safetensors"
    save_tensors(path, checkpoint.tensors, {"step": checkpoint.step, **checkpoint.numbers})
    for old in checkpoint_paths(folder)[:-KEPT]:
        old.unlink()


def load_newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each damaged one that was passed over."""
    complaints = []
    for path in reversed(checkpoint_paths(folder)):
        try:
            tensors, numbers = load_tensors(path)
        except InputError as error:
            complaints.append(str(error))
            continue
        return Checkpoint(numbers.pop("step"), tensors, numbers), complaints
    if complaints:
        raise InputError(f"no whole checkpoint to resume from: {complaints[0]}")
    return None, []
