"""Neural Variational Dropout Process: the context sets the dropout rates of one shared network (eq. 2 and 3)."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from nvdp.models.base import MetaModel, set_encoder, x_scale
from nvdp.models.config import ModelConfig
from nvdp.nn.dropout_linear import DropoutNetwork
from nvdp.nn.engines import FUSED, Engine
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.nn.rates import LayerRates, RateBounds, RateNetwork
from nvdp.nn.task_norm import TaskNorm
from nvdp.posteriors import DropoutPosterior, Features


class NVDP(MetaModel):
    """Set encoder → rate networks → dropout posterior over the agent's weights.

    With ``decoder_sees="x"`` the rates are the only path from context to prediction; with ``"x,r"`` the agent also
    receives the set representation. ``engine`` says how the layers are computed; it changes speed, not results.
    """

    engine: Engine = FUSED

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = set_encoder(config)
        self.task_norm = TaskNorm(self.encoder.size) if config.task_norm else None
        self.likelihood = self._likelihood()
        sizes = [self._inputs(), *[config.width] * config.layers, self.likelihood.outputs]
        self.network = DropoutNetwork(sizes, config.activation, x_scale(config))
        self.rates = RateNetwork(
            self.encoder.size,
            self.network.layer_shapes,
            config.rate_width,
            config.rate_layers,
            config.rate_activation,
            config.residual,
            RateBounds(config.rate_bounds, config.rate_floor),
            config.rate_norm,
            config.rate_form == "full",
        )

    def posterior(self, representation: Float[Tensor, "task r"], read: Features | None = None) -> DropoutPosterior:
        """q(φ | D_C) from r."""
        return self._with_rates(representation, self.rates(representation), read)

    def posteriors(
        self, *representations: Float[Tensor, "task r"], read: Features | None = None
    ) -> tuple[DropoutPosterior, ...]:
        """The rates of all sets as one batch: half the calls and half the reading of the rate networks' weights."""
        by_set = zip(representations, self.rates.of_sets(*representations), strict=True)
        return tuple(self._with_rates(r, rates, read) for r, rates in by_set)

    def _likelihood(self) -> GaussianLikelihood:
        return GaussianLikelihood(self.config.y_dim, self.config.variance, self.config.min_std)

    def _inputs(self) -> int:
        return x_scale(self.config).width(self.config.x_dim) + (
            self.encoder.size if self.config.decoder_sees == "x,r" else 0
        )

    def _with_rates(
        self, representation: Float[Tensor, "task r"], rates: Sequence[LayerRates], read: Features | None
    ) -> DropoutPosterior:
        seen = representation if self.config.decoder_sees == "x,r" else None
        parts = (rates, self.network, self.likelihood, self.config.x_dim, seen, self.engine)
        return DropoutPosterior(*parts, local_noise=self.config.weight_noise == "local")
