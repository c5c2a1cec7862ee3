"""The one idea: ``model.adapt(context) -> Posterior``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.nn.encoders import AttentiveSetEncoder, BayesianSetEncoder, MeanSetEncoder
from nvdp.nn.extractors import ConvExtractor, check_statistics
from nvdp.nn.mlp import InputScale
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors.base import Features, Memory, Posterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet, TaskBatch

SET_ENCODERS: dict[str, type[MeanSetEncoder]] = {
    "mean": MeanSetEncoder,
    "bayesian": BayesianSetEncoder,
    "attention": AttentiveSetEncoder,
}


def set_encoder(config: ModelConfig, paths: int = 1) -> MeanSetEncoder:
    """The set encoder that a configuration describes."""
    part = config.encoder
    return SET_ENCODERS[part.aggregation](
        config.x_dim,
        config.y_dim,
        size=part.size,
        layers=part.layers,
        activation=part.activation,
        residual=part.residual,
        width=part.width,
        paths=paths,
        x_scale=x_scale(config),
        y_scale=y_scale(config),
    )


def x_scale(config: ModelConfig) -> InputScale:
    """What encoder and decoder see of an input."""
    return InputScale(config.inputs.x_centre, config.inputs.x_scale, config.inputs.fourier)


def x_place(config: ModelConfig) -> InputScale:
    """Where an input lies, for what measures distances."""
    return InputScale(config.inputs.x_centre, config.inputs.x_scale)


def y_scale(config: ModelConfig) -> InputScale:
    """What encoders see of an output."""
    return InputScale(config.inputs.y_centre, config.inputs.y_scale)


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
        return self.config.encoder.aggregation != "attention"

    def posterior_from_bytes(self, data: bytes) -> Posterior:
        """The posterior of this model whose ``to_bytes`` gave these bytes."""
        from nvdp.models.state import posterior_from_bytes

        return posterior_from_bytes(self, data)

    def _memory(self, points: PointSet, single: bool) -> Memory:
        from nvdp.models.state import TaskState  # which knows models

        return replace(TaskState.of(self, points), single=single)

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior, Posterior]:
        """(q(φ | D_C), q(φ | D)): every point is encoded once and serves both; targets ask the context alone."""
        self._check_widths(tasks.whole)
        sets = self.represent(self.encoder.encode(tasks.whole), tasks.is_context, tasks.mask)
        context, whole = self.posteriors(*sets, read=self.read(tasks.context))
        return context, whole

    def _check_widths(self, points: PointSet) -> None:
        for name, width, expected in (
            ("x", points.x.shape[-1], self.config.x_dim),
            ("y", points.y.shape[-1], self.config.y_dim),
        ):
            if width != expected:
                raise InputError(f"{name} has {width} features; this {self.config.name} model takes {expected}")


def query_points(tasks: TaskBatch) -> PointSet:
    """The queries of a batch without the entries that are a query of no task.

    >>> mask = torch.ones(1, 5, dtype=torch.bool)
    >>> tasks = TaskBatch(torch.zeros(1, 5, 2), torch.zeros(1, 5, 3), mask & (torch.arange(5) < 3), mask)
    >>> query_points(tasks).x.shape
    torch.Size([1, 2, 2])
    """
    target = tasks.target
    used = target.mask.any(0)
    if used.all():
        return target
    return PointSet(target.x[:, used], target.y[:, used], target.mask[:, used])


def class_means(features: Float[Tensor, "task point feature"], points: PointSet) -> Float[Tensor, "task way feature"]:
    """The mean of the features of each class; zeros for a class without points."""
    members = (points.y * points.mask[..., None]).mT  # (task, way, point)
    return (members / members.sum(-1, keepdim=True).clamp(min=1)) @ features


class FewShotModel(nn.Module, ABC):
    """A classifier that reads a support set.

    Points pass ``embed`` first; ``posterior`` and everything it returns work on what comes out of it, so that all
    images of a training step go through the extractor once and together. ``adapt`` joins both. ``statistics`` says what
    batch norm uses outside training; it starts as configured and may be changed.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self._statistics = str(config.extractor.statistics)

    @property
    def statistics(self) -> str:
        """What batch norm uses outside training."""
        return self._statistics

    @statistics.setter
    def statistics(self, name: str) -> None:
        check_statistics(name, self.config.known_statistics)
        self._statistics = name

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """What the classifier sees of each point."""
        return x

    @abstractmethod
    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> Posterior[ClassPrediction]:
        """The posterior given embedded support points; `generator` is for models that adapt under noise."""

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Posterior[ClassPrediction]:
        """The posterior given a support set: a `PointSet` with one-hot labels, or arrays x and y.

        Arrays are (points, numbers) for one task or (tasks, points, numbers) for several; y is one-hot, or whole
        numbers of classes without the last axis.
        """
        points = x if isinstance(x, PointSet) else PointSet.of(x, one_hot(y), mask)
        self._check(points)
        points = points.like(next(self.parameters()))
        posterior = self.posterior(replace(points, x=self.embed(points.x)))
        posterior.embed, posterior.x_dim = self.embed, self.config.x_dim
        posterior.single = not isinstance(x, PointSet) and torch.as_tensor(x).dim() < 3
        return posterior

    def embedded(self, tasks: TaskBatch) -> TaskBatch:
        """The same tasks with every real point embedded, all in one batch."""
        self._check(tasks.whole)
        if tasks.mask.all():
            return replace(tasks, x=self.embed(tasks.x))
        batches = zip(tasks.x, tasks.mask, strict=True) if self._task_by_task else [(tasks.x, tasks.mask)]
        real = torch.cat([self.embed(x[mask][None])[0] for x, mask in batches])
        x = real.new_zeros(*tasks.mask.shape, real.shape[-1])
        return replace(tasks, x=x.index_put((tasks.mask,), real))

    @property
    def _task_by_task(self) -> bool:
        return self.statistics == "batch" and not self.training

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior[ClassPrediction], Posterior[ClassPrediction]]:
        """(q(φ | D_C), q(φ | D)) of embedded tasks."""
        return self.posterior(tasks.context), self.posterior(tasks.whole)

    def _check(self, points: PointSet) -> None:
        if points.x.shape[-1] != self.config.x_dim:
            raise InputError(
                f"x has {points.x.shape[-1]} numbers a point; this {self.config.name} model takes {self.config.x_dim}"
            )
        labels = points.y[points.mask]
        if ((labels != 0) & (labels != 1)).any() or (labels.sum(-1) != 1).any():
            raise InputError("y is not one-hot: a point's label must hold a single 1 and zeros")
        empty = torch.nonzero((points.y * points.mask[..., None]).sum(1) == 0)
        if len(empty):
            task, number = empty[0].tolist()
            raise InputError(f"class {number} of task {task} has no support point; every class needs at least 1")


