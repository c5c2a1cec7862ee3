"""VERSA (Gordon et al. 2019): a Gaussian posterior of each class's linear weights from the class's mean features."""

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from nvdp.models.base import FeatureClassifier, class_means
from nvdp.models.config import ClassifierConfig
from nvdp.nn.mlp import MLP
from nvdp.posteriors.classes import ClassWeightPosterior
from nvdp.tasks import PointSet

SCALE_START, SMALLEST_SCALE = -3.0, 1e-4  # σ of a weight begins at 0.05


class Versa(FeatureClassifier):
    """Two networks, one for the means and one for the deviations of a class's weights and bias."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)

        def network() -> nn.Sequential:
            hidden = MLP(
                config.extractor.features,
                config.meta.width,
                config.meta.layers,
                config.meta.activation,
                residual=config.meta.residual,
            )
            return nn.Sequential(hidden, nn.Linear(config.meta.width, config.extractor.features + 1))

        self.mean, self.raw_scale = network(), network()
        last = self.raw_scale[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, SCALE_START)

    def posterior_given(self, points: PointSet, generator: torch.Generator | None = None) -> ClassWeightPosterior:
        """q(class weights | support), every class by itself."""
        representation = class_means(points.x, points)  # (task, way, feature)
        scale = F.softplus(self.raw_scale(representation)) + SMALLEST_SCALE
        weights = Normal(self.mean(representation), scale, validate_args=False)
        return ClassWeightPosterior(weights, points.x.shape[-1], self.config.training_samples)
