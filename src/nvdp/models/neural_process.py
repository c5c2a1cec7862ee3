"""The neural-process family: one model with two switches, a latent path and a deterministic path."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal

from nvdp.models.base import MetaModel, set_encoder, x_scale
from nvdp.models.config import ModelConfig
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.nn.mlp import ConditionedMLP, keep_signal
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors import Decoder, Features, LatentPosterior, PointPosterior, Posterior

LATENT_START = -3.0  # σ of z begins at 0.14: noise must not drown what the context says before training starts


class NeuralProcess(MetaModel):
    """``cnp`` has the deterministic path alone, ``np`` the latent path alone, ``np+cnp`` both."""

    def __init__(self, config: ModelConfig, latent: bool, deterministic: bool) -> None:
        super().__init__()
        self.config = config
        self.encoder = set_encoder(config, paths=latent + deterministic)
        self.task_norm = TaskNorm(self.encoder.size) if config.task_norm else None
        self.latent_inputs = (config.representation if deterministic else self.encoder.size) if latent else 0
        condition = self.encoder.size - self.latent_inputs
        if latent:
            hidden = nn.Linear(self.latent_inputs, config.representation)
            head = nn.Linear(config.representation, 2 * config.latent)
            for linear in (hidden, head):
                keep_signal(linear.weight, linear.in_features)
            nn.init.constant_(head.bias[config.latent :], LATENT_START)
            self.latent_head = nn.Sequential(hidden, nn.ReLU(), head)
            condition += config.latent
        self.likelihood = GaussianLikelihood(config.y_dim, config.variance, config.min_std)
        self.network = ConditionedMLP(
            config.x_dim,
            condition,
            config.width,
            config.layers,
            self.likelihood.outputs,
            config.activation,
            x_scale(config),
            self._features(),
        )

    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> Posterior:
        """q(z | D_C), or the single function of a CNP."""
        if not self.latent_inputs:
            return PointPosterior(representation, self._decoder(read), self.likelihood, self.config.x_dim)
        latent_r, deterministic = representation.tensor_split([self.latent_inputs], dim=-1)
        loc, raw = self.latent_head(latent_r).chunk(2, dim=-1)
        latent = Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw), validate_args=False)
        return LatentPosterior(latent, deterministic, self._decoder(read), self.likelihood, self.config.x_dim)

    def _features(self) -> int:
        """How much of the context a target sees for itself."""
        return 0

    def _decoder(self, read: Features | None) -> Decoder:
        return self.network
