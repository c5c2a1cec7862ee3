"""Exact GPs, scored beside a model on the same tasks: one that knows each task's kernel, and one that infers it.

The first is the ceiling of all GP results. The second (`nvdp.evaluation.inferred`) is what a model can attain.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import NOISE, GPTaskBatch
from nvdp.evaluation.inferred import InferredGP
from nvdp.evaluation.metrics import OF_FUNCTIONS, RegressionScores, RunningCorrelation, known
from nvdp.models.config import ModelConfig
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import TaskBatch

INFERRED_TASKS = 64  # of those that are scored


def smallest_std(config: ModelConfig) -> float:
    """The smallest σ that a model can give an observation: 1 where it is fixed."""
    return 1.0 if config.likelihood.variance == "fixed" else config.likelihood.min_std


class OracleScores:
    """Scores of exact posteriors on a model's tasks, under the model's own limits on σ.

    It also correlates, over all points, the spread of the model's functions with the exact posterior's standard
    deviation.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.scores, self.correlation = RegressionScores(), RunningCorrelation()
        self.inferred, self._left = RegressionScores(), INFERRED_TASKS
        self._config = config

    def watch(self, tasks: TaskBatch, spread: Float[Tensor, "task point y"]) -> None:
        """Take in a batch and the spread of the model's functions there; tasks without a kernel are passed over."""
        if not isinstance(tasks, GPTaskBatch):
            return
        exact = tasks.oracle()
        fixed = self._config.likelihood.variance == "fixed"
        std = torch.ones_like(exact.stds) if fixed else exact.stds.clamp(min=self._config.likelihood.min_std)
        log_prob = Prediction(exact.functions, std).log_prob(tasks.y.double())
        self.scores.add_log_likelihoods("oracle", log_prob, tasks)
        noise = smallest_std(self._config)
        of_mean = Prediction(exact.functions, torch.full_like(exact.stds, noise)).log_prob(tasks.y.double())
        variance = (exact.stds[0].square() - NOISE**2).clamp(min=0)  # of functions
        self.scores.add_log_likelihoods(OF_FUNCTIONS, of_mean - variance / (2 * noise**2), tasks)
        self.correlation.add(exact.std[tasks.mask], spread.cpu()[tasks.mask])
        if self._left > 0:
            some = tasks.first(self._left)
            self._left -= len(some)
            unknown = InferredGP(smallest_std(self._config)).log_prob(some)
            self.inferred.add_log_likelihoods("loss", log_prob[: len(some)] - unknown[..., None], some)

    def result(self) -> dict[str, Any]:
        """LL, RLL and PLL of the GP that knows and of the one that infers, and the correlation.

        Of the GP that knows also E log p over its functions, with the smallest σ that the model can give. Nothing if no
        task had a kernel. What inferring costs is measured on some of the tasks and taken off the score of the GP that
        knows, which is of all of them.
        """
        if not self.scores.moments:
            return {}
        scores = self.scores.scores()
        oracle = {name: row["oracle"] for name, row in scores.items()}
        loss = {name: row["loss"] for name, row in self.inferred.scores().items()}
        return {
            "oracle": oracle,
            f"oracle_{OF_FUNCTIONS}": {name: row[OF_FUNCTIONS] for name, row in scores.items()},
            "attainable": {name: value - loss[name] for name, value in oracle.items()},
            "spread_follows_oracle": known(self.correlation.value),
        }
