"""The models by the names the paper prints, what each is, and which objective trains it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from nvdp.errors import unknown_name
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.models.neural_process import NeuralProcess
from nvdp.models.nvdp import NVDP
from nvdp.randomness import derived_seed


@dataclass(frozen=True)
class ModelSpec:
    """A name's entry: how to build it, the bound it is trained with, and a line for people."""

    name: str
    build: Callable[[ModelConfig], MetaModel]
    objective: str
    summary: str
    tasks: tuple[str, ...] = ("regression",)


_SPECS = (
    ModelSpec(
        "nvdp",
        NVDP,
        "variational-prior",
        "Neural Variational Dropout Process: the context sets dropout rates",
    ),
    ModelSpec(
        "cnp",
        partial(NeuralProcess, latent=False, deterministic=True),
        "likelihood",
        "Conditional Neural Process: deterministic path, maximum likelihood",
    ),
    ModelSpec(
        "np",
        partial(NeuralProcess, latent=True, deterministic=False),
        "neural-process",
        "Neural Process: latent path, usual bound",
    ),
    ModelSpec(
        "np+vp",
        partial(NeuralProcess, latent=True, deterministic=False),
        "variational-prior",
        "Neural Process with the variational prior",
    ),
    ModelSpec(
        "np+cnp",
        partial(NeuralProcess, latent=True, deterministic=True),
        "neural-process",
        "Neural Process with latent and deterministic path, usual bound",
    ),
    ModelSpec(
        "np+cnp+vp",
        partial(NeuralProcess, latent=True, deterministic=True),
        "variational-prior",
        "Neural Process with both paths and the variational prior",
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def model_spec(name: str) -> ModelSpec:
    """The entry of a model's name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def build_model(config: ModelConfig, seed: int = 0) -> MetaModel:
    """A model with weights initialised from `seed`; the global random state is left alone.

    >>> model = build_model(ModelConfig("nvdp"))
    >>> model.adapt([0.0, 1.0], [0.5, -0.5]).predict([0.25, 0.75]).mean.shape
    torch.Size([2, 1])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "initialisation"))
        return model_spec(config.name).build(config)
