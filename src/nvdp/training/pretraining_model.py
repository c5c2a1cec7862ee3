"""What pretraining trains: an extractor with a head that is not kept, and the step's bound."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.data.features import Extract
from nvdp.nn.extractors import ConvExtractor
from nvdp.randomness import derived_seed
from nvdp.training.config import FULL_PRECISION, PretrainConfig

COSINE_SCALE = 10.0
Scored = tuple[Float[Tensor, "scored class"], Int[Tensor, " scored"]]  # logits, and the right class of each row


class ClassHead(nn.Module):
    """Logits of the training classes; a cosine head compares directions alone, as Chen et al.'s Baseline++ does."""

    def __init__(self, features: int, classes: int, cosine: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes, bias=not cosine)
        self.scale = nn.Parameter(torch.tensor(COSINE_SCALE)) if cosine else None

    def forward(self, features: Float[Tensor, "image feature"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of every image, and its class."""
        if self.scale is None:
            return self.linear(features), classes
        weight = F.normalize(self.linear.weight, dim=-1)
        return self.scale * F.linear(F.normalize(features.float(), dim=-1), weight), classes


class EpisodeHead(nn.Module):
    """Logits of an episode's queries: cosine similarities to the first image of each class."""

    def __init__(self, per_class: int) -> None:
        super().__init__()
        self.per_class = per_class
        self.scale = nn.Parameter(torch.tensor(COSINE_SCALE))

    def forward(self, features: Float[Tensor, "image feature"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of every query, and the number of its class in the episode."""
        directions = F.normalize(features.float(), dim=-1).unflatten(0, (-1, self.per_class))
        labels = torch.arange(len(directions), device=features.device).repeat_interleave(self.per_class - 1)
        return self.scale * directions[:, 1:].flatten(0, 1) @ directions[:, 0].mT, labels


class PretrainedClassifier(nn.Module):
    """An extractor and the head that it is trained by."""

    def __init__(self, config: PretrainConfig, classes: int) -> None:
        super().__init__()
        self.config = config
        shape = {name: getattr(config, name) for name in ("last_relu", "views", "size", "components")}
        self.extractor = ConvExtractor(config.extractor, config.channels, **shape)
        self.head = (
            EpisodeHead(config.per_class)
            if config.objective == "episodes"
            else ClassHead(config.features, classes, config.head == "cosine")
        )

    def features(self, vectors: Float[Tensor, "image vector"]) -> Float[Tensor, "image feature"]:
        """Features of images given as rows."""
        shape = self.config.channels, self.config.size, self.config.size
        return self.extractor(vectors.to(next(self.parameters()).device).unflatten(-1, shape))

    def forward(self, vectors: Float[Tensor, "image vector"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of the images that are scored, and what is right."""
        return self.head(self.features(vectors), classes)


class ClassificationStep(nn.Module):
    """The cross-entropy of a batch as the forward pass of a module, as the training loop needs it."""

    def __init__(self, model: PretrainedClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, vectors: Float[Tensor, "image vector"], classes: Int[Tensor, " image"]
    ) -> dict[str, Float[Tensor, ""]]:
        """The mean log-likelihood of the classes, which is the bound here."""
        mixed = self.model.config.precision != FULL_PRECISION
        with torch.autocast(vectors.device.type, torch.bfloat16, enabled=mixed):
            logits, labels = self.model(vectors, classes)
        log_likelihood = -F.cross_entropy(logits.float(), labels)
        return {"bound": log_likelihood, "LL": log_likelihood.detach()}


def build_classifier(config: PretrainConfig, classes: int) -> PretrainedClassifier:
    """A classifier with weights from the configuration's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "initialisation"))
        return PretrainedClassifier(config, classes)


def evaluated(model: PretrainedClassifier) -> Extract:
    """The extractor of a model with the running statistics of its batch norm, in full precision."""
    return lambda vectors: model.eval().features(vectors)
