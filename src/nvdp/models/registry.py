"""The models by the names the paper prints, and what each one is and needs.

Other code asks the entry instead of testing names or types: which kinds of task a model serves, which bound trains it,
whether it has dropout rates, how its targets read the context, whether its number of classes is fixed.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from typing import Any, overload

import torch

from nvdp.errors import InputError, NameNote, unknown_name
from nvdp.models.base import Classifier, MetaModel, RegressionModel
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.gradient import GradientModel
from nvdp.models.neural_process import ClassProcess, NeuralProcess
from nvdp.models.nvdp import NVDP, ClassNVDP
from nvdp.models.prototypes import MatchingNetwork, PrototypicalNetwork
from nvdp.models.readers import attention_reader, convolution_reader
from nvdp.models.versa import Versa
from nvdp.randomness import derived_seed

AnyConfig = ModelConfig | ClassifierConfig
AnyModel = MetaModel[Any]
# Measured: `nvdp reproduce ablations`. In classification the KL sums over the weights of all classes and is large where
# rates differ from the start: a weight of 0.001 can press all rates to their floor.
NVDP_KL_WEIGHTS = {"regression": 1e-3, "classification": 1e-5}


@dataclass(frozen=True)
class ModelSpec:
    """A model's entry in the registry.

    Attributes:
        name: What users type.
        summary: One line for people.
        objective: The bound that trains it, a name of `nvdp.objectives.OBJECTIVES`.
        regression: Builds it for regression, if it serves that.
        classification: Builds it for few-shot classification, if it serves that.
        kl_weights: The default weight of the KL per value, by kind of task; 1 for a kind that is not in it.
        dropout: Whether it has dropout rates.
        reader: How its targets read the context themselves: "attention", "convolution" or not at all.
        fixed_classes: Whether a classifier takes only the number of classes that it was trained with.
    """

    name: str
    summary: str
    objective: str
    regression: Callable[[ModelConfig], RegressionModel] | None = None
    classification: Callable[[ClassifierConfig], Classifier] | None = None
    kl_weights: Mapping[str, float] = field(default_factory=dict)
    dropout: bool = False
    reader: str | None = None
    fixed_classes: bool = False

    @property
    def builders(self) -> dict[str, Callable[[Any], AnyModel]]:
        """How to build it, by kind of task."""
        kinds = {"regression": self.regression, "classification": self.classification}
        return {kind: build for kind, build in kinds.items() if build is not None}

    def kl_weight(self, kind: str) -> float:
        """The default weight of the KL per value for a kind of task."""
        return self.kl_weights.get(kind, 1.0)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The kinds of task that it serves."""
        return tuple(self.builders)


