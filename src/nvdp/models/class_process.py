"""Conditional neural process for classification: each class is the mean code of its support, read by one network."""

import torch
from torch import Tensor

from nvdp.class_posteriors import PointClassPosterior
from nvdp.models.fewshot_base import FeatureModel, class_means
from nvdp.models.fewshot_config import FewShotConfig
from nvdp.nn.mlp import MLP, ConditionedMLP
from nvdp.tasks import PointSet


class ClassProcess(FeatureModel):
    """logit of a class = network(features of the query, mean code of the class's support); nothing is random."""

    def __init__(self, config: FewShotConfig) -> None:
        super().__init__(config)
        self.encoder = MLP(
            config.features, config.meta_width, config.meta_layers, config.meta_activation, config.residual
        )
        self.network = ConditionedMLP(config.features, config.meta_width, config.width, 1, 1, config.activation)

    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> PointClassPosterior:
        """The classifier that the classes' codes stand for."""
        codes = class_means(self.encoder(support.x), support)  # (task, way, code)

        def logits(x: Tensor) -> Tensor:
            by_class = self.network(x, codes.transpose(0, 1))  # (way, task, point, 1)
            return by_class.squeeze(-1).permute(1, 2, 0)

        return PointClassPosterior(support.count[:, None], support.x.shape[-1], logits)
