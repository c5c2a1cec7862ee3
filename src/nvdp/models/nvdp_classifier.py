"""NVDP for classification: every class of the support sets the dropout rates of one shared network (eq. 2 and 3)."""

import torch
from torch.nn import functional as F

from nvdp.class_posteriors import ClassDropoutPosterior
from nvdp.models.fewshot_base import FeatureModel, class_means
from nvdp.models.fewshot_config import FewShotConfig
from nvdp.nn.dropout_linear import DropoutNetwork
from nvdp.nn.engines import FUSED, Engine
from nvdp.nn.rates import RateBounds, RateNetwork
from nvdp.tasks import PointSet


class NVDPClassifier(FeatureModel):
    """Mean features of a class → rate networks → dropout posterior over a network that gives the class's logit.

    With ``decoder_sees="x"`` all classes share the network's weights and differ by their rates alone; with ``"x,r"``
    the network also receives the class's mean features. With ``rate_sees="contrast"`` rates are made from the mean
    features less those of all the task's classes, brought to one size: classes then differ in their rates from the
    start, where the plain means of new classes are nearly alike beside the noise of dropout. Any number of classes
    will do, whatever it was trained with.
    """

    engine: Engine = FUSED

    def __init__(self, config: FewShotConfig) -> None:
        super().__init__(config)
        inputs = config.features * (2 if config.decoder_sees == "x,r" else 1)
        self.network = DropoutNetwork([inputs, config.width, 1], config.activation)
        self.rates = RateNetwork(
            config.features,
            self.network.layer_shapes,
            config.meta_width,
            config.meta_layers,
            config.meta_activation,
            config.residual,
            RateBounds(config.rate_bounds, config.rate_floor),
        )

    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> ClassDropoutPosterior:
        """q(φ | D_C) from the mean features of each class."""
        way = support.y.shape[-1]
        means = class_means(support.x, support)  # (task, way, feature)
        seen = means.flatten(0, 1) if self.config.decoder_sees == "x,r" else None
        if self.config.rate_sees == "contrast":
            means = F.layer_norm(means - means.mean(1, keepdim=True), means.shape[-1:])
        rates = self.rates(means.flatten(0, 1))
        return ClassDropoutPosterior(rates, self.network, way, support.x.shape[-1], seen, self.engine)
