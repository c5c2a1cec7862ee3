"""Everything that defines a few-shot classifier's shape, as one frozen record that prints as it is saved."""

from dataclasses import dataclass

from nvdp.errors import InputError
from nvdp.nn.conv import EXTRACTORS, STATISTICS, check_statistics

GRADIENT_MODELS = ("maml", "meta-sgd", "meta-dropout")
GRADIENT_STATISTICS = ("support", "batch")
NVDP_CHOICES = {
    "decoder_sees": ("x", "x,r"),
    "rate_sees": ("mean", "contrast"),
    "rate_path": ("network", "activations"),
}


@dataclass(frozen=True)
class FewShotConfig:
    """The architecture of a few-shot classifier; its sizes default to the paper's for Omniglot.

    ``extractor`` is conv4 or conv5 for images of channels × size × size numbers, or none where x is a vector of
    features already. ``statistics`` says which batch norm uses outside training: those of training (running), those of
    the images given together (batch: transductive) or, for models that adapt by gradients and keep no averages, those
    of the task's support images (support). Left out, it is the one that is not transductive.

    >>> FewShotConfig("protonet").x_dim, FewShotConfig("maml", way=20).statistics
    (784, 'support')
    """

    name: str = "nvdp"
    way: int = 5  # classes of a training task
    extractor: str = "conv4"  # conv4, conv5 or none
    channels: int = 1
    size: int = 28  # rows and columns
    features: int = 256
    normalise: bool = True  # features given as x are brought to mean 0 and deviation 1, each vector by itself
    statistics: str | None = None
    width: int = 512  # hidden units of the classifier
    activation: str = "relu"
    meta_width: int = 256  # hidden units of the network that reads a class's features
    meta_layers: int = 2
    meta_activation: str = "leaky_relu"
    residual: bool = False  # normalised residual meta-network
    rate_bounds: str = "affine"  # or "clip", as in the paper
    rate_floor: float = 0.01
    rate_sees: str = "mean"  # of a class's features; or "contrast": what sets it apart from the task's other classes
    rate_path: str = "network"  # the meta-network alone; or "activations": also the class's own, at a layer's inputs
    decoder_sees: str = "x"  # or "x,r": NVDP's classifier is also given the class representation
    training_samples: int = 10  # of VERSA's class weights
    inner_steps: int = 1
    inner_rate: float = 0.4
    second_order: bool = True

    def __post_init__(self) -> None:
        sizes = (
            "channels",
            "size",
            "features",
            "width",
            "meta_width",
            "meta_layers",
            "training_samples",
            "inner_steps",
        )
        for field, least in (("way", 2), *((name, 1) for name in sizes)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise InputError(f"model setting '{field}' is {value!r}; expected a whole number of at least {least}")
        if self.extractor not in (*EXTRACTORS, "none"):
            raise InputError(f"model setting 'extractor' is '{self.extractor}'; expected conv4, conv5 or none")
        if self.extractor != "none" and self.features != (given := EXTRACTORS[self.extractor].features(self.size)):
            raise InputError(
                f"model setting 'features' is {self.features}; {self.extractor} gives {given} for images of "
                f"{self.size}×{self.size}"
            )
        for field, known in NVDP_CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                raise InputError(
                    f"model setting '{field}' is '{value}'; expected {' or '.join(repr(name) for name in known)}"
                )
        if not isinstance(self.inner_rate, int | float) or not self.inner_rate > 0:
            raise InputError(f"model setting 'inner_rate' is {self.inner_rate!r}; expected a positive number")
        if self.statistics is None:
            object.__setattr__(self, "statistics", self.known_statistics[0])
        check_statistics(str(self.statistics), self.known_statistics)

    @property
    def known_statistics(self) -> tuple[str, ...]:
        """The statistics that batch norm of this model can use outside training."""
        return GRADIENT_STATISTICS if self.name in GRADIENT_MODELS else STATISTICS

    @property
    def x_dim(self) -> int:
        """Numbers of one input."""
        return self.features if self.extractor == "none" else self.channels * self.size * self.size

    @property
    def y_dim(self) -> int:
        """Numbers of a one-hot label in training."""
        return self.way
