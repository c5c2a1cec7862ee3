"""A prediction of classes: their probabilities at every point, averaged over sampled classifiers."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from nvdp.errors import InputError


def entropy_of(log_probabilities: Float[Tensor, "*batch way"]) -> Float[Tensor, "*batch"]:
    """−Σ p log p in nats.

    >>> entropy_of(torch.tensor([0.5, 0.5]).log()).item()
    0.69314...
    """
    return -torch.special.xlogy(log_probabilities.exp(), log_probabilities.exp()).sum(-1)


@dataclass(frozen=True)
class ClassPrediction:
    """log p(class | x, φ) under every sampled classifier; one if mean parameters were used.

    >>> two = ClassPrediction(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log())
    >>> two.probabilities, two.top_class, round(two.log_prob([0]).exp().item(), 4)
    (tensor([[0.7000, 0.3000]]), tensor([0]), 0.7)
    """

    by_sample: Float[Tensor, "sample *task point way"]

    @property
    def log_probabilities(self) -> Float[Tensor, "*task point way"]:
        """log E_q[p(class | x, φ)]: probabilities are averaged, not their logarithms."""
        return torch.logsumexp(self.by_sample, dim=0) - math.log(len(self.by_sample))

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
        """The part that comes from not knowing φ: the mutual information of class and φ, zero for a point."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def log_prob(self, y: Any) -> Float[Tensor, "*task point"]:
        """log of the averaged probability of a class at every point, given by its number or one-hot."""
        probabilities, y = self.log_probabilities, torch.as_tensor(y).to(self.by_sample.device)
        if y.shape == probabilities.shape[:-1] and not y.is_floating_point():
            if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < probabilities.shape[-1]:
                raise InputError(
                    f"class numbers go from {int(y.min())} to {int(y.max())}; "
                    f"expected 0 to {probabilities.shape[-1] - 1}"
                )
            y = F.one_hot(y.long(), probabilities.shape[-1])
        if y.shape != probabilities.shape:
            raise InputError(f"y has shape {tuple(y.shape)}; the prediction has {tuple(probabilities.shape)}")
        return probabilities.masked_fill(y == 0, 0).sum(-1)
