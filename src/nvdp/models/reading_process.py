"""Neural processes whose targets read the context: attentive NP (Kim et al. 2019), ConvCNP (Gordon et al. 2020).

In the attentive NP cross-attention takes the place of the deterministic path, beside the latent one. The ConvCNP has
convolutions over a grid and nothing random.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from nvdp.models.config import ModelConfig
from nvdp.models.neural_process import NeuralProcess
from nvdp.models.reading import Reader
from nvdp.nn.mlp import ConditionedMLP
from nvdp.posteriors import Features
from nvdp.tasks import PointSet


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
