"""What every few-shot classifier answers: ``adapt(support) -> ClassPosterior``, and the parts they share."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.class_posteriors import ClassPosterior
from nvdp.errors import InputError
from nvdp.models.fewshot_config import FewShotConfig
from nvdp.nn.conv import ConvExtractor, check_statistics
from nvdp.tasks import PointSet, TaskBatch


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

    def __init__(self, config: FewShotConfig) -> None:
        super().__init__()
        self.config = config
        self._statistics = str(config.statistics)

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
    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> ClassPosterior:
        """The posterior given embedded support points; `generator` is for models that adapt under noise."""

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> ClassPosterior:
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

    def adapt_both(self, tasks: TaskBatch) -> tuple[ClassPosterior, ClassPosterior]:
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

    def __init__(self, config: FewShotConfig) -> None:
        super().__init__(config)
        self.extractor = None if config.extractor == "none" else ConvExtractor(config.extractor, config.channels)

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of every point; with statistics of the batch, outside training, each task is a batch."""
        if self.extractor is None:
            return F.layer_norm(x, x.shape[-1:]) if self.config.normalise else x
        images = x.unflatten(-1, (self.config.channels, self.config.size, self.config.size))
        if self._task_by_task:
            return torch.stack([self.extractor(task, "batch") for task in images])
        return self.extractor(images.flatten(0, 1), "running").unflatten(0, x.shape[:2])
