"""Dropout rates of a class from its own activations: inputs that the class activates are kept (eq. 2 and 3).

The row logits get a skip connection, a = g(r) − gain ∘ z. Here z are the activations of the class mean at the layer's
inputs, standardised to mean 0 and standard deviation 1, or scaled by one factor for all classes of a task, which keeps
how they differ. Rates are still the product of experts of eq. 3 and still a function of the class representation alone.

With g near zero, first weights [Q, −Q] of orthonormal Q and equal last weights, every pair of hidden units adds
s(z)·relu(u) + s(−z)·relu(−u) = |u|/2 + (s(z) − ½) u, so that the logit of a class is, up to what all classes share and
the curvature of s, the product of its mean with the query: training starts from a nearest-mean classifier.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.nn.dropout import DropoutLinear, DropoutNetwork
from nvdp.nn.rates import NetworkRates, RateNetwork

GAINS = (1.0, 2.0)  # initial gains of the first and the last layer's inputs
NETWORK_SHARE = 0.1  # factor on the usual initial weights of the meta-network's heads
COLUMNS_START = 3.0  # initial logits of the column experts: near a rate of 1, so that the rows decide
LAYERS_START = (-1.0, 3.0)  # the first layer drops little: its noise reaches all hidden units
SMALLEST_SQUARE = 1e-12  # of activations: classes that are all alike stay at 0
LAST_WEIGHT = 0.2  # logits of classes some units apart: neither certain nor chance


def standardised(activations: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k"]:
    """Every vector with mean 0 and standard deviation 1.

    >>> standardised(torch.tensor([[1.0, 3.0]])).round(decimals=3)
    tensor([[-1.,  1.]])
    """
    return F.layer_norm(activations, activations.shape[-1:])


def scaled_by_task(activations: Float[Tensor, "task way k"]) -> Float[Tensor, "task way k"]:
    """One factor for each task, so that the mean square over the vectors of its classes is 1.

    >>> scaled_by_task(torch.tensor([[[0.0, 2.0], [2.0, 0.0]]]))[0].round(decimals=3)
    tensor([[0.0000, 1.4140],
            [1.4140, 0.0000]])
    """
    return activations * torch.rsqrt(activations.square().mean((-2, -1), keepdim=True) + SMALLEST_SQUARE)


class ActivationRates(RateNetwork):
    """The rate network of a classifier with one hidden layer, with a learned gain for each of its inputs.

    It takes the settings of :class:`~nvdp.nn.rates.RateNetwork`.
    """

    def __init__(self, representation: int, layer_shapes: Sequence[tuple[int, int]], **settings: Any) -> None:
        super().__init__(representation, layer_shapes, **settings)
        self.row_gains = nn.ParameterList(
            nn.Parameter(torch.full((k,), gain)) for (k, _), gain in zip(layer_shapes, GAINS, strict=True)
        )
        with torch.no_grad():
            for head, (k, _), start in zip(self.heads, layer_shapes, LAYERS_START, strict=True):
                assert isinstance(head, nn.Linear)
                head.weight.mul_(NETWORK_SHARE)
                head.bias[:k], head.bias[k:-1], head.bias[-1] = 0.0, COLUMNS_START, start

    def of_class(
        self,
        representation: Float[Tensor, "task way r"],
        first: DropoutLinear,
        inputs: Float[Tensor, "task way k"],
        scale: Callable[[Tensor], Tensor] = standardised,
    ) -> NetworkRates:
        """Rates from the representation of a class and the inputs of the network's first layer at the class mean.

        `scale` brings the activations of a task's classes to the size that the gains expect.
        """
        seen = zip(self.hidden(representation.flatten(0, 1)), (inputs, inputs @ first.weight), strict=True)
        logits = [self._with_activations(index, h, scale(z).flatten(0, 1)) for index, (h, z) in enumerate(seen)]
        return self.of_logits(logits)[0]

    def _with_activations(self, index: int, h: Tensor, z: Float[Tensor, "row k"]) -> Float[Tensor, "row logit"]:
        logits = self._logits(index, h, 1)
        # a = g(r) − gain ∘ z; b and c come from g alone
        return logits - F.pad(self.row_gains[index] * z, (0, logits.shape[-1] - z.shape[-1]))


def start_from_nearest_mean(network: DropoutNetwork) -> None:
    """Give a network with one hidden layer the first weights [Q, −Q] and equal last weights.

    >>> network = DropoutNetwork([4, 8, 1], "relu")
    >>> start_from_nearest_mean(network)
    >>> first, last = network.dropout_layers()
    >>> products = first.weight @ first.weight.mT
    >>> torch.allclose(products, 2 * torch.eye(4), atol=1e-5)
    True
    """
    first, last = network.dropout_layers()
    if first.weight.is_meta:  # shapes alone: for these, PyTorch would import its compiler
        return
    inputs, width = first.shape
    half = width // 2
    with torch.no_grad():
        # Keeps the size of a unit's pre-activation, whatever the number of units.
        q = nn.init.orthogonal_(first.weight.new_empty(inputs, half)) * math.sqrt(max(1.0, half / inputs))
        first.weight[:, : 2 * half] = torch.cat([q, -q], dim=1)
        last.weight.fill_(LAST_WEIGHT)
        for layer in (first, last):
            layer.bias.zero_()
