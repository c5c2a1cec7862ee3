"""Episodes: N-way K-shot tasks of a few classes, a support set to adapt to and queries to classify (section 5.3).

Classes of an episode are drawn without replacement, and so are the images of a class: no query is in the support set.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nvdp.data.class_pools import ClassPool, ClassSource, FolderClasses
from nvdp.data.features import CachedFeatures
from nvdp.data.public.miniimagenet import MINIIMAGENET, MiniImageNetClasses
from nvdp.data.public.omniglot import OMNIGLOT, OmniglotClasses
from nvdp.data.source import NO_DATA, VALIDATION_CHUNK, DataConfig
from nvdp.errors import InputError, unknown_name
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

REGIMES = ("end-to-end", "features", "fine-tuned", "joined")


@dataclass(frozen=True)
class EpisodeConfig:
    """The shape of episodes, and whether they show images or the features of a pretrained extractor."""

    way: int = 5  # classes of an episode
    shot: int = 1  # support images of a class
    queries: int = 15  # of a class
    # "end-to-end"; "features"; "fine-tuned": end to end, beginning with the convolutions of a pretrained extractor;
    # "joined": trained on features, then joined with their extractor
    regime: str = "end-to-end"
    features: str | None = None  # folders of `nvdp pretrain`, or names in the cache, with commas between them

    def __post_init__(self) -> None:
        for name, least in (("way", 2), ("shot", 1), ("queries", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"episode setting '{name}' is {value!r}; expected a whole number of at least {least}")
        if self.regime not in REGIMES:
            raise InputError(f"episode setting 'regime' is '{self.regime}'; expected {' or '.join(REGIMES)}")
        if (self.regime == "features") != (self.features is not None):
            raise InputError(
                f"regime '{self.regime}' with features {self.features!r}: "
                "the regime features needs --features DIR, and no other takes it"
            )


def check_pool(pool: ClassPool, episodes: EpisodeConfig, place: str) -> None:
    """Refuse classes that such episodes cannot be drawn from."""
    if episodes.way > pool.classes:
        raise InputError(f"{place} has {pool.classes} classes; {episodes.way}-way needs {episodes.way}")
    needed = episodes.shot + episodes.queries
    few = int(pool.counts.argmin())
    if pool.counts[few] < needed:
        raise InputError(
            f"class '{pool.name(few)}' has {pool.counts[few]} images; "
            f"{episodes.shot}-shot with {episodes.queries} queries needs {needed}"
        )


def draw_episodes(pool: ClassPool, episodes: EpisodeConfig, tasks: int, generator: torch.Generator) -> TaskBatch:
    """Episodes as tasks: the support images class by class, then the queries class by class; y is one-hot.

    >>> import numpy as np
    >>> pool = ClassPool(np.zeros((60, 2, 2, 1), np.uint8), np.full(6, 10), tuple("abcdef"))
    >>> batch = draw_episodes(pool, EpisodeConfig(way=3, shot=2, queries=4), 8, torch.Generator().manual_seed(0))
    >>> batch.x.shape, batch.y[0].sum(0).tolist(), batch.is_context[0].sum().item()
    (torch.Size([8, 18, 4]), [6.0, 6.0, 6.0], 6)
    """
    way, shot, each = episodes.way, episodes.shot, episodes.shot + episodes.queries
    classes = _without_replacement(torch.ones(tasks, pool.classes, dtype=torch.bool), way, generator)  # (task, way)
    counts = torch.from_numpy(pool.class_counts)[classes]
    there = torch.arange(int(counts.max())) < counts[..., None]
    places = _without_replacement(there, each, generator)  # (task, way, image)
    x = pool.vectors(classes.numpy(), places.numpy())  # (task, way, image, feature)
    y = torch.eye(way).expand(tasks, way, way)[:, :, None].expand(-1, -1, each, -1)
    support, query = (
        [part.reshape(tasks, -1, part.shape[-1]) for part in (x[:, :, s], y[:, :, s])]
        for s in (slice(shot), slice(shot, each))
    )
    x, y = (torch.cat(parts, dim=1) for parts in zip(support, query, strict=True))
    return TaskBatch.first_points_as_context(x, y, way * shot)


def _without_replacement(there: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different places of those that are there, uniformly, in random order."""
    keys = torch.rand(there.shape, generator=generator).masked_fill_(~there, -1.0)
    return keys.topk(count, dim=-1).indices


@dataclass(frozen=True)
class EpisodeTasks:
    """Episodes of a source of classes; `scored` is the split that validation episodes come from."""

    source: ClassSource
    episodes: EpisodeConfig = EpisodeConfig()
    scored: str = "test"

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.source.name

    @property
    def x_dim(self) -> int:
        """Numbers of an image, or of its features."""
        return self.source.features

    @property
    def y_dim(self) -> int:
        """The way."""
        return self.episodes.way

    def training_batch(self, seed: int, step: int, tasks: int) -> TaskBatch:
        """Episodes of the training classes."""
        return self._draw("train", tasks, derived_generator(seed, self.name, "train", step))

    def validation_chunk(self, seed: int, chunk: int) -> TaskBatch:
        """Episodes of the scored split; the classes do not depend on the regime or the shot."""
        return self._draw(self.scored, VALIDATION_CHUNK, derived_generator(seed, self.name, self.scored, chunk))

    def _draw(self, split: str, tasks: int, generator: torch.Generator) -> TaskBatch:
        pool = self.source.split(split)
        check_pool(pool, self.episodes, f"the {split} split of {self.name}")
        return draw_episodes(pool, self.episodes, tasks, generator)


PUBLIC_CLASS_SETS = {"omniglot-fewshot": OMNIGLOT, "miniimagenet": MINIIMAGENET}  # the files behind a task
FEWSHOT_TASKS = ("omniglot-fewshot", "miniimagenet", "folder-of-classes")


def class_source(name: str, data: DataConfig = NO_DATA) -> ClassSource:
    """The classes behind a task of that name; no file is read before it is asked for classes.

    >>> class_source("omniglot-fewshot").size, class_source("miniimagenet").channels
    (28, 3)
    """
    if name == "omniglot-fewshot":
        return OmniglotClasses()
    if name == "miniimagenet":
        return MiniImageNetClasses()
    if name == "folder-of-classes":
        return FolderClasses(data)
    raise unknown_name("task of classification", name, FEWSHOT_TASKS)


def episode_tasks(name: str, data: DataConfig, scored: str, episodes: EpisodeConfig | None) -> EpisodeTasks:
    """Episodes of a task of that name, 5-way 1-shot unless said otherwise."""
    episodes = episodes or EpisodeConfig()
    return EpisodeTasks(episode_source(name, data, episodes), episodes, scored)


def episode_source(name: str, data: DataConfig, episodes: EpisodeConfig) -> ClassSource:
    """The classes that episodes show: as images, or as features."""
    source = class_source(name, data)
    return source if episodes.features is None else CachedFeatures(source, episodes.features)
