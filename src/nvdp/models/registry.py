"""The models by the names the paper prints, what each is, and which objective trains it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import overload

import torch

from nvdp.errors import InputError, unknown_name
from nvdp.models.base import FewShotModel, MetaModel
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.gradient import GradientModel
from nvdp.models.neural_process import ClassProcess, NeuralProcess, ReadingProcess
from nvdp.models.nvdp import NVDP, NVDPClassifier, ReadingNVDP
from nvdp.models.prototypes import MatchingNetwork, PrototypicalNetwork
from nvdp.models.readers import attention_reader, convolution_reader
from nvdp.models.versa import Versa
from nvdp.randomness import derived_seed

AnyConfig = ModelConfig | ClassifierConfig
AnyModel = MetaModel | FewShotModel


@dataclass(frozen=True)
class ClassifierSpec:
    """How a name's few-shot classifier is built, and the bound it is trained with."""

    build: Callable[[ClassifierConfig], FewShotModel]
    objective: str = "query-likelihood"


@dataclass(frozen=True)
class ModelSpec:
    """A name's entry: how to build it for regression, the bound it is then trained with, and a line for people.

    A model for classification has a `classifier`; one for classification alone has no `build` and no `objective`.
    """

    name: str
    build: Callable[[ModelConfig], MetaModel] | None
    objective: str
    summary: str
    classifier: ClassifierSpec | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the model is for."""
        serves = {"regression": self.build, "classification": self.classifier}
        return tuple(task for task, way in serves.items() if way is not None)


def _classifier(name: str, build: Callable[[ClassifierConfig], FewShotModel], summary: str) -> ModelSpec:
    return ModelSpec(name, None, "", summary, ClassifierSpec(build))


_SPECS = (
    ModelSpec(
        "nvdp",
        NVDP,
        "variational-prior",
        "Neural Variational Dropout Process: the context sets dropout rates",
        ClassifierSpec(NVDPClassifier, "query-variational-prior"),
    ),
    ModelSpec(
        "cnp",
        partial(NeuralProcess, latent=False, deterministic=True),
        "likelihood",
        "Conditional Neural Process: deterministic path, maximum likelihood",
        ClassifierSpec(ClassProcess),
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
    ModelSpec(
        "nvdp-attentive",
        partial(ReadingNVDP, reader=attention_reader),
        "variational-prior",
        "NVDP whose targets also attend to the context, its last layer in closed form",
    ),
    ModelSpec(
        "anp",
        partial(ReadingProcess, reader=attention_reader, latent=True),
        "neural-process",
        "Attentive Neural Process: latent path, and cross-attention as the deterministic path",
    ),
    ModelSpec(
        "nvdp-conv",
        partial(ReadingNVDP, reader=convolution_reader),
        "variational-prior",
        "NVDP whose targets also read convolutions over a grid, for one or two inputs, its last layer in closed form",
    ),
    ModelSpec(
        "convcnp",
        partial(ReadingProcess, reader=convolution_reader, latent=False),
        "likelihood",
        "Convolutional CNP: a grid for one or two inputs, maximum likelihood",
    ),
    _classifier("versa", Versa, "VERSA: Gaussian posterior of class weights from class means"),
    _classifier("protonet", PrototypicalNetwork, "Prototypical network: nearest class mean"),
    _classifier("matching", MatchingNetwork, "Matching network: attention to the support by cosine"),
    _classifier("maml", GradientModel, "MAML: gradient steps from a learned initialisation"),
    _classifier("meta-sgd", partial(GradientModel, learned_rates=True), "Meta-SGD: MAML with a learned rate a weight"),
    _classifier(
        "meta-dropout",
        partial(GradientModel, learned_rates=True, noisy=True),
        "Meta-dropout: Meta-SGD whose steps are taken under learned noise",
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def model_spec(name: str) -> ModelSpec:
    """The entry of a model's name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def check_serves(config: AnyConfig) -> None:
    """Refuse a configuration that asks a model for what it is not."""
    spec, task = model_spec(config.name), config.kind
    if task not in spec.tasks:
        serving = [name for name, other in MODELS.items() if task in other.tasks]
        raise InputError(f"{config.name} is not for {task}; there are {', '.join(serving)}")


@overload
def build_model(config: ModelConfig, seed: int = 0) -> MetaModel: ...
@overload
def build_model(config: ClassifierConfig, seed: int = 0) -> FewShotModel: ...
def build_model(config: AnyConfig, seed: int = 0) -> AnyModel:
    """A model with weights initialised from `seed`; the global random state is left alone.

    >>> model = build_model(ModelConfig("nvdp"))
    >>> model.adapt([0.0, 1.0], [0.5, -0.5]).predict([0.25, 0.75]).mean.shape
    torch.Size([2, 1])
    >>> model = build_model(ClassifierConfig("nvdp").updated({"extractor.name": "none", "extractor.features": 3}))
    >>> model.adapt([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], [0, 1]).predict([[0.0, 1.0, 3.0]]).probabilities.shape
    torch.Size([1, 2])
    """
    check_serves(config)
    spec = model_spec(config.name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "initialisation"))
        if isinstance(config, ModelConfig):
            assert spec.build is not None
            return spec.build(config)
        assert spec.classifier is not None
        return spec.classifier.build(config)
