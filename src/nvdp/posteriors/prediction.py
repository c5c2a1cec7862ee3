"""Predictions: at every point a mixture of Gaussians (regression) or of class probabilities (classification)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.special import ndtr, ndtri

from nvdp.errors import InputError
from nvdp.nn.likelihoods import CategoricalLikelihood, Likelihood, gaussian_log_prob
from nvdp.tasks import as_tensor

BISECTIONS = 40
HALF = (torch.bfloat16, torch.float16)  # precisions without ndtr and ndtri


@dataclass(frozen=True)
class Mixture:
    """A mixture at every point: means and standard deviations of its components.

    ``coherent`` says whether a component is one function of x. Those of a closed form are not: they describe every
    point by itself. Components count alike, unless ``log_weights`` says how much each does.
    """

    functions: Float[Tensor, "component *task point y"]
    stds: Float[Tensor, "component *task point y"]
    coherent: bool = True
    log_weights: Float[Tensor, "component *#task #point #y"] | None = None  # normalised; each axis may be 1

    @property
    def mean(self) -> Float[Tensor, "*task point y"]:
        """Predictive mean."""
        return _copy(self.functions[0]) if len(self.functions) == 1 else self.average(self.functions)

    def average(self, values: Float[Tensor, "component *task point y"]) -> Float[Tensor, "*task point y"]:
        """The mean over the components of something that each of them has."""
        return values.mean(0) if self.log_weights is None else (self.log_weights.to(values).exp() * values).sum(0)

    @property
    def std(self) -> Float[Tensor, "*task point y"]:
        """Predictive standard deviation: noise and the difference of the components together."""
        if len(self.functions) == 1:
            return _copy(self.stds[0])
        if self.log_weights is None:
            return (self.stds.square().mean(0) + self.functions.var(0, correction=0)).sqrt()
        return (self.average(self.stds.square()) + self.average((self.functions - self.mean).square())).sqrt()

    @property
    def spread(self) -> Float[Tensor, "*task point y"]:
        """Standard deviation across the components' means; of sampled functions, zero if the posterior collapsed."""
        if self.log_weights is None:
            return self.functions.std(0, correction=0)
        return self.average((self.functions - self.mean).square()).sqrt()


def mixture_log_prob(
    log_prob: Float[Tensor, "component *task point"], log_weights: Tensor | None = None
) -> Float[Tensor, "*task point"]:
    """log of the mean of the components' densities.

    >>> mixture_log_prob(torch.tensor([[0.2], [0.4]]).log()).exp()
    tensor([0.3000])
    """
    if len(log_prob) == 1:
        return log_prob[0]
    if log_weights is not None:
        return torch.logsumexp(log_prob + log_weights.to(log_prob), dim=0)
    return torch.logsumexp(log_prob, dim=0) - math.log(len(log_prob))


@dataclass(frozen=True)
class Prediction(Mixture):
    """A mixture of Gaussians for every output at every point.

    >>> p = Prediction(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    >>> p.mean.shape, p.std.shape, round(p.quantile(0.95)[0].item(), 3)
    (torch.Size([3, 1]), torch.Size([3, 1]), 1.645)
    """

    noise: int = 1  # components that describe the noise of one φ: (noise · φ) components, those of one φ a stride apart

    def log_prob(self, y: Any) -> Float[Tensor, "*task point y"]:
        """log p(y | x) under the mixture, for a y at every point."""
        return mixture_log_prob(self.component_log_prob(y), self.log_weights)

    def component_log_prob(self, y: Any) -> Float[Tensor, "component *task point y"]:
        """The log-density of each component, for a y at every point."""
        return gaussian_log_prob(self._values(y), self.functions, self.stds)

    def log_prob_by_sample(self, y: Any) -> Float[Tensor, "sample *task point y"]:
        """log p(y | x, φ) of each φ, whose noise may be several components, for a y at every point.

        >>> p = Prediction(torch.zeros(6, 3, 1), torch.ones(6, 3, 1), noise=2)
        >>> p.log_prob_by_sample(torch.zeros(3, 1)).shape
        torch.Size([3, 3, 1])
        """
        return mixture_log_prob(self.component_log_prob(y).unflatten(0, (self.noise, -1)))

    def cdf(self, y: Any) -> Float[Tensor, "*task point y"]:
        """P(Y ≤ y) under the mixture, for a y at every point."""
        standardised = (self._values(y) - self.functions) / self.stds
        if self.stds.dtype in HALF:
            return self.average(ndtr(standardised.float())).to(self.stds.dtype)
        return self.average(ndtr(standardised))

    def _values(self, y: Any) -> Float[Tensor, "*task point y"]:
        y, expected = as_tensor(y, "y").to(self.functions), self.functions.shape[1:]
        if y.dim() == 1 and expected[-1] == 1:
            y = y[:, None]
        if y.shape != expected:
            raise InputError(f"y has shape {tuple(y.shape)}; the prediction has {tuple(expected)}")
        return y

    def quantile(self, level: float) -> Float[Tensor, "*task point y"]:
        """The value below which `level` of the predictive mass lies."""
        if not 0 < level < 1:
            raise InputError(f"the quantile's level is {level}; expected a number between 0 and 1")
        if self.stds.dtype in HALF:
            single = Prediction(self.functions.float(), self.stds.float(), self.coherent, self.log_weights)
            return single.quantile(level).to(self.stds.dtype)
        normal = self.functions + self.stds * ndtri(torch.tensor(level, dtype=self.stds.dtype))
        if len(normal) == 1:
            return normal[0]
        low, high = normal.amin(0), normal.amax(0)  # the mixture's quantile lies between its components'
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def scaled(self, centre: Sequence[float] | Tensor, spread: Sequence[float] | Tensor) -> "Prediction":
        """The prediction of centre + spread · y in float64; densities and quantiles go with it.

        Args:
            centre: A number for each output, or a tensor that is broadcast to (*task, point, y).
            spread: The same.

        >>> twice = Prediction(torch.ones(1, 3, 1), torch.ones(1, 3, 1)).scaled([10.0], [2.0])
        >>> twice.mean[0].item(), twice.std[0].item()
        (12.0, 2.0)
        """
        functions, stds = self.functions.double(), self.stds.double()
        shift, factor = (torch.as_tensor(v, dtype=functions.dtype, device=functions.device) for v in (centre, spread))
        moved = torch.addcmul(shift, functions, factor)
        return Prediction(moved, stds * factor, self.coherent, self.log_weights, self.noise)

    def sample(self, generator: torch.Generator | int = 0) -> Float[Tensor, "sample *task point y"]:
        """One noisy observation of each sampled function at every point, drawn from a generator or a seed."""
        if not isinstance(generator, torch.Generator):
            generator = torch.Generator(self.stds.device).manual_seed(generator)
        noise = torch.randn(self.functions.shape, generator=generator, dtype=self.stds.dtype, device=self.stds.device)
        return torch.addcmul(self.functions, self.stds, noise)


