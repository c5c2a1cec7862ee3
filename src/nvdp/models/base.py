"""The one idea: ``model.adapt(context) -> Posterior``."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.nn.sets import MeanSetEncoder
from nvdp.posteriors import Posterior
from nvdp.tasks import PointSet, TaskBatch


def set_encoder(config: ModelConfig, paths: int = 1) -> MeanSetEncoder:
    """The set encoder that a configuration describes."""
    return MeanSetEncoder(
        config.x_dim,
        config.y_dim,
        config.representation,
        config.encoder_layers,
        config.encoder_activation,
        config.residual,
        config.count_feature,
        paths,
    )


class MetaModel(nn.Module, ABC):
    """A model that reads a set of points and answers with a posterior over functions."""

    config: ModelConfig
    encoder: MeanSetEncoder

    @abstractmethod
    def posterior(self, representation: Float[Tensor, "task r"]) -> Posterior:
        """The posterior that a set representation stands for."""

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Posterior:
        """The posterior given a context: a `PointSet`, or arrays x and y.

        Arrays are (points, features) for one task or (tasks, points, features) for several, with an optional mask
        (tasks, points) of the real entries. They are taken to the model's precision and device. An empty context
        gives the prior.
        """
        points = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        self._check_widths(points)
        posterior = self.posterior(self.encoder(points.like(next(self.parameters()))))
        posterior.single = not isinstance(x, PointSet) and torch.as_tensor(x).dim() < 3
        return posterior

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior, Posterior]:
        """(q(φ | D_C), q(φ | D)): every point is encoded once and serves both."""
        self._check_widths(tasks.whole)
        features = self.encoder.encode(tasks.whole)
        context, whole = self.encoder.aggregate(features, tasks.is_context, tasks.mask)
        # Not as one batch: a product's rounding depends on a row's place, and equal sets must give equal posteriors.
        return self.posterior(context), self.posterior(whole)

    def _check_widths(self, points: PointSet) -> None:
        for name, width, expected in (
            ("x", points.x.shape[-1], self.config.x_dim),
            ("y", points.y.shape[-1], self.config.y_dim),
        ):
            if width != expected:
                raise InputError(f"{name} has {width} features; this {self.config.name} model takes {expected}")
