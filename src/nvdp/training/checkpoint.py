"""Checkpoints without pickle: one safetensors file for everything a run needs to go on, with a checksum.

Tensors are named ``model/…`` and ``optimizer/…``; the step and other plain numbers are JSON in the file's metadata.
Generators need no saving, as each step derives its own from the seed.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.system import write_whole

CHECKPOINT_VERSION = 1
KEPT = 2
DAMAGE = (SafetensorError, OSError, ValueError, KeyError, AssertionError, RuntimeError, OverflowError)  # of any byte


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
    """Read what :func:`save_tensors` wrote; damage is reported, never loaded.

    The file is read once, as a whole, so that what is checked is what is used: tensors that stay in the file change,
    or take the process with them, when the file does.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if not path.is_file():
        raise InputError(f"{path} is no regular file")
    try:
        content = path.read_bytes()
        tensors = load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except DAMAGE as error:
        raise InputError(f"{path} is damaged or cut short: {error}") from None
    try:
        entry = json.loads(metadata["nvdp"])
        header, expected = str(entry["header"]), entry["sha256"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InputError(f"{path} was not written by nvdp: its header carries no checksum") from None
    if checksum(tensors, header) != expected:
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:
        numbers = json.loads(header)
        version, step = numbers["version"], numbers.get("step", 0)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise InputError(f"{path} was not written by nvdp: its header names no version") from None
    if version != CHECKPOINT_VERSION:
        raise InputError(f"{path} has format version {version}; this nvdp reads {CHECKPOINT_VERSION}")
    if type(step) is not int or not 0 <= step < 2**63:
        raise InputError(f"{path} is of step {str(step)[:40]}; expected a whole number of at least 0")
    return tensors, numbers


def check_shapes(path: Path, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of a model, quoting the first that differs."""
    wanted, given = ({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (expected, found))
    if wanted != given:
        name = min(set(wanted.items()) ^ set(given.items()))[0]
        raise InputError(
            f"{path} does not fit its configuration: '{name}' has shape "
            f"{given.get(name, 'missing')}; expected {wanted.get(name, 'no such weight')}"
        )


def state_tensors(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """The weights and the optimiser's state, as a checkpoint names them."""
    state = {
        f"{index}/{name}": tensor
        for index, values in optimizer.state_dict()["state"].items()
        for name, tensor in values.items()
    }
    return with_prefix("model", dict(model.state_dict())) | with_prefix("optimizer", state)


def restore_state(path: Path, checkpoint: Checkpoint, model: nn.Module, optimizer: Any) -> None:
    """Load what `state_tensors` gave into a model and its optimiser; `path` is what an error names."""
    weights = checkpoint.part("model")
    check_shapes(path, dict(model.state_dict()), weights)
    model.load_state_dict(weights)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    try:
        for key, tensor in checkpoint.part("optimizer").items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = tensor
            if tensor.shape not in (parameters[int(index)].shape, ()):
                raise ValueError(f"'{key}' has shape {tuple(tensor.shape)}")
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for place, parameter in enumerate(parameters):  # which rounds NAdam's running product to the weights' precision
            if "mu_product" in state.get(place, {}):
                optimizer.state[parameter]["mu_product"] = state[place]["mu_product"].to(parameter.device)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not fit its configuration: {error}") from None


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:09d}.safetensors"


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def save_checkpoint(folder: Path, checkpoint: Checkpoint, digest: str) -> None:
    """Write a checkpoint and drop all but the newest two.

    Args:
        folder: Of checkpoints.
        checkpoint: The state of the run.
        digest: That of its configuration, to which the checkpoint belongs from now on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, checkpoint.step)
    save_tensors(path, checkpoint.tensors, {"step": checkpoint.step, "config": digest, **checkpoint.numbers})
    for old in checkpoint_paths(folder)[:-KEPT]:
        old.unlink()


def load_newest_checkpoint(folder: Path, digest: str | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each damaged one that was passed over.

    Args:
        folder: Of checkpoints.
        digest: That of the run's configuration; a checkpoint of another one is refused.

    Returns:
        The checkpoint, or None if there is none, and the lines.
    """
    damaged = []
    for path in reversed(checkpoint_paths(folder)):
        try:
            tensors, numbers = load_tensors(path)
        except InputError as error:
            damaged.append(str(error))
            continue
        if "config" not in numbers:
            raise InputError(f"{path} was written by version 0.1, which this version does not read; train again")
        if numbers.pop("config") != digest and digest is not None:
            raise InputError(f"{path} belongs to another configuration; config.json was changed after the run began")
        return Checkpoint(numbers.pop("step"), tensors, numbers), damaged
    if damaged:
        raise InputError(f"no whole checkpoint to resume from: {damaged[0]}")
    return None, []
