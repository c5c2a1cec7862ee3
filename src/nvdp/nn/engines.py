"""How the conditional-dropout layer and its KL are computed: by autograd, hand-derived and low-rank, or compiled."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import InputError
from nvdp.nn.compiled_grids import compiled_grids
from nvdp.nn.dropout import DropoutLinear, LocalNoiseFunction, local_noise
from nvdp.nn.fused import fused_local_noise, low_rank_local_noise
from nvdp.nn.fused_kl import fused_kl
from nvdp.nn.grids import PLAIN, Grids
from nvdp.nn.rates import LayerRates, experts_of, network_kl

GRID_LIMIT = 2**24  # tasks × K × D beyond which the grid of rates is never formed


@dataclass(frozen=True)
class Engine:
    """The two computations that dominate a training step."""

    local_noise: LocalNoiseFunction
    kl: Callable[[Sequence[LayerRates], Sequence[LayerRates]], Float[Tensor, " task"]]


def fastest_local_noise(
    layer: DropoutLinear, inputs: Tensor, rates: LayerRates, noise: Tensor, grids: Grids = PLAIN
) -> Tensor:
    """Hand-derived gradients; low-rank products where the grid is too large; rates of no low rank by autograd."""
    if not rates.low_rank:
        return local_noise(layer, inputs, rates, noise)
    k, d = layer.shape
    wide = len(inputs) * k * d > GRID_LIMIT
    compute = low_rank_local_noise if wide else partial(fused_local_noise, grids=grids)
    experts = (rates.rows, rates.columns, rates.layer)
    precision = layer.weight.dtype  # hand-derived gradients know of one precision alone
    inputs, noise = inputs.to(precision), noise.to(precision)
    # To enter autocast's context costs more than a small product: only where it is on.
    autocast = torch.is_autocast_enabled(inputs.device.type)
    with torch.autocast(inputs.device.type, enabled=False) if autocast else nullcontext():
        return compute(inputs, layer.weight, layer.bias, *experts, noise, rates.bounds.floor)


def fastest_kl(q: Sequence[LayerRates], p: Sequence[LayerRates], grids: Grids = PLAIN) -> Float[Tensor, " task"]:
    """The KL with its gradient worked out beside it, in chunks; rates of no low rank by autograd."""
    if not q[0].low_rank:
        return network_kl(q, p)
    q_experts, p_experts = experts_of(q), experts_of(p)
    if q_experts.shape != p_experts.shape:
        shapes = tuple(q_experts.shape), tuple(p_experts.shape)
        raise InputError(f"the posteriors have experts of shapes {shapes[0]} and {shapes[1]}; expected the same tasks")
    return fused_kl(q_experts, p_experts, [layer.shape for layer in q], q[0].bounds.floor, grids)


AUTOGRAD = Engine(local_noise, network_kl)
FUSED = Engine(fastest_local_noise, fastest_kl)


def compiled_engine() -> Engine:
    """As FUSED, with the work on grids compiled when it is first done; needs a C++ compiler."""
    grids = compiled_grids()
    return Engine(partial(fastest_local_noise, grids=grids), partial(fastest_kl, grids=grids))
