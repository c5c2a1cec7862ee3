"""The base of all models: ``model.adapt(context) -> Posterior``.

Regression and classification share it. What differs stands below: regression models encode a set of points to a
representation r and score the whole task; classifiers embed images or features and score the queries.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.readers import Reader
from nvdp.nn.encoders import SET_ENCODERS, MeanSetEncoder
from nvdp.nn.extractors import STATISTICS, ConvExtractor, check_statistics
from nvdp.nn.fused import FUSED, Engine
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors.base import Answer, Features, Memory, Posterior
from nvdp.posteriors.prediction import ClassPrediction, Prediction
from nvdp.tasks import PointSet, TaskBatch


class MetaModel(nn.Module, ABC, Generic[Answer]):
    """A model that reads a set of points and answers with a posterior.

    Attributes:
        config: Its architecture.
        engine: How conditional-dropout layers are computed, if there are any; results differ by rounding.
    """

    config: Any
    engine: Engine = FUSED

    @abstractmethod
    def posterior_given(self, points: PointSet, generator: torch.Generator | None = None) -> Posterior[Answer]:
        """The posterior given points that were checked and embedded; models that adapt under noise use `generator`."""

    @abstractmethod
    def scored(self, tasks: TaskBatch) -> PointSet:
        """The points of embedded tasks whose likelihood a training bound counts."""

    @abstractmethod
    def check(self, points: PointSet) -> None:
        """Refuse points that do not fit the model."""

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Posterior[Answer]:
        """The posterior given a context.

        Args:
            x: A `PointSet`, or an array (points, features) of one task or (tasks, points, features) of several. Arrays
                are taken to the model's precision and device. An empty context gives the prior of a regression model.
            y: Outputs like x. Labels of a classifier are one-hot, or class numbers without the last axis.
            mask: Which entries (tasks, points) are real; by default all.

        Returns:
            A posterior that predicts, is sampled and, for most regression models, goes on learning by ``update``.
        """
        given = isinstance(x, PointSet)
        points = x if given else self._point_set(x, y, mask)
        self.check(points)
        points = points.like(next(self.parameters()))
        single = not given and np.ndim(x) < 3
        # A caller may write into its arrays before the points are asked for again: a posterior may keep copies alone.
        posterior = self._adapted(points, copy=not given, single=single)
        posterior.single = single
        return posterior

    def embedded(self, tasks: TaskBatch) -> TaskBatch:
        """The same tasks, checked, with every point as `posterior_given` takes it."""
        self.check(tasks.whole)
        return tasks

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior[Answer], Posterior[Answer]]:
        """(q(φ | D_C), q(φ | D)) of embedded tasks."""
        return self.posterior_given(tasks.context), self.posterior_given(tasks.whole)

    def _point_set(self, x: Any, y: Any, mask: Tensor | None) -> PointSet:
        return PointSet.of(x, y, mask)

    def _adapted(self, points: PointSet, copy: bool, single: bool) -> Posterior[Answer]:
        return self.posterior_given(points)


class RegressionModel(MetaModel[Prediction]):
    """A set encoder and what makes a posterior over functions from its representation r.

    A subclass builds its parts after ``super().__init__(config)`` and writes `posterior`. ``reader`` is what lets
    targets read the context themselves: attention, convolutions, or nothing.
    """

    config: ModelConfig

    def __init__(self, config: ModelConfig, paths: int = 1) -> None:
        super().__init__()
        self.config = config
        self.encoder = set_encoder(config, paths)
        self.task_norm = TaskNorm(self.encoder.size) if config.encoder.task_norm else None
        self.reader: Reader | None = None

    @abstractmethod
    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> Posterior:
        """The posterior of a set representation; `read` gives features of targets that read the context."""

    def posteriors(
        self, *representations: Float[Tensor, "task r"], read: Features | None = None
    ) -> tuple[Posterior, ...]:
        """The posteriors of several sets of each task, whose targets all read the same context."""
        return tuple(self.posterior(representation, read) for representation in representations)

    def posterior_given(self, points: PointSet, generator: torch.Generator | None = None) -> Posterior:
        """Encode, aggregate, and make the posterior."""
        (representation,) = self.represent(self.encoder.encode(points), points.mask)
        return self.posterior(representation, self.read(points))

    def adapt_both(self, tasks: TaskBatch) -> tuple[Posterior, Posterior]:
        """(q(φ | D_C), q(φ | D)): every point is encoded once and serves both; targets read the context alone."""
        sets = self.represent(self.encoder.encode(tasks.whole), tasks.is_context, tasks.mask)
        context, whole = self.posteriors(*sets, read=self.read(tasks.context))
        return context, whole

    def scored(self, tasks: TaskBatch) -> PointSet:
        """The whole task, or the targets alone where the configuration says so.

        Targets alone teach what a new observation would be. A context's own outputs are known to the model: scored too,
        they teach it that a second observation at the same x repeats the first.
        """
        return tasks.whole if self.config.likelihood.scored == "task" else tasks.target.compact()

    def read(self, context: PointSet) -> Features | None:
        """Features of targets that read the context; None if they see r alone."""
        return None if self.reader is None else self.reader.read(context)

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

    @property
    def remembers(self) -> bool:
        """Whether sums over a context's points determine the posterior, so that points can be added and removed."""
        return self.encoder.from_sums and self.reader is None

    def posterior_from_bytes(self, data: bytes) -> Posterior:
        """The posterior of this model whose ``to_bytes`` gave these bytes."""
        from nvdp.models.state import posterior_from_bytes

        return posterior_from_bytes(self, data)

    def check(self, points: PointSet) -> None:
        """Refuse other widths of x and y than the model's."""
        for name, width, expected in (
            ("x", points.x.shape[-1], self.config.x_dim),
            ("y", points.y.shape[-1], self.config.y_dim),
        ):
            if width != expected:
                raise InputError(f"{name} has {width} features; this {self.config.name} model takes {expected}")

    def _adapted(self, points: PointSet, copy: bool, single: bool) -> Posterior:
        posterior = self.posterior_given(points)
        if self.remembers:
            posterior.memory = partial(self._memory, points.copy() if copy else points, single)
        return posterior

    def _memory(self, points: PointSet, single: bool) -> Memory:
        from nvdp.models.state import TaskState  # which knows models

        return replace(TaskState.of(self, points), single=single)


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
        x_scale=config.inputs.seen_x,
        y_scale=config.inputs.seen_y,
    )


