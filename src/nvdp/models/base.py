"""The one idea: ``model.adapt(context) -> Posterior``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.nn.inputs import InputScale
from nvdp.nn.sets import MeanSetEncoder
from nvdp.nn.task_norm import TaskNorm
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
        config.encoder_width,
        x_scale(config),
        InputScale(config.y_centre, config.y_scale),
    )


def x_scale(config: ModelConfig) -> InputScale:
    """What encoder and decoder see of an input."""
    return InputScale(config.x_centre, config.x_scale)


class MetaModel(nn.Module, ABC):
    """A model that reads a set of points and answers with a posterior over functions."""

    config: ModelConfig
    encoder: MeanSetEncoder
    task_norm: TaskNorm | None

    def __init__(self) -> None:
        super().__init__()
        self.task_norm = None

    @abstractmethod
    def posterior(self, representation: Float[Tensor, "task r"]) -> Posterior:
        """The posterior that a set representation stands for."""

    def posteriors(self, *representations: Float[Tensor, "task r"]) -> tuple[Posterior, ...]:
        """The posteriors of several sets of each task."""
        return tuple(self.posterior(representation) for representation in representations)

    def represent(
        self, features: Float[Tensor, "task point feature"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """r of each of several sets of the same encoded points, the first of them the context."""
        return self.normalised(self.encoder.aggregate(features, *masks), [mask.any(-1) for mask in masks])

    def normalised(
        self, sets: tuple[Float[Tensor, "task r"], ...], known: Sequence[Bool[Tensor, " task"]]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """Representations as the posterior takes them; `known` says which of the sets have points."""
        if self.task_norm is None:
            return sets
        # An empty set has r = 0, which may be far from any task's: normalised, it is the average task.
        return tuple(r * some[:, None] for r, some in zip(self.task_norm(*sets), known, strict=True))

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Posterior:
        """The posterior given a context: a `PointSet`, or arrays x and y.

        Arrays are (points, features) for one task or (tasks, points, features) for several, with an optional mask
        (tasks, points) of the real entries. They are taken to the model's precision and device. An empty context
        gives the prior.
        """
        points = x if isinstance(x, PointSet) else PointSet.of(x, y, mask)
        self._check_widths(points)
        points = points.like(next(self.parameters()))
        posterior = self.posterior(*self.represent(self.encoder.encode(points), points.mask))
        posterior.single = not isinstance(x, PointSet) and torch.as_tensor(x).dim() < 3
        return posterior

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior, Posterior]:
        """(q(φ | D_C), q(φ | D)): every point is encoded once and serves both."""
        self._check_widths(tasks.whole)
        sets = self.represent(self.encoder.encode(tasks.whole), tasks.is_context, tasks.mask)
        context, whole = self.posteriors(*sets)
        return context, whole

    def shrink_to_fan_in(self) -> None:
        """From He's initialisation to PyTorch's own, √6 times smaller, wherever the former is used."""
        fan_in_already = ("network.layers", "network.last")  # θ, and the last layer of an NP's decoder
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1 and "biases" not in name and not name.startswith(fan_in_already):
                    parameter.mul_(6**-0.5)

    def _check_widths(self, points: PointSet) -> None:
        for name, width, expected in (
            ("x", points.x.shape[-1], self.config.x_dim),
            ("y", points.y.shape[-1], self.config.y_dim),
        ):
            if width != expected:
                raise InputError(f"{name} has {width} features; this {self.config.name} model takes {expected}")
