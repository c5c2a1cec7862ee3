"""The exact GP posterior, scored beside a model on the same tasks: the ceiling of all GP results."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import GPTaskBatch
from nvdp.evaluation.metrics import RegressionScores, RunningCorrelation
from nvdp.models.config import ModelConfig
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import TaskBatch


class OracleScores:
    """Scores of the exact posterior with each task's true kernel, under the model's own limits on σ.

    It also correlates, over all points, the spread of the model's functions with the exact posterior's standard
    deviation.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.scores, self.correlation = RegressionScores(), RunningCorrelation()
        self._min_std, self._fixed = config.likelihood.min_std, config.likelihood.variance == "fixed"

    def watch(self, tasks: TaskBatch, spread: Float[Tensor, "task point y"]) -> None:
        """Take in a batch and the spread of the model's functions there; tasks without a kernel are passed over."""
        if not isinstance(tasks, GPTaskBatch):
            return
        exact = tasks.oracle()
        std = torch.ones_like(exact.stds) if self._fixed else exact.stds.clamp(min=self._min_std)
        log_prob = Prediction(exact.functions, std).log_prob(tasks.y.double())
        self.scores.add_log_likelihoods("oracle", log_prob, tasks)
        self.correlation.add(exact.std, spread)

    def result(self) -> dict[str, Any]:
        """The exact posterior's LL, RLL and PLL, and the correlation; nothing if no task had a kernel."""
        if not self.scores.moments:
            return {}
        correlation = self.correlation.value
        return {
            "oracle": {name: row["oracle"] for name, row in self.scores.scores().items()},
            "spread_follows_oracle": None if math.isnan(correlation) else correlation,
        }
