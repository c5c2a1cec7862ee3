"""What features are worth by themselves: the nearest class mean, by directions, in episodes of other classes."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.class_pools import ClassPool
from nvdp.data.episodes import EpisodeConfig, check_pool, draw_episodes
from nvdp.data.features import Extract, images_at_once
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch


def nearest_mean_hits(tasks: TaskBatch, features: Float[Tensor, "task point feature"]) -> Float[Tensor, " task"]:
    """The share of each task's queries whose features, at unit length, lie nearest to the mean of their own class.

    >>> y = torch.eye(2).repeat(2, 1)[None]
    >>> tasks = TaskBatch.first_points_as_context(torch.tensor([[[3.0, 0], [0, 1], [1, 0.1], [1, 0.9]]]), y, 2)
    >>> nearest_mean_hits(tasks, tasks.x)
    tensor([0.5000])
    """
    features = F.normalize(features, dim=-1)
    support = (tasks.y * tasks.is_context[..., None]).mT  # (task, way, point)
    means = support @ features / support.sum(-1, keepdim=True)
    nearest = torch.cdist(features, means).argmin(-1)
    hit = (nearest == tasks.y.argmax(-1)).float() * ~tasks.is_context
    return hit.sum(-1) / (~tasks.is_context).sum(-1)


def one_shot_episodes(pool: ClassPool) -> EpisodeConfig | None:
    """5-way 1-shot episodes with 15 queries, or nearly so of a small pool; None if it is too small."""
    way, queries = min(5, pool.classes), min(15, int(pool.counts.min(initial=16)) - 1)
    return EpisodeConfig(way, 1, queries) if way > 1 and queries > 0 else None


@torch.no_grad()
def nearest_mean_accuracy(pool: ClassPool, extract: Extract, episodes: EpisodeConfig, tasks: int = 100) -> float:
    """Accuracy on fixed episodes of a pool of images."""
    check_pool(pool, episodes, "the validation split")
    hits = []
    few = max(1, images_at_once(pool) // (episodes.way * (episodes.shot + episodes.queries)))
    for start in range(0, tasks, few):
        generator = derived_generator(0, "nearest class mean", start)
        batch = draw_episodes(pool, episodes, min(few, tasks - start), generator)
        features = extract(batch.x.flatten(0, 1)).float().cpu()
        hits.append(nearest_mean_hits(batch, features.unflatten(0, batch.x.shape[:2])))
    return torch.cat(hits).mean().item()
