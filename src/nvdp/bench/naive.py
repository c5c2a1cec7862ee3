"""NVDP as a careful person would write it first: the yardstick for the library's speed, by plain autograd.

Context and whole task are encoded separately, every layer has a rate network of its own that is called twice, the
grids of rates are formed for mean, variance and KL, and the KL is the textbook one of two Gaussians. It computes the
same bound from the same parameters as :class:`~nvdp.models.nvdp.NVDP` in its plain form; a test holds it to that.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.nvdp import NVDP
from nvdp.nn.rates import TEMPERATURE_START
from nvdp.objectives import KLScale

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU}
PLAIN = (
    "encoder.residual",
    "encoder.task_norm",
    "rates.residual",
    "rates.norm",
    "rates.bounds",
    "decoder.sees",
    "decoder.activation",
    "likelihood.variance",
)
Rates = tuple[Float[Tensor, "task k d"], Float[Tensor, "task d"]]


class NaiveNVDP(nn.Module):
    """Encoder, one rate network for each layer, and the shared weights θ."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        check_plain(config)
        self.config = config
        r, width = config.encoder.size, config.decoder.width
        self.encoder = naive_encoder(config)
        self.shapes = list(pairwise([config.x_dim, *[width] * config.decoder.layers, 2 * config.y_dim]))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(k, d) / k**0.5) for k, d in self.shapes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _, d in self.shapes)
        self.rate_networks = nn.ModuleList(
            nn.Sequential(
                *hidden_layers(r, config.rates.width, config.rates.layers, config.rates.activation),
                nn.Linear(config.rates.width, k + d + 1),
            )
            for k, d in self.shapes
        )
        self.temperatures = nn.ParameterList(nn.Parameter(torch.tensor(TEMPERATURE_START)) for _ in self.shapes)

    def rates(self, x: Float[Tensor, "task point x"], y: Float[Tensor, "task point y"]) -> list[Rates]:
        """P of every layer's weights and biases, from the points of a set: eq. 3."""
        representation = self.encoder(torch.cat([x, y], dim=-1)).mean(1)
        floor, grids = self.config.rates.floor, []
        for shape, network, temperature in zip(self.shapes, self.rate_networks, self.temperatures, strict=True):
            experts = torch.sigmoid(network(representation) / temperature.clamp(0.5, 5.0))
            rows, columns, layer = experts.split([*shape, 1], dim=-1)
            weight = rows[:, :, None] * columns[:, None, :] * layer[:, :, None]
            bias = columns * layer
            grids.append((floor + (1 - 2 * floor) * weight, floor + (1 - 2 * floor) * bias))
        return grids

    def bound(
        self,
        x: Float[Tensor, "task point x"],
        y: Float[Tensor, "task point y"],
        context: int,
        scale: KLScale,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """E_{q(φ|D_C)}[log p(y | x, φ)] − KL(q(φ|D_C) ‖ q(φ|D)), eq. 5, with the first points as context."""
        context_rates, whole_rates = self.rates(x[:, :context], y[:, :context]), self.rates(x, y)
        h, kl = x, x.new_zeros(len(x))
        layers = zip(self.weights, self.biases, context_rates, whole_rates, strict=True)
        for index, (weight, bias, (p, p_bias), (p_hat, p_hat_bias)) in enumerate(layers):
            if index:
                h = F.relu(h)
            mean = h @ ((1 - p) * weight) + ((1 - p_bias) * bias)[:, None]
            variance = h**2 @ (p * (1 - p) * weight**2) + (p_bias * (1 - p_bias) * bias**2)[:, None]
            noise = torch.randn(mean.shape, generator=generator)
            h = mean + (variance + 1e-10).sqrt() * noise
            kl = kl + gaussian_kl(p, p_hat).sum((1, 2)) + gaussian_kl(p_bias, p_hat_bias).sum(1)
        return scaled_bound(log_likelihood(h, y, self.config.likelihood.min_std), kl, y, scale, self._size())

    def _size(self) -> int:
        return sum(k * d + d for k, d in self.shapes)

    def copy_from(self, model: NVDP) -> None:
        """Take over the library model's parameters."""
        copy_layers(self.encoder, model.encoder.features[0].get_submodule("linears"))
        state, stack = model.state_dict(), model.rates.hidden
        with torch.no_grad():
            for index, network in enumerate(self.rate_networks):
                self.weights[index].copy_(state[f"network.layers.{index}.weight"])
                self.biases[index].copy_(state[f"network.layers.{index}.bias"])
                self.temperatures[index].copy_(model.rates.temperature[index])
                *hidden, head = (layer for layer in network.children() if isinstance(layer, nn.Linear))
                for layer, weight, bias in zip(hidden, stack.weights, stack.biases, strict=True):
                    layer.weight.copy_(weight[index].T)
                    layer.bias.copy_(bias[index, 0])
                head.load_state_dict(model.rates.heads[index].state_dict())


def check_plain(config: ModelConfig) -> None:
    """Refuse what the naive versions were not written for."""
    given, plain = config.flat(), ModelConfig(config.name).flat()
    for name in PLAIN:
        if given[name] != plain[name]:
            raise InputError(f"the naive version has no {name} '{given[name]}'; it is the paper's plain model")


def naive_encoder(config: ModelConfig) -> nn.Sequential:
    """h of a set representation: the features of one point."""
    hidden, depth = config.encoder.width or config.encoder.size, config.encoder.layers
    before = hidden_layers(config.x_dim + config.y_dim, hidden, depth - 1, config.encoder.activation)
    inputs = hidden if depth > 1 else config.x_dim + config.y_dim
    return nn.Sequential(*before, *hidden_layers(inputs, config.encoder.size, 1, config.encoder.activation))


def hidden_layers(inputs: int, width: int, layers: int, activation: str) -> nn.Sequential:
    """Linear layers of equal width, each followed by the activation."""
    parts: list[nn.Module] = []
    for k, d in pairwise([inputs] + [width] * layers):
        parts += [nn.Linear(k, d), ACTIVATIONS[activation]()]
    return nn.Sequential(*parts)


def gaussian_kl(p: Tensor, p_hat: Tensor) -> Tensor:
    """Eq. 4 as printed, with the constant: [P(1−P) + (P̂−P)²] / 2P̂(1−P̂) + ½ log P̂(1−P̂)/P(1−P) − ½.

    >>> round(gaussian_kl(torch.tensor(0.2), torch.tensor(0.4)).item(), 4)
    0.1194
    """
    variance, variance_hat = p * (1 - p), p_hat * (1 - p_hat)
    return (variance + (p_hat - p) ** 2) / (2 * variance_hat) + 0.5 * torch.log(variance_hat / variance) - 0.5


def log_likelihood(outputs: Tensor, y: Tensor, min_std: float) -> Float[Tensor, " task"]:
    """Σ log N(y | mean, σ²) of each task, σ = 0.1 + 0.9 softplus."""
    mean, raw = outputs.chunk(2, dim=-1)
    return Normal(mean, min_std + (1 - min_std) * F.softplus(raw)).log_prob(y).sum((1, 2))


def scaled_bound(log_prob: Tensor, kl: Tensor, y: Tensor, scale: KLScale, size: int) -> Float[Tensor, ""]:
    """Log-likelihood per target value minus the scaled KL, averaged over tasks."""
    values = torch.full((len(y),), float(y.shape[1] * y.shape[2]))
    return (log_prob / values - scale(kl, size, values)).mean()


def copy_layers(sequence: nn.Sequential, linears: nn.Module) -> None:
    """Load the linear layers of a sequence from another list of them."""
    own = [layer for layer in sequence.children() if isinstance(layer, nn.Linear)]
    for layer, other in zip(own, linears.children(), strict=True):
        layer.load_state_dict(other.state_dict())
