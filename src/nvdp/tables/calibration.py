"""Calibration on held-out tasks: factors of the predictive deviation.

The factors make the 90 % intervals of held-out tasks cover 90 % of their outputs, by groups of context sizes (split
conformal prediction with a relative score). Few tasks say little, so factors are drawn towards 1.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.adjusted import Adjustment
from nvdp.tasks import TaskBatch

SIZES = (2, 5, 10)  # upper ends of groups of context sizes
DOUBT, DOUBT_OF_GROUP = 30, 60  # tasks that count as much as the belief that a factor is 1, or that of all sizes
LARGEST_FACTOR = 3.0
LEVEL, MOST_LEVEL = 0.9, 0.98


@torch.no_grad()
def adjusted(model: Any, process: HierarchicalGP | None, batches: Sequence[TaskBatch], tasks: int) -> Adjustment:
    """Find the factors that suit held-out tasks.

    Args:
        model: A trained network, on standardised values.
        process: The process whose residuals it predicts, if there is one.
        batches: Held-out tasks, each with several contexts.
        tasks: How many different tasks they are.

    Returns:
        The adjustment.
    """
    adjustment = Adjustment(process)
    ratios, shares, counts = [], [], []
    for batch in batches:
        prediction = adjustment.adapt(model, batch.context).predict(batch.x)
        half = (prediction.quantile(0.5 + LEVEL / 2) - prediction.quantile(0.5 - LEVEL / 2)) / 2
        target = _known(batch)
        ratios.append(((batch.y - prediction.mean).abs() / half)[target])
        shares.append((target / target.sum((1, 2), keepdim=True))[target])
        counts.append(batch.is_context.sum(1)[:, None, None].expand(target.shape)[target])
    ratio, share, count = torch.cat(ratios), torch.cat(shares), torch.cat(counts)
    level = min(MOST_LEVEL, LEVEL * (1 + 1 / tasks))  # few tasks: the quantile of new ones may be larger
    all_sizes = tasks / (tasks + DOUBT) * math.log(_quantile(ratio, share, level))
    factors = []
    for group in range(len(SIZES) + 1):
        inside = torch.bucketize(count, torch.tensor(SIZES)) == group
        trust = tasks / (tasks + DOUBT_OF_GROUP) if inside.any() else 0.0
        own = math.log(_quantile(ratio[inside], share[inside], level)) if inside.any() else 0.0
        factors.append(math.exp(trust * own + (1 - trust) * all_sizes))
    return Adjustment(process, SIZES, tuple(factors))


def _known(batch: TaskBatch) -> Bool[Tensor, "task point y"]:
    """The outputs of targets."""
    return batch.target.mask[..., None].expand(batch.y.shape)


def _quantile(values: Float[Tensor, " value"], shares: Float[Tensor, " value"], level: float) -> float:
    """The value below which `level` of the shares lie, within reason."""
    order = values.argsort()
    reached = shares[order].cumsum(0) >= level * float(shares.sum())
    value = float(values[order][reached][0]) if reached.any() else float(values.max())
    return min(LARGEST_FACTOR, max(1 / LARGEST_FACTOR, value))
