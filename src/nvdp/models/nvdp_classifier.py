"""NVDP for classification: every class of the support sets the dropout rates of one shared network (eq. 2 and 3)."""

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.class_posteriors import ClassDropoutPosterior
from nvdp.models.fewshot_base import FeatureModel, class_means
from nvdp.models.fewshot_config import FewShotConfig
from nvdp.nn.activation_rates import ActivationRates, standardised, start_from_nearest_mean
from nvdp.nn.dropout_linear import DropoutNetwork
from nvdp.nn.engines import FUSED, Engine
from nvdp.nn.rates import LayerRates, RateBounds, RateNetwork
from nvdp.tasks import PointSet


class NVDPClassifier(FeatureModel):
    """Mean features of a class → rate networks → dropout posterior over a network that gives the class's logit.

    With ``decoder_sees="x"`` all classes share the network's weights and differ by their rates alone; with ``"x,r"``
    the network also receives the class's mean features. With ``rate_sees="contrast"`` rates are made from the mean
    features less those of all the task's classes, brought to one size: classes then differ in their rates from the
    start, where the plain means of new classes are nearly alike beside the noise of dropout. With
    ``rate_path="activations"`` they start from the class's own activations, and the whole from a nearest-mean
    classifier; features are then brought to one size wherever they come from. Any number of classes will do, whatever
    it was trained with.
    """

    engine: Engine = FUSED

    def __init__(self, config: FewShotConfig) -> None:
        super().__init__(config)
        inputs = config.features * (2 if config.decoder_sees == "x,r" else 1)
        self.network = DropoutNetwork([inputs, config.width, 1], config.activation)
        self.from_activations = config.rate_path == "activations"
        self.rates = (ActivationRates if self.from_activations else RateNetwork)(
            config.features,
            self.network.layer_shapes,
            config.meta_width,
            config.meta_layers,
            config.meta_activation,
            config.residual,
            RateBounds(config.rate_bounds, config.rate_floor),
        )
        if self.from_activations:
            start_from_nearest_mean(self.network)

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of every point."""
        features = super().embed(x)
        return standardised(features) if self.from_activations and self.extractor is not None else features

    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> ClassDropoutPosterior:
        """q(φ | D_C) from the mean features of each class."""
        way = support.y.shape[-1]
        means = class_means(support.x, support)  # (task, way, feature)
        seen = means.flatten(0, 1) if self.config.decoder_sees == "x,r" else None
        if self.config.rate_sees == "contrast":
            means = standardised(means - means.mean(1, keepdim=True))
        rates = self._rates(means.flatten(0, 1), seen)
        return ClassDropoutPosterior(rates, self.network, way, support.x.shape[-1], seen, self.engine)

    def _rates(self, means: Float[Tensor, "row feature"], seen: Tensor | None) -> tuple[LayerRates, ...]:
        if not isinstance(self.rates, ActivationRates):
            return self.rates(means)
        inputs = means if seen is None else torch.cat([means, seen], dim=-1)
        return self.rates.of_class(means, next(iter(self.network.dropout_layers())), inputs)
