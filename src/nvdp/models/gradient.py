"""Adaptation by gradient steps on the support: MAML (Finn et al. 2017), Meta-SGD (Li et al. 2017), Meta-dropout (2020).

φ = θ − α ∇L(θ; support), once or several times. Meta-SGD learns an α for every weight; Meta-dropout adds learned,
input-dependent noise to those steps. ``second_order`` differentiates through the gradients; without it they are taken
as constants. Support and queries are normalised by the support's statistics, or each by their own ("batch").
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.models.base import Classifier
from nvdp.models.config import ClassifierConfig
from nvdp.nn.likelihoods import CategoricalLikelihood
from nvdp.nn.task_network import TaskNetwork
from nvdp.posteriors.latent import PointPosterior
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet


class GradientModel(Classifier):
    """An initial network, and the rates of the steps that take it to a task."""

    known_statistics = ("support", "batch")

    def __init__(self, config: ClassifierConfig, learned_rates: bool = False, noisy: bool = False) -> None:
        super().__init__(config)
        images = config.extractor
        given = images.last_relu, images.normalise_own, images.views, images.components
        if given != (expected := (True, False, "image", None)):
            raise InputError(
                f"{config.name} has the paper's convolutions; settings 'last_relu', 'normalise_own', 'views' and "
                f"'components' of its extractor are {given}; expected {expected}"
            )
        self.network = TaskNetwork(
            images.name,
            channels=images.channels,
            size=images.size,
            features=images.features,
            width=config.decoder.width,
            num_classes=config.num_classes,
            noisy=noisy,
        )
        self.noisy = noisy
        self.likelihood = CategoricalLikelihood()
        self.rates = nn.ParameterDict()
        if learned_rates:
            self.rates.update(
                {name: torch.full_like(weight, config.gradient.rate) for name, weight in self.network.initial.items()}
            )

    def embed(self, x: Tensor) -> Tensor:
        """Images as they are; features made beforehand as other models see them."""
        normalise = self.config.extractor.name == "none" and self.config.extractor.normalise
        return F.layer_norm(x, x.shape[-1:]) if normalise else x

    def posterior_given(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> PointPosterior[ClassPrediction]:
        """The classifier with weights adapted to the support; noise is drawn from a seed if there is no generator."""
        self._check_shape(points)
        if generator is None:
            generator = torch.Generator(device=points.x.device).manual_seed(0)
        weights = self.adapted_weights(points, generator)
        moments = self.network.moments(weights, points.x) if self.statistics == "support" else None

        def logits(x: Tensor) -> Tensor:
            return self.network(weights, x, moments)

        return PointPosterior(points.count[:, None], logits, self.likelihood, points.x.shape[-1])

    def adapted_weights(self, support: PointSet, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """φ of every task: the initial weights after the inner steps."""
        outer = torch.is_grad_enabled()
        tasks = len(support.x)
        weights = {name: weight.expand(tasks, *weight.shape) for name, weight in self.network.initial.items()}
        for _ in range(self.config.gradient.steps):
            with torch.enable_grad():
                # Whatever is not differentiated from outside starts anew at every step and keeps no graph.
                start = {
                    name: weight if outer and weight.requires_grad else weight.detach().requires_grad_()
                    for name, weight in weights.items()
                }
                loss = self.support_loss(start, support, generator)
                gradients = torch.autograd.grad(
                    loss, list(start.values()), create_graph=outer and self.config.gradient.second_order
                )
            weights = {
                name: weight - self._rate(name) * gradient
                for (name, weight), gradient in zip(start.items(), gradients, strict=True)
            }
        return weights

    def support_loss(self, weights: dict[str, Tensor], support: PointSet, generator: torch.Generator | None) -> Tensor:
        """Mean cross-entropy of each task's support, summed over tasks, whose weights do not touch each other."""
        logits = self.network(weights, support.x, None, generator, self.noisy)
        log_prob = self.likelihood.log_prob(logits, support.y) * support.mask
        return -(log_prob.sum(-1) / support.count.clamp(min=1)).sum()

    def _rate(self, name: str) -> Tensor | float:
        return self.rates[name] if self.rates else self.config.gradient.rate

    def _check_shape(self, support: PointSet) -> None:
        way = support.y.shape[-1]
        if way != self.config.num_classes:
            raise InputError(
                f"the task has {way} classes; this {self.config.name} model has a last layer for "
                f"{self.config.num_classes}"
            )
        if self.config.extractor.name != "none" and not support.mask.all():
            raise InputError(
                f"support sets of one batch have {int(support.count.min())} to {int(support.count.max())} points; "
                f"{self.config.name} on images needs equal numbers"
            )