_SPECS = (
    ModelSpec(
        "nvdp",
        "Neural Variational Dropout Process: the context sets dropout rates",
        "variational-prior",
        regression=NVDP,
        classification=ClassNVDP,
        kl_weights=NVDP_KL_WEIGHTS,
        dropout=True,
    ),
    ModelSpec(
        "cnp",
        "Conditional Neural Process: deterministic path, maximum likelihood",
        "likelihood",
        regression=partial(NeuralProcess, latent=False, deterministic=True),
        classification=ClassProcess,
    ),
    ModelSpec(
        "np",
        "Neural Process: latent path, usual bound",
        "neural-process",
        regression=partial(NeuralProcess, latent=True, deterministic=False),
    ),
    ModelSpec(
        "np+vp",
        "Neural Process with the variational prior",
        "variational-prior",
        regression=partial(NeuralProcess, latent=True, deterministic=False),
    ),
    ModelSpec(
        "np+cnp",
        "Neural Process with latent and deterministic path, usual bound",
        "neural-process",
        regression=partial(NeuralProcess, latent=True, deterministic=True),
    ),
    ModelSpec(
        "np+cnp+vp",
        "Neural Process with both paths and the variational prior",
        "variational-prior",
        regression=partial(NeuralProcess, latent=True, deterministic=True),
    ),
    ModelSpec(
        "nvdp-attentive",
        "NVDP whose targets also attend to the context, its last layer in closed form",
        "variational-prior",
        regression=partial(NVDP, reader=attention_reader),
        kl_weights=NVDP_KL_WEIGHTS,
        dropout=True,
        reader="attention",
    ),
    ModelSpec(
        "anp",
        "Attentive Neural Process: latent path, and cross-attention as the deterministic path",
        "neural-process",
        regression=partial(NeuralProcess, latent=True, deterministic=False, reader=attention_reader),
        reader="attention",
    ),
    ModelSpec(
        "tnp-d",
        "Transformer Neural Process with independent targets, beside r: maximum likelihood",
        "likelihood",
        regression=partial(NeuralProcess, latent=False, deterministic=True, reader=attention_reader),
        reader="attention",
    ),
    ModelSpec(
        "nvdp-conv",
        "NVDP whose targets also read convolutions over a grid, for one or two inputs, its last layer in closed form",
        "variational-prior",
        regression=partial(NVDP, reader=convolution_reader),
        kl_weights=NVDP_KL_WEIGHTS,
        dropout=True,
        reader="convolution",
    ),
    ModelSpec(
        "convcnp",
        "Convolutional CNP: a grid for one or two inputs, maximum likelihood",
        "likelihood",
        regression=partial(NeuralProcess, latent=False, deterministic=True, reader=convolution_reader),
        reader="convolution",
    ),
    ModelSpec(
        "convgnp",
        "Convolutional Gaussian Neural Process: convcnp with a Gaussian of low rank over functions, joint density",
        "likelihood",
        regression=partial(NeuralProcess, latent=False, deterministic=True, reader=convolution_reader, low_rank=True),
        reader="convolution",
    ),
    ModelSpec(
        "versa", "VERSA: Gaussian posterior of class weights from class means", "likelihood", classification=Versa
    ),
    ModelSpec("protonet", "Prototypical network: nearest class mean", "likelihood", classification=PrototypicalNetwork),
    ModelSpec(
        "matching",
        "Matching network: attention to the support by cosine",
        "likelihood",
        classification=MatchingNetwork,
    ),
    ModelSpec(
        "maml",
        "MAML: gradient steps from a learned initialisation",
        "likelihood",
        classification=GradientModel,
        fixed_classes=True,
    ),
    ModelSpec(
        "meta-sgd",
        "Meta-SGD: MAML with a learned rate for each weight",
        "likelihood",
        classification=partial(GradientModel, learned_rates=True),
        fixed_classes=True,
    ),
    ModelSpec(
        "meta-dropout",
        "Meta-dropout: Meta-SGD whose steps are taken under learned noise",
        "likelihood",
        classification=partial(GradientModel, learned_rates=True, noisy=True),
        fixed_classes=True,
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
GROUP = "nvdp.models"  # of the entry points by which other packages add models


def add_installed_models() -> None:
    """Add the models of other packages: each entry point of the group ``nvdp.models`` names a `ModelSpec`.

    One that cannot be used is left out with a warning, so that a broken package does not break this one.
    """
    for entry in entry_points(group=GROUP):
        try:
            spec = entry.load()
        except (Exception, SystemExit) as error:  # it is code of another package
            said = " ".join(f"{type(error).__name__}: {error}".split())
            warnings.warn(f"the model {entry.value} cannot be loaded: {said}", NameNote, stacklevel=2)
            continue
        if not isinstance(spec, ModelSpec):
            warnings.warn(f"{entry.value} is no ModelSpec but a {type(spec).__name__}", NameNote, stacklevel=2)
        elif MODELS.setdefault(spec.name, spec) is not spec:
            warnings.warn(f"{entry.value} is left out: there is a model {spec.name} already", NameNote, stacklevel=2)


def model_spec(name: str) -> ModelSpec:
    """The entry of a model's name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def check_serves(config: AnyConfig) -> None:
    """Refuse a configuration that asks a model for a kind of task that it does not serve."""
    if config.kind not in model_spec(config.name).tasks:
        serving = [name for name, other in MODELS.items() if config.kind in other.tasks]
        raise InputError(f"{config.name} is not for {config.kind}; there are {', '.join(serving)}")


@overload
def build_model(config: ModelConfig, seed: int = 0) -> RegressionModel: ...
@overload
def build_model(config: ClassifierConfig, seed: int = 0) -> Classifier: ...
def build_model(config: AnyConfig, seed: int = 0) -> AnyModel:
    """A new model.

    Args:
        config: Its name and architecture.
        seed: Of its initial weights; the global random state is left alone.

    Returns:
        The model, in training mode.

    >>> model = build_model(ModelConfig("nvdp"))
    >>> model.adapt([0.0, 1.0], [0.5, -0.5]).predict([0.25, 0.75]).mean.shape
    torch.Size([2, 1])
    >>> model = build_model(ClassifierConfig("nvdp").updated({"extractor.name": "none", "extractor.features": 3}))
    >>> model.adapt([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], [0, 1]).predict([[0.0, 1.0, 3.0]]).probabilities.shape
    torch.Size([1, 2])
    """
    check_serves(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "initialisation"))
        return model_spec(config.name).builders[config.kind](config)


add_installed_models()  # at the end, as their modules may import this one
