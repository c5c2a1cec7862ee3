"""Nearest neighbours in a learned space: prototypical (Snell et al. 2017) and matching networks (Vinyals 2016)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.models.base import FeatureClassifier, class_means
from nvdp.models.config import ClassifierConfig
from nvdp.nn.likelihoods import CategoricalLikelihood
from nvdp.posteriors.latent import PointPosterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet

LARGEST_DISTANCE = 32.0  # squared, of two normalised features when training starts
TEMPERATURE_START = 10.0


class MetricModel(FeatureClassifier):
    """Features made beforehand get a linear map of their own, which starts as the identity times a number."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        self.space: nn.Module = nn.Identity()
        if config.extractor.name == "none":
            self.space = nn.Linear(config.extractor.features, config.extractor.features, bias=False)
            scale = math.sqrt(LARGEST_DISTANCE / (2 * config.extractor.features)) if config.extractor.normalise else 1.0
            with torch.no_grad():
                nn.init.eye_(self.space.weight).mul_(scale)

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Places of the points in the learned space."""
        return self.space(super().embed(x))


class PrototypicalNetwork(MetricModel):
    """logit of a class = −‖f(x) − mean of f over the class's support‖²."""

    def posterior_given(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> PointPosterior[ClassPrediction]:
        """The classifier of the nearest prototype."""
        prototypes = class_means(points.x, points)  # (task, way, feature)

        def logits(x: Tensor) -> Tensor:
            # ‖x‖² is the same for every class and falls out of the softmax, but keeps the logits distances.
            squares = x.square().sum(-1)[..., None] + prototypes.square().sum(-1)[:, None]
            return 2 * x @ prototypes.mT - squares

        return PointPosterior(points.count[:, None], logits, CategoricalLikelihood(), points.x.shape[-1])


class MatchingNetwork(MetricModel):
    """p(class) = Σ of softmax(t cos(f(x), f(x_i))) over the class's support points; t is learned.

    Without full-context embeddings: each image is embedded by itself.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(TEMPERATURE_START)))

    def posterior_given(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> PointPosterior[ClassPrediction]:
        """The classifier that attends to the support points."""
        keys = F.normalize(points.x, dim=-1)
        outside = (points.y == 0) | ~points.mask[..., None]  # (task, point, way)

        def logits(x: Tensor) -> Tensor:
            similarity = self.log_temperature.exp() * F.normalize(x, dim=-1) @ keys.mT  # (task, query, point)
            by_class = similarity[..., None].masked_fill(outside[:, None], -math.inf)
            return torch.logsumexp(by_class, dim=2)  # softmax over classes gives the attention of a class's points

        return PointPosterior(points.count[:, None], logits, CategoricalLikelihood(), points.x.shape[-1])
