"""The neural-process family: one model with two switches, a latent path and a deterministic path."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal

from nvdp.models.base import FeatureModel, MetaModel, class_means, set_encoder, x_scale
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.readers import Reader
from nvdp.nn.likelihoods import CategoricalLikelihood, GaussianLikelihood
from nvdp.nn.mlp import MLP, ConditionedMLP, he_uniform_
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors.base import Features, Posterior
from nvdp.posteriors.latent import Decoder, LatentPosterior, PointPosterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet

LATENT_START = -3.0  # σ of z begins at 0.14: noise must not drown what the context says before training starts


class NeuralProcess(MetaModel):
    """``cnp`` has the deterministic path alone, ``np`` the latent path alone, ``np+cnp`` both."""

    def __init__(self, config: ModelConfig, latent: bool, deterministic: bool) -> None:
        super().__init__()
        self.config = config
        self.encoder = set_encoder(config, paths=latent + deterministic)
        self.task_norm = TaskNorm(self.encoder.size) if config.encoder.task_norm else None
        self.latent_inputs = (config.encoder.size if deterministic else self.encoder.size) if latent else 0
        condition = self.encoder.size - self.latent_inputs
        if latent:
            hidden = nn.Linear(self.latent_inputs, config.encoder.size)
            head = nn.Linear(config.encoder.size, 2 * config.decoder.latent)
            for linear in (hidden, head):
                he_uniform_(linear.weight, linear.in_features)
            nn.init.constant_(head.bias[config.decoder.latent :], LATENT_START)
            self.latent_head = nn.Sequential(hidden, nn.ReLU(), head)
            condition += config.decoder.latent
        self.likelihood = GaussianLikelihood(config.y_dim, config.likelihood.variance, config.likelihood.min_std)
        self.network = ConditionedMLP(
            config.x_dim,
            condition,
            width=config.decoder.width,
            layers=config.decoder.layers,
            outputs=self.likelihood.outputs,
            activation=config.decoder.activation,
            scale=x_scale(config),
            features=self._features(),
        )

    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> Posterior:
        """q(z | D_C), or the single function of a CNP."""
        if not self.latent_inputs:
            decoder = self._decoder(read)
            return PointPosterior(
                representation, partial(decoder, condition=representation), self.likelihood, self.config.x_dim
            )
        latent_r, deterministic = representation.tensor_split([self.latent_inputs], dim=-1)
        loc, raw = self.latent_head(latent_r).chunk(2, dim=-1)
        latent = Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw), validate_args=False)
        return LatentPosterior(latent, deterministic, self._decoder(read), self.likelihood, self.config.x_dim)

    def _features(self) -> int:
        """How much of the context a target sees for itself."""
        return 0

    def _decoder(self, read: Features | None) -> Decoder:
        return self.network


@dataclass(frozen=True)
class ReadingDecoder:
    """A decoder of (x, features of x, condition) as one of (x, condition) for a given context."""

    network: ConditionedMLP
    read: Features

    @property
    def width(self) -> int:
        """Hidden units."""
        return self.network.width

    def __call__(self, x: Tensor, condition: Tensor) -> Tensor:
        """Outputs at x under every condition."""
        return self.at(x)(condition)

    def at(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The same as a function of the condition; the context is read once."""
        features = self.read(x)
        return lambda condition: self.network(x, condition, features)


class ReadingProcess(NeuralProcess):
    """A neural process whose decoder also sees, at every target, what the target reads of the context."""

    def __init__(self, config: ModelConfig, reader: Callable[[ModelConfig], Reader], latent: bool) -> None:
        read = reader(config)
        self._reader_features = read.size
        super().__init__(config, latent=latent, deterministic=not latent)
        self.reader = read

    @property
    def remembers(self) -> bool:
        """No: targets read the points themselves."""
        return False

    def read(self, context: PointSet) -> Features:
        """The context as targets will ask it."""
        return self.reader.read(context)

    def _features(self) -> int:
        return self._reader_features

    def _decoder(self, read: Features | None) -> ReadingDecoder:
        assert read is not None
        return ReadingDecoder(self.network, read)


class ClassProcess(FeatureModel):
    """logit of a class = network(features of the query, mean code of the class's support); nothing is random."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        self.encoder = MLP(
            config.extractor.features,
            config.meta.width,
            config.meta.layers,
            config.meta.activation,
            residual=config.meta.residual,
        )
        self.network = ConditionedMLP(
            config.extractor.features,
            config.meta.width,
            width=config.decoder.width,
            layers=1,
            outputs=1,
            activation=config.decoder.activation,
        )

    def posterior(self, support: PointSet, generator: torch.Generator | None = None) -> PointPosterior[ClassPrediction]:
        """The classifier that the classes' codes stand for."""
        codes = class_means(self.encoder(support.x), support)  # (task, way, code)

        def logits(x: Tensor) -> Tensor:
            by_class = self.network(x, codes.transpose(0, 1))  # (way, task, point, 1)
            return by_class.squeeze(-1).permute(1, 2, 0)

        return PointPosterior(support.count[:, None], logits, CategoricalLikelihood(), support.x.shape[-1])
