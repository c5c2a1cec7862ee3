"""Predictions of outputs that a model knows by their logarithms: mixtures of log-normal distributions."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nvdp.posteriors.prediction import Prediction, mixture_log_prob


@dataclass(frozen=True)
class LogPrediction(Prediction):
    """A prediction in the user's units; `inner` is the one of logarithms, `logs` says which outputs they are of.

    ``functions`` are medians of the components and ``stds`` their standard deviations. The mean of a log-normal
    distribution is larger than its median.

    >>> inner = Prediction(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    >>> prediction = LogPrediction.of(inner, torch.tensor([True]))
    >>> prediction.quantile(0.5).item(), round(prediction.mean.item(), 4)
    (1.0, 1.6487)
    >>> two = torch.full((1, 1), 2.0)
    >>> bool(torch.isclose(prediction.log_prob(two), torch.distributions.LogNormal(0.0, 1.0).log_prob(two)))
    True
    """

    inner: Prediction | None = None
    logs: Bool[Tensor, " y"] | None = None

    @classmethod
    def of(cls, inner: Prediction, logs: Bool[Tensor, " y"]) -> "LogPrediction":
        """The prediction of exp(value) where `logs` is true, of the value elsewhere."""
        functions, variance = inner.functions, inner.stds.square()
        std = (functions + variance / 2).exp() * torch.expm1(variance).sqrt()
        functions, stds = torch.where(logs, functions.exp(), functions), torch.where(logs, std, inner.stds)
        return cls(functions, stds, inner.coherent, inner.log_weights, inner.noise, inner, logs)

    @property
    def _parts(self) -> tuple[Prediction, Bool[Tensor, " y"]]:
        assert self.inner is not None
        assert self.logs is not None
        return self.inner, self.logs

    @property
    def _means(self) -> Float[Tensor, "component *task point y"]:
        inner, logs = self._parts
        return torch.where(logs, (inner.functions + inner.stds.square() / 2).exp(), inner.functions)

    @property
    def mean(self) -> Float[Tensor, "*task point y"]:
        """Predictive mean."""
        return self.average(self._means)

    @property
    def std(self) -> Float[Tensor, "*task point y"]:
        """Predictive standard deviation."""
        return (self.average(self.stds.square()) + self.average((self._means - self.mean).square())).sqrt()

    def component_log_prob(self, y: Any) -> Float[Tensor, "component *task point y"]:
        """The log-density of each component, for a y at every point; −∞ where y is not positive."""
        inner, logs = self._parts
        y = self._values(y)
        log = torch.where(logs, y.clamp(min=torch.finfo(y.dtype).tiny).log(), y)
        density = inner.component_log_prob(log) - torch.where(logs, log, 0.0)
        return torch.where(logs & (y <= 0), -torch.inf, density)

    def log_prob(self, y: Any) -> Float[Tensor, "*task point y"]:
        """log p(y | x) under the mixture, for a y at every point."""
        return mixture_log_prob(self.component_log_prob(y), self.log_weights)

    def cdf(self, y: Any) -> Float[Tensor, "*task point y"]:
        """P(Y ≤ y) under the mixture, for a y at every point."""
        inner, logs = self._parts
        y = self._values(y)
        below = inner.cdf(torch.where(logs, y.clamp(min=torch.finfo(y.dtype).tiny).log(), y))
        return torch.where(logs & (y <= 0), 0.0, below)

    def quantile(self, level: float) -> Float[Tensor, "*task point y"]:
        """The value below which `level` of the predictive mass lies."""
        inner, logs = self._parts
        found = inner.quantile(level)
        return torch.where(logs, found.exp(), found)

    def sample(self, generator: torch.Generator | int = 0) -> Float[Tensor, "sample *task point y"]:
        """One noisy observation of each sampled function at every point, drawn from a generator or a seed."""
        inner, logs = self._parts
        drawn = inner.sample(generator)
        return torch.where(logs, drawn.exp(), drawn)
