"""Net2Net growth (Chen et al. 2016): a larger NVDP that computes the same function as a trained smaller one.

Encoder and rate networks are widened by copies of their units. Copies are equal, so layer norm and normalisation over
tasks see the same statistics; the weight of a unit is divided among its copies at random, so that they learn different
things. Rate networks are deepened by residual layers of zeros.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.models.registry import AnyModel
from nvdp.nn.mlp import StackedMLP
from nvdp.randomness import derived_generator
from nvdp.training.run_folder import load_any_run

GROWING = ("encoder.", "task_norm.", "rates.hidden.", "rates.heads.")  # parts of an NVDP that may be larger


def start_from(model: AnyModel, folder: Path, seed: int) -> None:
    """Begin with the weights of a finished run, grown where the model's encoder or rate networks are larger.

    Args:
        model: A new model; its weights are replaced.
        folder: Of the run.
        seed: Of the shares by which weights are divided among copies.
    """
    old = dict(load_any_run(folder)[1].state_dict())
    try:
        model.load_state_dict(grown(old, model, derived_generator(seed, "growth")))
    except InputError as error:
        raise InputError(f"cannot begin from {folder}: {error}") from None
    except KeyError as error:
        raise InputError(f"cannot begin from {folder}: its model has no weights {error}") from None


def grown(old: Mapping[str, Tensor], model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """The weights of a smaller model in the shapes of `model`; both compute the same function.

    Args:
        old: The state of a smaller NVDP, or of one of the same size.
        model: The larger one; its residual networks must have blocks, so that deeper ones can begin with zeros.
        generator: Of the shares of copies.

    Returns:
        A state for `model`.
    """
    old = _deepened(old, model)
    new = dict(model.state_dict())
    if missing := sorted(new.keys() ^ old.keys()):
        raise InputError(f"'{missing[0]}' is in only one of the two models")
    return {name: _widened(name, old[name], tensor, generator) for name, tensor in new.items()}


def _deepened(old: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """With layers of zeros after the last of the rate networks; the last normalisation stays the last."""
    state, prefix = dict(old), "rates.hidden."
    network = next((module for module in model.modules() if isinstance(module, StackedMLP)), None)
    before = sum(name.startswith(f"{prefix}weights.") for name in old)
    if network is None or not network.residual or before == 0:
        return state
    for name, fill in (("scales", 1.0), ("shifts", 0.0)):
        last = state.pop(f"{prefix}{name}.{before - 1}")
        for layer in range(before - 1, len(network.weights) - 1):
            state[f"{prefix}{name}.{layer}"] = torch.full_like(last, fill)
        state[f"{prefix}{name}.{len(network.weights) - 1}"] = last
    width = state[f"{prefix}weights.{before - 1}"].shape[-1]
    for layer in range(before, len(network.weights)):
        weight = state[f"{prefix}weights.{before - 1}"]
        state[f"{prefix}weights.{layer}"] = weight.new_zeros(len(weight), width, width)
        state[f"{prefix}biases.{layer}"] = weight.new_zeros(len(weight), 1, width)
    return state


def _widened(name: str, old: Tensor, new: Tensor, generator: torch.Generator) -> Tensor:
    """Copies along outputs, shares along inputs; in every matrix here the inputs are dimension 1."""
    if old.shape == new.shape:
        return old.clone()
    fits = old.dim() == new.dim() and all(large % small == 0 for small, large in zip(old.shape, new.shape, strict=True))
    if not name.startswith(GROWING) or not fits:
        raise InputError(f"'{name}' has shape {tuple(old.shape)} there and {tuple(new.shape)} here")
    matrix = name.endswith(".weight") or ".weights." in name
    for dimension in range(old.dim()):
        copies = new.shape[dimension] // old.shape[dimension]
        parts = [old] * copies
        if copies > 1 and matrix and old.dim() > 1 and dimension == 1:
            shares = torch.rand((copies, *old.shape), generator=generator).to(old)
            parts = list(old * shares / shares.sum(0))
        old = torch.cat(parts, dim=dimension)
    return old
