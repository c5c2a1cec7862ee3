"""Everything that defines a regression model's shape, as one frozen record that prints as it is saved."""

import math
from dataclasses import dataclass

from nvdp.errors import InputError, unknown_name
from nvdp.nn.extractors import EXTRACTORS, STATISTICS, check_statistics

AGGREGATIONS = ("mean", "bayesian", "attention")
MOST_WAVES = 64


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a model; its sizes default to the paper's for 1D regression (appendix C)."""

    name: str = "nvdp"
    x_dim: int = 1
    y_dim: int = 1
    variance: str = "learned"  # or "fixed": σ = 1
    min_std: float = 0.1
    width: int = 128  # hidden units of the agent, or decoder
    layers: int = 4  # its hidden layers
    activation: str = "relu"
    representation: int = 128  # dimension of r
    encoder_width: int | None = None  # of the layers before r's own; None: as wide as r
    encoder_layers: int = 6
    encoder_activation: str = "relu"
    count_feature: bool = False  # r also carries the number of context points
    initialisation: str = "he"  # of encoder, rate networks and NP decoders; or "fan-in", PyTorch's own
    residual: bool = False  # normalised residual encoder and rate networks
    task_norm: bool = False  # r is normalised over the tasks of a batch
    rate_norm: bool = False  # and so is every logit of a rate
    rate_width: int = 128
    rate_layers: int = 4
    rate_activation: str = "leaky_relu"
    rate_bounds: str = "affine"  # or "clip", as in the paper
    rate_floor: float = 0.01
    rate_form: str = "product"  # or "full": a rate for each weight by itself; for comparison
    weight_noise: str = (
        "local"  # in training, on each point's pre-activation; or "weights": on the weights, for comparison
    )
    decoder_sees: str = "x"  # or "x,r"
    latent: int = 128  # dimension of z in the NP family
    attention_width: int = 64  # of nvdp-attentive and anp
    attention_blocks: int = 4
    attention_heads: int = 8
    attention_by_distance: bool = True  # or by dot products alone
    grid_low: float = -2.5  # of the grid of nvdp-conv and convcnp, in what networks see of x
    grid_high: float = 2.5
    grid_cells: int = 161  # on each axis
    conv_channels: int = 64
    conv_blocks: int = 6
    conv_kernel: int = 7
    integrate_last: bool = True  # reading NVDPs: the last layer is integrated out, and one σ is shared
    joint_share: float = 0.5  # of the density of all points together in what is then trained
    aggregation: str = "mean"  # of a set's points; or "bayesian", "attention"
    x_centre: float = 0.0  # networks see (x − x_centre) · x_scale,
    x_scale: float = 1.0
    x_waves: int = 0  # and sines and cosines of so many multiples of that
    y_centre: float = 0.0  # encoders (y − y_centre) · y_scale
    y_scale: float = 1.0

    def __post_init__(self) -> None:
        sizes = ("width", "layers", "representation", "encoder_layers", "rate_width", "rate_layers", "latent")
        attention = ("attention_width", "attention_blocks", "attention_heads")
        convolution = ("conv_channels", "conv_blocks", "conv_kernel")
        for field in ("x_dim", "y_dim", *sizes, *attention, *convolution):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"model setting '{field}' is {value!r}; expected a whole number of at least 1")
        if self.encoder_width is not None and (not isinstance(self.encoder_width, int) or self.encoder_width < 1):
            raise InputError(f"model setting 'encoder_width' is {self.encoder_width!r}; expected at least 1 or null")
        if not isinstance(self.x_waves, int) or not 0 <= self.x_waves <= MOST_WAVES:
            raise InputError(
                f"model setting 'x_waves' is {self.x_waves!r}; expected a whole number from 0 to {MOST_WAVES}"
            )
        for field in ("x_scale", "y_scale"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"model setting '{field}' is {value!r}; expected a positive number")
        for field, most in (("min_std", 1.0), ("rate_floor", 0.5)):
            value = getattr(self, field)
            if not isinstance(value, int | float) or not 0 < value < most:
                raise InputError(f"model setting '{field}' is {value!r}; expected a number between 0 and {most:g}")
        if self.residual and self.encoder_width not in (None, self.representation):
            raise InputError(
                f"a residual encoder is as wide as its representation, {self.representation}; "
                f"model setting 'encoder_width' is {self.encoder_width}"
            )
        if self.count_feature and self.task_norm:
            raise InputError("task_norm and count_feature exclude each other: tasks of a batch may share their count")
        if self.initialisation not in ("he", "fan-in"):
            raise InputError(f"model setting 'initialisation' is '{self.initialisation}'; expected 'he' or 'fan-in'")
        if self.variance not in ("learned", "fixed"):
            raise InputError(f"model setting 'variance' is '{self.variance}'; expected 'learned' or 'fixed'")
        if not isinstance(self.joint_share, int | float) or not 0 <= self.joint_share <= 1:
            raise InputError(f"model setting 'joint_share' is {self.joint_share!r}; expected a number from 0 to 1")
        if self.conv_kernel % 2 == 0:
            raise InputError(f"model setting 'conv_kernel' is {self.conv_kernel}; expected an odd number")
        if self.grid_cells < 2 or not self.grid_low < self.grid_high:
            raise InputError(
                f"a grid of {self.grid_cells} cells from {self.grid_low} to {self.grid_high} is none; "
                "expected at least 2 cells and an upper end above the lower"
            )
        if self.aggregation not in AGGREGATIONS:
            raise unknown_name("aggregation", self.aggregation, AGGREGATIONS)
        for field, choices in (("rate_form", ("product", "full")), ("weight_noise", ("local", "weights"))):
            value = getattr(self, field)
            if value not in choices:
                raise InputError(f"model setting '{field}' is '{value}'; expected '{choices[0]}' or '{choices[1]}'")
            if value != choices[0] and self.name != "nvdp":
                raise InputError(f"model setting '{field}' is '{value}', which is for nvdp alone; got {self.name}")
        if self.decoder_sees not in ("x", "x,r"):
            raise InputError(f"model setting 'decoder_sees' is '{self.decoder_sees}'; expected 'x' or 'x,r'")


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
