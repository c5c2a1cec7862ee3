"""NVDP whose network also sees its target's own view of the context; its last layer is integrated out.

The context speaks in two ways: its set representation sets the dropout rates, as in NVDP, and every target reads for
itself what is near it. What training does with the two, and why rates stay alive, is told in `nvdp.integrated`.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from nvdp.integrated import IntegratedPosterior
from nvdp.models.base import x_scale
from nvdp.models.config import ModelConfig
from nvdp.models.nvdp import NVDP
from nvdp.models.reading import Reader
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.nn.rates import LayerRates
from nvdp.posteriors import DropoutPosterior, Features
from nvdp.tasks import PointSet


class ReadingNVDP(NVDP):
    """Set encoder → rates; attention or convolutions → inputs of the dropout network beside x."""

    def __init__(self, config: ModelConfig, reader: Callable[[ModelConfig], Reader]) -> None:
        read = reader(config)
        self._reader_features = read.size
        super().__init__(config)
        self.reader = read

    @property
    def remembers(self) -> bool:
        """No: targets read the points themselves."""
        return False

    def read(self, context: PointSet) -> Features:
        """The context as targets will ask it."""
        return self.reader.read(context)

    def _inputs(self) -> int:
        return x_scale(self.config).width(self.config.x_dim) + self._reader_features

    def _likelihood(self) -> GaussianLikelihood:
        config = self.config
        return GaussianLikelihood(config.y_dim, config.variance, config.min_std, shared=config.integrate_last)

    def _with_rates(
        self, representation: Float[Tensor, "task r"], rates: Sequence[LayerRates], read: Features | None
    ) -> DropoutPosterior:
        parts = (rates, self.network, self.likelihood, self.config.x_dim, read, self.engine)
        if not self.config.integrate_last:
            return DropoutPosterior(*parts)
        posterior = IntegratedPosterior(*parts)
        posterior.joint_share = self.config.joint_share
        return posterior
