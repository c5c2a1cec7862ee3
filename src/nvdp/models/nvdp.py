"""Neural Variational Dropout Process: the context sets the dropout rates of one shared network (eq. 2 and 3)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.base import FeatureClassifier, RegressionModel, class_means
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.readers import Reader
from nvdp.nn.class_rates import ActivationRates, scaled_by_task, standardised, start_from_nearest_mean
from nvdp.nn.dropout import DropoutNetwork
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.nn.rates import LayerRates, RateBounds, RateNetwork
from nvdp.posteriors.base import Features
from nvdp.posteriors.classes import ClassDropoutPosterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.integrated import IntegratedPosterior
from nvdp.posteriors.target_rates import TargetRatesPosterior
from nvdp.tasks import PointSet


class NVDP(RegressionModel):
    """Set encoder → rate networks → dropout posterior over the agent's weights.

    With ``decoder.sees="x"`` the rates are the only path from context to prediction; with ``"x,r"`` the agent also
    receives the set representation. With a reader it receives what each target reads of the context. Its last layer
    may be integrated out.
    """

    def __init__(self, config: ModelConfig, reader: Callable[[ModelConfig], Reader] | None = None) -> None:
        made = None if reader is None else reader(config)  # first: the order decides which weights a seed gives
        super().__init__(config)
        part = config.likelihood
        self.integrated = part.integrate_plain if made is None else part.integrate_last
        shared = part.shared_std and self.integrated
        self.likelihood = GaussianLikelihood(config.y_dim, part.variance, part.min_std, shared, part.components)
        self.joint_share = part.joint_share
        beside = self.encoder.size if config.decoder.sees == "x,r" else 0
        if made is not None:
            beside = made.size if config.decoder.reads else 0
        inputs = config.inputs.seen_x.width(config.x_dim) + beside
        sizes = [inputs, *[config.decoder.width] * config.decoder.layers, self.likelihood.outputs]
        self.network = DropoutNetwork(sizes, config.decoder.activation, config.inputs.seen_x)
        self.rates = RateNetwork(
            self.encoder.size,
            self.network.layer_shapes,
            width=config.rates.width,
            layers=config.rates.layers,
            activation=config.rates.activation,
            residual=config.rates.residual,
            bounds=RateBounds(config.rates.bounds, config.rates.floor),
            normalise=config.rates.norm,
            full=config.rates.form == "full",
        )
        self.reader = made
        self.target_logits: nn.Linear | None = None
        if made is not None and not config.decoder.reads and config.rates.per == "task":
            raise InputError("model setting 'decoder.reads' is False, which needs 'rates.per' to be 'target'")
        if config.rates.per == "target":
            if made is None or not self.integrated:
                raise InputError(
                    "model setting 'rates.per' is 'target', which is for models whose targets read the context "
                    f"and whose last layer is integrated out; this {config.name} is not one: set it to 'task'"
                )
            self.target_logits = nn.Linear(made.size, config.decoder.width)
            nn.init.zeros_(self.target_logits.weight)  # starts with the rates of the task
            nn.init.zeros_(self.target_logits.bias)

    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> DropoutPosterior:
        """q(φ | D_C) from r."""
        return self._with_rates(representation, self.rates(representation), read)

    def posteriors(
        self, *representations: Float[Tensor, "task r"], read: Features | None = None
    ) -> tuple[DropoutPosterior, ...]:
        """The rates of all sets as one batch: half the calls and half the reading of the rate networks' weights."""
        by_set = zip(representations, self.rates.of_sets(*representations), strict=True)
        return tuple(self._with_rates(r, rates, read) for r, rates in by_set)

    def _with_rates(
        self, representation: Float[Tensor, "task r"], rates: Sequence[LayerRates], read: Features | None
    ) -> DropoutPosterior:
        beside = read or (representation if self.config.decoder.sees == "x,r" else None)
        parts = (rates, self.network, self.likelihood)
        options: dict[str, Any] = {"x_dim": self.config.x_dim, "representation": beside, "engine": self.engine}
        if not self.integrated:
            return DropoutPosterior(*parts, **options, local_noise=self.config.decoder.weight_noise == "local")
        options["joint_share"] = self.joint_share
        if self.target_logits is None:
            return IntegratedPosterior(*parts, **options)
        return TargetRatesPosterior(*parts, **options, logits=self.target_logits, reads=self.config.decoder.reads)


class ClassNVDP(FeatureClassifier):
    """Mean features of a class → rate networks → dropout posterior over a network that gives the class's logit.

    With ``decoder.sees="x"`` all classes share the network's weights and differ by their rates alone; with ``"x,r"``
    the network also receives the class's mean features. With ``rates.sees="contrast"`` rates are made from the mean
    features less those of all the task's classes, brought to one size: classes then differ in their rates from the
    start, where the plain means of new classes are nearly alike beside the noise of dropout. With ``"directions"``
    means are brought to unit length first, and all classes of a task to one size together. With
    ``rates.path="activations"`` they start from the class's own activations, and the whole from a nearest-mean
    classifier; features are then brought to one size wherever they come from. Any number of classes will do, whatever
    it was trained with.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        inputs = config.extractor.features * (2 if config.decoder.sees == "x,r" else 1)
        self.network = DropoutNetwork([inputs, config.decoder.width, 1], config.decoder.activation)
        self.from_activations = config.rates.path == "activations"
        self.rates = (ActivationRates if self.from_activations else RateNetwork)(
            config.extractor.features,
            self.network.layer_shapes,
            width=config.meta.width,
            layers=config.meta.layers,
            activation=config.meta.activation,
            residual=config.meta.residual,
            bounds=RateBounds(config.rates.bounds, config.rates.floor),
        )
        if self.from_activations:
            start_from_nearest_mean(self.network)

    def embed(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of every point."""
        features = super().embed(x)
        return standardised(features) if self.from_activations and self.extractor is not None else features

    def posterior_given(self, points: PointSet, generator: torch.Generator | None = None) -> ClassDropoutPosterior:
        """q(φ | D_C) from the mean features of each class."""
        way = points.y.shape[-1]
        means = class_means(points.x, points)  # (task, way, feature)
        seen = means.flatten(0, 1) if self.config.decoder.sees == "x,r" else None
        if self.config.rates.sees == "contrast":
            means = standardised(means - means.mean(1, keepdim=True))
        elif self.config.rates.sees == "directions":
            directions = F.normalize(means, dim=-1)
            means = scaled_by_task(directions - directions.mean(1, keepdim=True))
        rates = self._rates(means, seen)
        return ClassDropoutPosterior(
            rates, self.network, way=way, x_dim=points.x.shape[-1], representation=seen, engine=self.engine
        )

    def _rates(self, means: Float[Tensor, "task way feature"], seen: Tensor | None) -> tuple[LayerRates, ...]:
        if not isinstance(self.rates, ActivationRates):
            return self.rates(means.flatten(0, 1))
        inputs = means if seen is None else torch.cat([means, seen.view_as(means)], dim=-1)
        scale = scaled_by_task if self.config.rates.sees == "directions" else standardised
        return self.rates.of_class(means, next(iter(self.network.dropout_layers())), inputs, scale)
