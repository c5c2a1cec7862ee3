"""Functions drawn once from a posterior, to be evaluated anywhere and as often as one likes, with gradients in x."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.nn.dropout_linear import DropoutLinear, SampledWeights
from nvdp.nn.rates import LayerRates
from nvdp.posteriors import DropoutPosterior, Posterior


class KeptWeights(SampledWeights):
    """φ of each layer drawn when the layer is first passed, and kept."""

    def __init__(self, samples: int, generator: torch.Generator | None = None) -> None:
        super().__init__(samples, generator)
        self._kept: dict[DropoutLinear, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "*sample task point k"], rates: LayerRates
    ) -> Float[Tensor, "sample task point d"]:
        """Pre-activations of each sampled function."""
        if layer not in self._kept:
            self._kept[layer] = self._draw(layer.weight, rates.weight()), self._draw(layer.bias, rates.bias())
        weight, bias = self._kept[layer]
        return inputs @ weight + bias.unsqueeze(-2)


class SampledFunctions:
    """Functions of a posterior; wherever they are evaluated, and however often, they are the same functions.

    Needs samples × tasks times the numbers of φ in memory: of a paper-sized NVDP half a megabyte each.

    >>> import nvdp
    >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
    >>> functions = SampledFunctions(posterior, samples=8)
    >>> both, one = functions(torch.tensor([[[0.5], [0.7]]]))[0], functions(torch.tensor([[[0.7]]]))[0]
    >>> both.shape, torch.allclose(both[:, :, 1:], one, atol=1e-6)
    (torch.Size([8, 1, 2, 1]), True)
    """

    def __init__(self, posterior: Posterior, samples: int, seed: int = 0) -> None:
        self._likelihood = posterior.likelihood
        self._outputs = _kept_outputs(posterior, samples, seed)

    def __call__(
        self, x: Float[Tensor, "task point x"]
    ) -> tuple[Float[Tensor, "sample task point y"], Float[Tensor, "sample task point y"]]:
        """The value of every function at x, and the standard deviation of an observation there."""
        mean, std = self._likelihood(self._outputs(x))
        return mean, std


def _kept_outputs(posterior: Posterior, samples: int, seed: int) -> Callable[[Any], Tensor]:
    generator = torch.Generator(device=posterior.like.device).manual_seed(seed)
    if isinstance(posterior, DropoutPosterior):
        way = KeptWeights(samples, generator)
        return lambda x: posterior.network(x, posterior.rates, way, posterior.seen(x))
    # What other posteriors draw is small and does not depend on x: it is drawn again, from the same seed.
    return lambda x: posterior.sampled_outputs(x, samples, generator.manual_seed(seed))
