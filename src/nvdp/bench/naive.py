"""Straightforward versions of NVDP and of the neural processes, by plain autograd: what our speed is compared with.

Both are what a careful person would write first. Both encode context and whole task separately. NVDP: every layer has
a rate network of its own that is called twice, the grids of rates are formed for mean, variance and KL, and the KL is
the textbook one of two Gaussians. Neural processes: the condition is concatenated to every point, as in the figures of
Garnelo et al. (2018). They compute the same bound from the same parameters as :class:`~nvdp.models.nvdp.NVDP` and
:class:`~nvdp.models.neural_process.NeuralProcess` in their plain form; a test checks it.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.neural_process import NeuralProcess
from nvdp.models.nvdp import NVDP
from nvdp.models.registry import model_spec
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


class NaiveNeuralProcess(nn.Module):
    """One encoder for each path, a head for z, and a decoder of (x, z, r)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        check_plain(config)
        self.config, self.objective = config, model_spec(config.name).objective
        r = config.encoder.size
        latent, deterministic = config.name != "cnp", "cnp" in config.name
        condition = r * deterministic + config.decoder.latent * latent
        self.latent_encoder = naive_encoder(config) if latent else None
        self.latent_head = (
            nn.Sequential(nn.Linear(r, r), nn.ReLU(), nn.Linear(r, 2 * config.decoder.latent)) if latent else None
        )
        self.encoder = naive_encoder(config) if deterministic else None
        self.decoder = nn.Sequential(
            *hidden_layers(
                config.x_dim + condition, config.decoder.width, config.decoder.layers, config.decoder.activation
            ),
            nn.Linear(config.decoder.width, 2 * config.y_dim),
        )

    def latent(self, pairs: Float[Tensor, "task point pair"]) -> Normal:
        """q(z | set)."""
        assert self.latent_encoder is not None
        assert self.latent_head is not None
        loc, raw = self.latent_head(self.latent_encoder(pairs).mean(1)).chunk(2, dim=-1)
        return Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw))

    def bound(
        self,
        x: Float[Tensor, "task point x"],
        y: Float[Tensor, "task point y"],
        context: int,
        scale: KLScale,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The bound that the model's name stands for, with the first points as context."""
        whole = torch.cat([x, y], dim=-1)
        usual = self.objective == "neural-process"
        conditions, kl = [], x.new_zeros(len(x))
        if self.latent_encoder is not None:
            q_context, q_task = self.latent(whole[:, :context]), self.latent(whole)
            q, p = (q_task, q_context) if usual else (q_context, q_task)
            noise = torch.randn(q.loc.shape, generator=generator)
            conditions.append(q.loc + q.scale * noise)
            kl = kl_divergence(q, p).sum(-1)
        if self.encoder is not None:
            conditions.append(self.encoder(whole[:, :context]).mean(1))
        condition = torch.cat(conditions, dim=-1)[:, None].expand(-1, x.shape[1], -1)
        outputs = self.decoder(torch.cat([x, condition], dim=-1))
        size = self.config.decoder.latent if self.latent_encoder is not None else 0
        return scaled_bound(log_likelihood(outputs, y, self.config.likelihood.min_std), kl, y, scale, size)

    def copy_from(self, model: NeuralProcess) -> None:
        """Take over the library model's parameters."""
        encoders = [encoder for encoder in (self.latent_encoder, self.encoder) if encoder is not None]
        for encoder, path in zip(encoders, model.encoder.features, strict=True):
            copy_layers(encoder, path.get_submodule("linears"))
        if self.latent_head is not None:
            self.latent_head.load_state_dict(model.latent_head.state_dict())
        first, *others = (layer for layer in self.decoder.children() if isinstance(layer, nn.Linear))
        network = model.network
        with torch.no_grad():
            first.weight.copy_(torch.cat([network.first_x.T, network.first_condition.weight], dim=1))
            first.bias.copy_(network.first_condition.bias)
        for layer, other in zip(others, [*network.hidden, network.last], strict=True):
            layer.load_state_dict(other.state_dict())


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
