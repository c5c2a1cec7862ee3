"""Coherent draws and joint densities of any regression model, by feeding answers back into the context.

p(y₁ … y_n | x, D_C) = Π_i p(y_i | x_i, D_C, y₁ … y_{i−1}): each block of points is predicted from the context and the
blocks before it. It needs no coherent functions, only good predictions of single points. The order of the blocks is
drawn once from the seed. A block of one point is exact; larger ones take fewer passes, and treat their own points as
independent. Where sums over a context's points determine the posterior, n blocks cost n updates; where targets read the
context, each block needs a new pass over all points before it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import as_points


class Chain:
    """The posterior of a context that grows.

    Args:
        adapt: Makes a posterior from inputs and outputs.
        x: Inputs of the first context.
        y: Its outputs.

    >>> from nvdp import load
    >>> chain = Chain(load("gp-nvdp").adapt, torch.zeros(1, 1), torch.ones(1, 1))
    >>> chain.add(torch.ones(1, 1), torch.ones(1, 1))
    >>> chain.posterior.predict([0.5]).mean.shape
    torch.Size([1, 1])
    """

    def __init__(self, adapt: Callable[[Any, Any], Any], x: Tensor, y: Tensor) -> None:
        self.adapt, self.x, self.y = adapt, x, y
        self.posterior = adapt(x, y)
        self.remembers = getattr(self.posterior, "standardised", self.posterior).memory is not None

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add points to the context: an update where the model remembers sums, else adapting again."""
        if self.remembers:
            self.posterior = self.posterior.update(x, y)
            return
        self.x, self.y = torch.cat([self.x, x], -2), torch.cat([self.y, y], -2)
        self.posterior = self.adapt(self.x, self.y)


def sample_in_turn(
    predictor: Predictor, x: Any, y: Any, at: Any, samples: int = 1, seed: int = 0, block: int = 1
) -> Float[Tensor, "sample point y"]:
    """Observations at new points, drawn block by block.

    Args:
        predictor: A model of regression, from `nvdp.load`.
        x: Inputs of the context (points, features).
        y: Its outputs.
        at: Inputs of the new points.
        samples: How many draws; all are made together.
        seed: Of the order and of the draws.
        block: Points that are drawn at a time.

    Returns:
        One draw for each sample, noise included.

    >>> from nvdp import load
    >>> sample_in_turn(load("general"), [0.0, 1.0, 2.0], [0.1, 0.9, 0.2], [0.5, 1.5], samples=4).shape
    torch.Size([4, 2, 1])
    """
    x, y, at = (as_points(part, name).double() for part, name in ((x, "x"), (y, "y"), (at, "at")))
    generator = torch.Generator().manual_seed(seed)
    x, y, at = (part.expand(samples, *part.shape) for part in (x, y, at))
    values, chain = at.new_empty(*at.shape[:2], y.shape[-1]), Chain(predictor.adapt, x, y)
    before: Tensor | None = None
    for places in _blocks(at.shape[1], block, generator):
        if before is not None:
            chain.add(at[:, before], values[:, before])
        values[:, places] = drawn(chain.posterior.predict(at[:, places]), generator)
        before = places
    return values


def joint_log_prob(
    predictor: Predictor, x: Any, y: Any, at: Any, values: Any, seed: int = 0, block: int = 1
) -> Float[Tensor, ""]:
    """log p(values | at, D_C) of all points together, block by block; arguments as of `sample_in_turn`.

    >>> from nvdp import load
    >>> joint_log_prob(load("general"), [0.0, 1.0, 2.0], [0.1, 0.9, 0.2], [0.5, 1.5], [0.5, 0.6]).shape
    torch.Size([])
    """
    parts = ((x, "x"), (y, "y"), (at, "at"), (values, "values"))
    x, y, at, values = (as_points(part, name).double() for part, name in parts)
    total, chain = at.new_zeros(()), Chain(predictor.adapt, x, y)
    before: Tensor | None = None
    for places in _blocks(len(at), block, torch.Generator().manual_seed(seed)):
        if before is not None:
            chain.add(at[before], values[before])
        total = total + chain.posterior.predict(at[places]).log_prob(values[places]).sum()
        before = places
    return total


def _blocks(points: int, block: int, generator: torch.Generator) -> Iterator[Int[Tensor, " place"]]:
    if block < 1:
        raise InputError(f"a block has {block} points; expected at least 1")
    return iter(torch.randperm(points, generator=generator).split(block))


def drawn(prediction: Prediction, generator: torch.Generator, noise: bool = True) -> Float[Tensor, "task point y"]:
    """One observation of the mixture at every point; without `noise`, the mean of a component drawn at random."""
    means, stds = prediction.functions.double(), prediction.stds.double()
    which = torch.randint(len(means), means.shape[1:], generator=generator)[None]
    centre = means.gather(0, which)[0]
    if not noise:
        return centre
    normal = torch.randn(means.shape[1:], generator=generator, dtype=torch.float64)
    return torch.addcmul(centre, stds.gather(0, which)[0], normal)