def one_hot(y: Any) -> Any:
    """Whole numbers of classes as one-hot labels; anything else as it is.

    >>> one_hot([1, 0])
    tensor([[0., 1.],
            [1., 0.]])
    """
    try:
        labels = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        return y
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.dim() not in (1, 2) or not labels.numel():
        return y
    if labels.dim() == 2 and int(labels.max()) <= 1 and bool((labels.sum(-1) == 1).all()):
        return labels.to(torch.get_default_dtype())
    if int(labels.min()) < 0:
        raise InputError(f"y holds the class number {int(labels.min())}; classes are numbered from 0")
    return F.one_hot(labels.long()).to(torch.get_default_dtype())


class FeatureModel(FewShotModel):
    """A classifier on features: the extractor's, or x itself where the features are made beforehand."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        self.extractor = (
            None if config.extractor.name == "none" else ConvExtractor(config.extractor.name, config.extractor.channels)
        )

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of every point; with statistics of the batch, outside training, each task is a batch."""
        if self.extractor is None:
            return F.layer_norm(x, x.shape[-1:]) if self.config.extractor.normalise else x
        shape = self.config.extractor
        images = x.unflatten(-1, (shape.channels, shape.size, shape.size))
        if self._task_by_task:
            return torch.stack([self.extractor(task, "batch") for task in images])
        return self.extractor(images.flatten(0, 1), "running").unflatten(0, x.shape[:2])