class Classifier(MetaModel[ClassPrediction]):
    """A model that reads a support set of labelled points.

    Points pass ``embed`` first; ``posterior_given`` and everything it returns work on what comes out of it, so that all
    images of a training step go through the extractor once and together. ``adapt`` joins both. ``statistics`` says what
    batch norm uses outside training; it starts as configured and may be changed.
    """

    config: ClassifierConfig
    known_statistics: ClassVar[tuple[str, ...]] = STATISTICS  # the first is the default

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.statistics = config.extractor.statistics or self.known_statistics[0]

    @property
    def statistics(self) -> str:
        """What batch norm uses outside training."""
        return self._statistics

    @statistics.setter
    def statistics(self, name: str) -> None:
        check_statistics(name, self.known_statistics)
        self._statistics = name

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """What the classifier sees of each point."""
        return x

    def embedded(self, tasks: TaskBatch) -> TaskBatch:
        """The same tasks with every real point embedded, all in one batch."""
        tasks = super().embedded(tasks)
        if tasks.mask.all():
            return replace(tasks, x=self.embed(tasks.x))
        batches = zip(tasks.x, tasks.mask, strict=True) if self._task_by_task else [(tasks.x, tasks.mask)]
        real = torch.cat([self.embed(x[mask][None])[0] for x, mask in batches])
        x = real.new_zeros(*tasks.mask.shape, real.shape[-1])
        return replace(tasks, x=x.index_put((tasks.mask,), real))

    def scored(self, tasks: TaskBatch) -> PointSet:
        """The queries, without entries that are a query of no task.

        The support's own likelihood is left out: q was made from these very images, in a one-shot task from one image
        a class, and knowing an image again says little about the class.
        """
        return tasks.target.compact()

    def check(self, points: PointSet) -> None:
        """Refuse another width of x, labels that are not one-hot, and classes without a point."""
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

    @property
    def _task_by_task(self) -> bool:
        return self.statistics == "batch" and not self.training

    def _point_set(self, x: Any, y: Any, mask: Tensor | None) -> PointSet:
        return PointSet.of(x, one_hot(y), mask)

    def _adapted(self, points: PointSet, copy: bool, single: bool) -> Posterior[ClassPrediction]:
        posterior = self.posterior_given(replace(points, x=self.embed(points.x)))
        posterior.embed, posterior.x_dim = self.embed, self.config.x_dim
        return posterior


class FeatureClassifier(Classifier):
    """A classifier on features: the extractor's, or x itself where the features are made beforehand."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        part = config.extractor
        shape = {name: getattr(part, name) for name in ("last_relu", "views", "size", "components")}
        self.extractor = None if part.name == "none" else ConvExtractor(part.name, part.channels, **shape)

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of every point; with statistics of the batch, outside training, each task is a batch."""
        part = self.config.extractor
        features = x if self.extractor is None else self._extracted(self.extractor, x)
        normalise = part.normalise if self.extractor is None else part.normalise_own
        return F.layer_norm(features, features.shape[-1:]) if normalise else features

    def _extracted(
        self, extractor: ConvExtractor, x: Float[Tensor, "task point x"]
    ) -> Float[Tensor, "task point feature"]:
        shape = self.config.extractor
        images = x.unflatten(-1, (shape.channels, shape.size, shape.size))
        if self._task_by_task:
            return torch.stack([extractor(task, "batch") for task in images])
        return extractor(images.flatten(0, 1), "running").unflatten(0, x.shape[:2])


def class_means(features: Float[Tensor, "task point feature"], points: PointSet) -> Float[Tensor, "task way feature"]:
    """The mean of the features of each class; zeros for a class without points."""
    members = (points.y * points.mask[..., None]).mT  # (task, way, point)
    return (members / members.sum(-1, keepdim=True).clamp(min=1)) @ features


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
