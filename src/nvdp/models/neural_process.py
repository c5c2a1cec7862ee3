"""The neural-process family: one model with two switches, a latent path and a deterministic path."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal

from nvdp.models.base import FeatureClassifier, RegressionModel, class_means
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.readers import Reader
from nvdp.nn.likelihoods import CategoricalLikelihood, GaussianLikelihood
from nvdp.nn.mlp import MLP, ConditionedMLP, he_uniform_
from nvdp.posteriors.base import Features, Posterior
from nvdp.posteriors.latent import Decoder, LatentPosterior, PointPosterior
from nvdp.posteriors.low_rank import LowRankPosterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet

LATENT_START = -3.0  # σ of z begins at 0.14: noise must not drown what the context says before training starts


class NeuralProcess(RegressionModel):
    """``cnp`` has the deterministic path alone, ``np`` the latent path alone, ``np+cnp`` both.

    With a reader, the decoder also sees what each target reads of the context. With ``low_rank`` it gives basis
    functions beside the mean, and the single function becomes a Gaussian over functions.
    """

    def __init__(
        self,
        config: ModelConfig,
        latent: bool,
        deterministic: bool,
        reader: Callable[[ModelConfig], Reader] | None = None,
        low_rank: bool = False,
    ) -> None:
        made = None if reader is None else reader(config)  # first: the order decides which weights a seed gives
        super().__init__(config, paths=latent + deterministic)
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
        part = config.likelihood
        shared = low_rank and part.shared_std
        self.likelihood = GaussianLikelihood(config.y_dim, part.variance, part.min_std, shared, part.components)
        self.rank = config.decoder.latent if low_rank else 0
        self.network = ConditionedMLP(
            config.x_dim,
            condition,
            width=config.decoder.width,
            layers=config.decoder.layers,
            outputs=self.likelihood.outputs + self.rank * config.y_dim,
            activation=config.decoder.activation,
            scale=config.inputs.seen_x,
            features=0 if made is None else made.size,
        )
        self.reader = made

    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> Posterior:
        """q(z | D_C), or the single function of a CNP."""
        decoder: Decoder = self.network if read is None else ReadingDecoder(self.network, read)
        if not self.latent_inputs:
            outputs = partial(decoder, condition=representation)
            if self.rank:
                share = self.config.likelihood.joint_share
                return LowRankPosterior(
                    representation,
                    outputs,
                    self.likelihood,
                    x_dim=self.config.x_dim,
                    rank=self.rank,
                    joint_share=share,
                )
            return PointPosterior(representation, outputs, self.likelihood, self.config.x_dim)
        latent_r, deterministic = representation.tensor_split([self.latent_inputs], dim=-1)
        loc, raw = self.latent_head(latent_r).chunk(2, dim=-1)
        latent = Normal(loc, 0.1 + 0.9 * torch.sigmoid(raw), validate_args=False)
        return LatentPosterior(latent, deterministic, decoder, self.likelihood, self.config.x_dim)


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


class ClassProcess(FeatureClassifier):
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

    def posterior_given(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> PointPosterior[ClassPrediction]:
        """The classifier that the classes' codes stand for."""
        codes = class_means(self.encoder(points.x), points)  # (task, way, code)

        def logits(x: Tensor) -> Tensor:
            by_class = self.network(x, codes.transpose(0, 1))  # (way, task, point, 1)
            return by_class.squeeze(-1).permute(1, 2, 0)

        return PointPosterior(points.count[:, None], logits, CategoricalLikelihood(), points.x.shape[-1])
