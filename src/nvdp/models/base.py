"""The one idea: ``model.adapt(context) -> Posterior``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.nn.inputs import InputScale
from nvdp.nn.mlp import KEEPS_SIGNAL
from nvdp.nn.set_encoders import AttentiveSetEncoder, BayesianSetEncoder
from nvdp.nn.sets import MeanSetEncoder
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors import Features, Memory, Posterior
from nvdp.tasks import PointSet, TaskBatch

SET_ENCODERS: dict[str, type[MeanSetEncoder]] = {
    "mean": MeanSetEncoder,
    "bayesian": BayesianSetEncoder,
    "attention": AttentiveSetEncoder,
}


def set_encoder(config: ModelConfig, paths: int = 1) -> MeanSetEncoder:
    """The set encoder that a configuration describes."""
    return SET_ENCODERS[config.aggregation](
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
        y_scale(config),
    )


def x_scale(config: ModelConfig) -> InputScale:
    """What encoder and decoder see of an input."""
    return InputScale(config.x_centre, config.x_scale, config.x_waves)


def x_place(config: ModelConfig) -> InputScale:
    """Where an input lies, for what measures distances."""
    return InputScale(config.x_centre, config.x_scale)


def y_scale(config: ModelConfig) -> InputScale:
    """What encoders see of an output."""
    return InputScale(config.y_centre, config.y_scale)


class MetaModel(nn.Module, ABC):
    """A model that reads a set of points and answers with a posterior over functions."""

    config: ModelConfig
    encoder: MeanSetEncoder
    task_norm: TaskNorm | None

    def __init__(self) -> None:
        super().__init__()
        self.task_norm = None

    @abstractmethod
    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> Posterior:
        """The posterior that a set representation stands for, with the context that its targets ask, if they do."""

    def posteriors(
        self, *representations: Float[Tensor, "task r"], read: Features | None = None
    ) -> tuple[Posterior, ...]:
        """The posteriors of several sets of each task, whose targets all ask the same context."""
        return tuple(self.posterior(representation, read) for representation in representations)

    def read(self, context: PointSet) -> Features | None:
        """The context as targets ask it; nothing if the representation is all that they see of it."""
        return None

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
        gives the prior. The posterior goes on learning by ``update`` and ``forget``.
        """
        given = isinstance(x, PointSet)
        points = x if given else PointSet.of(x, y, mask)
        self._check_widths(points)
        points = points.like(next(self.parameters()))
        (representation,) = self.represent(self.encoder.encode(points), points.mask)
        posterior = self.posterior(representation, self.read(points))
        posterior.single = not given and torch.as_tensor(x).dim() < 3
        if self.remembers:
            # A caller may write into its arrays before the points are asked for again.
            kept = points if given else points.copy()
            posterior.memory = partial(self._memory, kept, posterior.single)
        return posterior

    @property
    def remembers(self) -> bool:
        """Whether the sum of a context's features is all that its posterior needs; then posteriors go on learning."""
        return self.config.aggregation != "attention"

    def posterior_from_bytes(self, data: bytes) -> Posterior:
        """The posterior of this model whose ``to_bytes`` gave these bytes."""
        from nvdp.states import posterior_from_bytes

        return posterior_from_bytes(self, data)

    def _memory(self, points: PointSet, single: bool) -> Memory:
        from nvdp.states import TaskState  # which knows models

        return replace(TaskState.of(self, points), single=single)

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior, Posterior]:
        """(q(φ | D_C), q(φ | D)): every point is encoded once and serves both; targets ask the context alone."""
        self._check_widths(tasks.whole)
        sets = self.represent(self.encoder.encode(tasks.whole), tasks.is_context, tasks.mask)
        context, whole = self.posteriors(*sets, read=self.read(tasks.context))
        return context, whole

    def shrink_to_fan_in(self) -> None:
        """From He's initialisation to PyTorch's own, √6 times smaller, wherever the former was used."""
        with torch.no_grad():
            for parameter in self.parameters():
                if getattr(parameter, KEEPS_SIGNAL, False):
                    parameter.mul_(6**-0.5)

    def _check_widths(self, points: PointSet) -> None:
        for name, width, expected in (
            ("x", points.x.shape[-1], self.config.x_dim),
            ("y", points.y.shape[-1], self.config.y_dim),
        ):
            if width != expected:
                raise InputError(f"{name} has {width} features; this {self.config.name} model takes {expected}")
