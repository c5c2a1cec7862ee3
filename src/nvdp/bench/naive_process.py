"""The neural-process family as a careful person would write it first: the NP half of the naive yardstick.

Context and whole task are encoded separately and the condition is concatenated to every point, as in the figures of
Garnelo et al. (2018). Same parameters and bound as :class:`~nvdp.models.neural_process.NeuralProcess`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from nvdp.bench.naive import check_plain, copy_layers, hidden_layers, log_likelihood, naive_encoder, scaled_bound
from nvdp.models.config import ModelConfig
from nvdp.models.neural_process import NeuralProcess
from nvdp.models.registry import model_spec
from nvdp.objectives import KLScale


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