def _copy(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def entropy_of(log_probabilities: Float[Tensor, "*batch way"]) -> Float[Tensor, "*batch"]:
    """−Σ p log p in nats.

    >>> entropy_of(torch.tensor([0.5, 0.5]).log()).item()
    0.69314...
    """
    return -torch.special.xlogy(log_probabilities.exp(), log_probabilities.exp()).sum(-1)


class ClassPrediction(Mixture):
    """log p(class | x, φ) under every component: sampled classifiers, or those of a closed form.

    As a mixture it describes the one-hot label: its mean is the vector of probabilities p, its variance p(1−p).

    >>> two = ClassPrediction(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log())
    >>> two.probabilities, two.top_class, round(two.log_prob([0]).exp().item(), 4)
    (tensor([[0.7000, 0.3000]]), tensor([0]), 0.7)
    """

    def __init__(self, by_sample: Float[Tensor, "component *task point way"], coherent: bool = True) -> None:
        probabilities = by_sample.exp()
        super().__init__(probabilities, (probabilities * (1 - probabilities)).clamp(min=0).sqrt(), coherent)
        object.__setattr__(self, "by_sample", by_sample)

    by_sample: Float[Tensor, "component *task point way"]

    @property
    def log_probabilities(self) -> Float[Tensor, "*task point way"]:
        """log E_q[p(class | x, φ)]: probabilities are averaged, not their logarithms."""
        return mixture_log_prob(self.by_sample)

    @property
    def probabilities(self) -> Float[Tensor, "*task point way"]:
        """The probability of every class."""
        return self.log_probabilities.exp()

    @property
    def top_class(self) -> Int[Tensor, "*task point"]:
        """The most probable class."""
        return self.log_probabilities.argmax(-1)

    @property
    def confidence(self) -> Float[Tensor, "*task point"]:
        """The probability of the most probable class."""
        return self.probabilities.amax(-1)

    @property
    def entropy(self) -> Float[Tensor, "*task point"]:
        """Uncertainty of the class, in nats: of each classifier and of their disagreement together."""
        return entropy_of(self.log_probabilities)

    @property
    def expected_entropy(self) -> Float[Tensor, "*task point"]:
        """The part of the uncertainty that every single classifier has: E_q of its entropy."""
        return entropy_of(self.by_sample).mean(0)

    @property
    def disagreement(self) -> Float[Tensor, "*task point"]:
        """The part that comes from not knowing φ: the mutual information of class and φ; zero where φ is certain."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def log_prob(self, y: Any) -> Float[Tensor, "*task point"]:
        """log of the averaged probability of a class at every point, given by its number or one-hot."""
        return self._of_class(self.log_probabilities, y)

    def component_log_prob(self, y: Any) -> Float[Tensor, "component *task point"]:
        """The same under each component by itself."""
        return self._of_class(self.by_sample, y)

    def _of_class(self, log_probabilities: Float[Tensor, "*component point way"], y: Any) -> Tensor:
        expected, y = self.by_sample.shape[1:], torch.as_tensor(y).to(self.by_sample.device)
        if y.shape == expected[:-1] and not y.is_floating_point():
            if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < expected[-1]:
                raise InputError(
                    f"class numbers go from {int(y.min())} to {int(y.max())}; expected 0 to {expected[-1] - 1}"
                )
            y = F.one_hot(y.long(), expected[-1])
        if y.shape != expected:
            raise InputError(f"y has shape {tuple(y.shape)}; the prediction has {tuple(expected)}")
        return log_probabilities.masked_fill(y == 0, 0).sum(-1)


def prediction_of(
    likelihood: Likelihood, outputs: Float[Tensor, "component *task point output"], coherent: bool = True
) -> Prediction | ClassPrediction:
    """What a likelihood makes of network outputs."""
    if isinstance(likelihood, CategoricalLikelihood):
        return ClassPrediction(likelihood(outputs), coherent)
    if likelihood.components > 1 and not coherent:
        means, stds = likelihood.mixture(outputs)
        return Prediction(means.flatten(0, 1), stds.flatten(0, 1), coherent, noise=likelihood.components)
    mean, std = likelihood(outputs)
    return Prediction(mean, std, coherent)
