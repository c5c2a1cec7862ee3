"""Everything that defines a model's shape: frozen records, nested by part, that print as they are saved."""

import math
from dataclasses import dataclass, field

from nvdp.errors import InputError, unknown_name
from nvdp.models.settings import NestedConfig, Part, check_config_kind
from nvdp.nn.encoders import SET_ENCODERS
from nvdp.nn.extractors import EXTRACTORS, check_components
from nvdp.nn.mlp import InputScale
from nvdp.nn.views import VIEWS

MAX_FOURIER = 64
STATISTICS = (None, "running", "batch", "support")


@dataclass(frozen=True)
class InputsConfig(Part):
    """What networks see of x and y: an affine map of each, and Fourier features of x."""

    x_centre: float = 0.0  # networks see (x − x_centre) · x_scale
    x_scale: float = 1.0
    fourier: int = 0  # and sines and cosines of this many multiples of it
    y_centre: float = 0.0  # encoders see (y − y_centre) · y_scale
    y_scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.fourier, int) or not 0 <= self.fourier <= MAX_FOURIER:
            raise InputError(
                f"model setting 'inputs.fourier' is {self.fourier!r}; expected a whole number from 0 to {MAX_FOURIER}"
            )
        for name in ("x_scale", "y_scale"):
            self._check_between(name, 0, math.inf, "inputs")

    @property
    def seen_x(self) -> InputScale:
        """What encoder and decoder see of an input."""
        return InputScale(self.x_centre, self.x_scale, self.fourier)

    @property
    def place_x(self) -> InputScale:
        """Where an input lies, for what measures distances."""
        return InputScale(self.x_centre, self.x_scale)

    @property
    def seen_y(self) -> InputScale:
        """What encoders see of an output."""
        return InputScale(self.y_centre, self.y_scale)


@dataclass(frozen=True)
class EncoderConfig(Part):
    """The set encoder: points (x, y) to the representation r."""

    size: int = 128  # dimension of r
    width: int | None = None  # of the layers before r's own; None: as wide as r
    layers: int = 6
    activation: str = "relu"
    residual: bool = False  # normalised residual blocks
    aggregation: str = "mean"  # of a set's points; or "bayesian", "attention"
    task_norm: bool = False  # r is normalised over the tasks of a batch

    def __post_init__(self) -> None:
        self._check_sizes("encoder", "size", "layers")
        if self.width is not None:
            self._check_sizes("encoder", "width")
        if self.residual and self.width not in (None, self.size):
            raise InputError(
                f"a residual encoder is as wide as its representation, {self.size}; "
                f"model setting 'encoder.width' is {self.width}"
            )
        if self.aggregation not in SET_ENCODERS:
            raise unknown_name("aggregation", self.aggregation, SET_ENCODERS)


@dataclass(frozen=True)
class RatesConfig(Part):
    """The rate networks: r to the dropout rates of every layer (eq. 3)."""

    width: int = 128
    layers: int = 4
    activation: str = "leaky_relu"
    residual: bool = False  # normalised residual blocks
    norm: bool = False  # every logit of a rate is normalised over the tasks of a batch
    bounds: str = "affine"  # or "clip", as in the paper
    floor: float = 0.01
    form: str = "product"  # or "full": a rate for each weight by itself; for comparison
    per: str = "task"  # or "target": those of the last layer also depend on what a target reads of the context

    def __post_init__(self) -> None:
        self._check_sizes("rates", "width", "layers")
        self._check_between("floor", 0, 0.5, "rates")
        self._check_choice("rates", "bounds", ("affine", "clip"))
        self._check_choice("rates", "form", ("product", "full"))
        self._check_choice("rates", "per", ("task", "target"))


@dataclass(frozen=True)
class DecoderConfig(Part):
    """The network whose weights are dropped (the paper's agent), or the decoder of a neural process."""

    width: int = 128
    layers: int = 4  # hidden layers
    activation: str = "relu"
    sees: str = "x"  # or "x,r"
    reads: bool = True  # with a reader: the network receives what each target reads; False: only the rates depend on it
    latent: int = 128  # dimension of z in the NP family; basis functions of convgnp
    weight_noise: str = "local"  # in training, on each point's pre-activation; or "weights", for comparison

    def __post_init__(self) -> None:
        self._check_sizes("decoder", "width", "layers", "latent")
        self._check_choice("decoder", "sees", ("x", "x,r"))
        self._check_choice("decoder", "weight_noise", ("local", "weights"))


@dataclass(frozen=True)
class AttentionConfig(Part):
    """Cross-attention from targets to the context: nvdp-attentive and anp."""

    width: int = 64
    blocks: int = 4
    heads: int = 8
    by_distance: bool = True  # or by dot products alone

    def __post_init__(self) -> None:
        self._check_sizes("attention", "width", "blocks", "heads")


@dataclass(frozen=True)
class ConvolutionConfig(Part):
    """Convolutions over a grid on which the context is laid out: nvdp-conv, convcnp and convgnp."""

    channels: int = 64
    blocks: int = 6  # of each stage
    levels: int = 1  # resolutions of a U-Net, which has 2 · levels − 1 stages
    kernel: int = 7
    low: float = -2.5  # of the grid, in what networks see of x
    high: float = 2.5
    cells: int = 161  # on each axis
    patch: int = 1  # cells of an axis that become channels of one position
    dense: bool = False  # full convolutions, not depthwise ones

    def __post_init__(self) -> None:
        self._check_sizes("convolution", "channels", "blocks", "levels", "kernel", "patch")
        if self.kernel % 2 == 0:
            raise InputError(f"model setting 'convolution.kernel' is {self.kernel}; expected an odd number")
        if self.cells < 2 or not self.low < self.high:
            raise InputError(
                f"a grid of {self.cells} cells from {self.low} to {self.high} is none; "
                "expected at least 2 cells and an upper end above the lower"
            )


@dataclass(frozen=True)
class LikelihoodConfig(Part):
    """p(y | x, φ): its σ, and whether the last layer is integrated out."""

    variance: str = "learned"  # or "fixed": σ = 1
    min_std: float = 0.1
    integrate_last: bool = True  # models with a reader: the last layer is integrated out
    joint_share: float = 0.5  # of the density of all points together in what is then trained
    shared_std: bool = True  # with the last layer integrated out: one σ for all points; False: an output of the network
    components: int = 1  # Gaussians of the noise, where σ comes from the network
    scored: str = "task"  # points that a training bound counts: context and targets; or "targets"
    integrate_plain: bool = False  # the same for models without a reader

    def __post_init__(self) -> None:
        self._check_choice("likelihood", "variance", ("learned", "fixed"))
        self._check_choice("likelihood", "scored", ("task", "targets"))
        self._check_between("min_std", 0, 1, "likelihood")
        self._check_sizes("likelihood", "components")
        if not isinstance(self.joint_share, int | float) or not 0 <= self.joint_share <= 1:
            raise InputError(
                f"model setting 'likelihood.joint_share' is {self.joint_share!r}; expected a number from 0 to 1"
            )


@dataclass(frozen=True)
class ModelConfig(NestedConfig):
    """The architecture of a regression model; its sizes default to the paper's for 1D regression (appendix C)."""

    name: str = "nvdp"
    x_dim: int = 1
    y_dim: int = 1
    inputs: InputsConfig = field(default_factory=InputsConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    rates: RatesConfig = field(default_factory=RatesConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    convolution: ConvolutionConfig = field(default_factory=ConvolutionConfig)
    likelihood: LikelihoodConfig = field(default_factory=LikelihoodConfig)
    kind: str = "regression"

    def __post_init__(self) -> None:
        check_config_kind(self.kind, "regression")
        for name in ("x_dim", "y_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"model setting '{name}' is {value!r}; expected a whole number of at least 1")
        for name, value, plain in (
            ("rates.form", self.rates.form, "product"),
            ("decoder.weight_noise", self.decoder.weight_noise, "local"),
        ):
            if value != plain and self.name != "nvdp":
                raise InputError(f"model setting '{name}' is '{value}', which is for nvdp alone; got {self.name}")

    @property
    def normalises_tasks(self) -> bool:
        """Whether a part is normalised over the tasks of a batch."""
        return self.encoder.task_norm or self.rates.norm


@dataclass(frozen=True)
class ExtractorConfig(Part):
    """The feature extractor of images; ``none`` where x is a vector of features already.

    ``statistics`` says which batch norm uses outside training: those of training (running), those of the images given
    together (batch: transductive) or, for models that adapt by gradients and keep no averages, those of the task's
    support images (support). None is the model's own default, which is not transductive.
    """

    name: str = "conv4"  # conv4, conv4-wide, conv5, conv5-patches, conv5-wide or none
    channels: int = 1
    size: int = 28  # rows and columns
    features: int = 256
    normalise: bool = True  # features given as x are brought to mean 0 and deviation 1, each vector by itself
    last_relu: bool = True  # of the convolutions
    normalise_own: bool = False  # the same as `normalise` for features of the model's own convolutions
    views: str = "image"  # whose features are averaged outside training; see image_views
    components: int | None = None  # that features are reduced to; None: all features
    statistics: str | None = None

    def __post_init__(self) -> None:
        self._check_sizes("extractor", "channels", "size", "features")
        self._check_choice("extractor", "name", (*EXTRACTORS, "none"))
        self._check_choice("extractor", "statistics", STATISTICS)
        self._check_choice("extractor", "views", VIEWS)
        if self.name == "none":
            for setting, expected in (("views", "image"), ("components", None)):
                if (value := getattr(self, setting)) != expected:
                    raise InputError(
                        f"model setting 'extractor.{setting}' is {value!r}, but features are given; expected {expected}"
                    )
            return
        given = EXTRACTORS[self.name].features(self.size)
        check_components("model setting 'extractor.components'", self.components, given)
        if self.features != (kept := self.components or given):
            raise InputError(
                f"model setting 'extractor.features' is {self.features}; {self.name} gives {kept} for images of "
                f"{self.size}×{self.size}"
            )


@dataclass(frozen=True)
class MetaNetworkConfig(Part):
    """The network that reads a class's features."""

    width: int = 256
    layers: int = 2
    activation: str = "leaky_relu"
    residual: bool = False  # normalised residual blocks

    def __post_init__(self) -> None:
        self._check_sizes("meta", "width", "layers")


@dataclass(frozen=True)
class ClassRatesConfig(Part):
    """Dropout rates of a classifier: what they are computed from, and their bounds."""

    bounds: str = "affine"  # or "clip", as in the paper
    floor: float = 0.01
    # The mean of a class's features; or what sets it apart from the task's other classes, brought to one size for each
    # class ("contrast"), or to one size for each task after the means were brought to unit length ("directions").
    sees: str = "mean"
    path: str = "network"  # the meta-network alone; or "activations": also the class's own, at a layer's inputs

    def __post_init__(self) -> None:
        self._check_between("floor", 0, 0.5, "rates")
        self._check_choice("rates", "bounds", ("affine", "clip"))
        self._check_choice("rates", "sees", ("mean", "contrast", "directions"))
        self._check_choice("rates", "path", ("network", "activations"))


@dataclass(frozen=True)
class ClassDecoderConfig(Part):
    """The classifier: one hidden layer."""

    width: int = 512
    activation: str = "relu"
    sees: str = "x"  # or "x,r": it is also given the class representation

    def __post_init__(self) -> None:
        self._check_sizes("decoder", "width")
        self._check_choice("decoder", "sees", ("x", "x,r"))


@dataclass(frozen=True)
class GradientConfig(Part):
    """Adaptation by gradient steps: MAML, Meta-SGD, Meta-dropout."""

    steps: int = 1
    rate: float = 0.4
    second_order: bool = True

    def __post_init__(self) -> None:
        self._check_sizes("gradient", "steps")
        self._check_between("rate", 0, math.inf, "gradient")


@dataclass(frozen=True)
class ClassifierConfig(NestedConfig):
    """The architecture of a few-shot classifier; its sizes default to the paper's for Omniglot.

    >>> ClassifierConfig("protonet").x_dim, ClassifierConfig("maml", num_classes=20).y_dim
    (784, 20)
    """

    name: str = "nvdp"
    num_classes: int = 5  # of a training task
    extractor: ExtractorConfig = field(default_factory=ExtractorConfig)
    meta: MetaNetworkConfig = field(default_factory=MetaNetworkConfig)
    rates: ClassRatesConfig = field(default_factory=ClassRatesConfig)
    decoder: ClassDecoderConfig = field(default_factory=ClassDecoderConfig)
    gradient: GradientConfig = field(default_factory=GradientConfig)
    training_samples: int = 10  # of VERSA's class weights
    kind: str = "classification"

    def __post_init__(self) -> None:
        check_config_kind(self.kind, "classification")
        for name, least in (("num_classes", 2), ("training_samples", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"model setting '{name}' is {value!r}; expected a whole number of at least {least}")

    @property
    def x_dim(self) -> int:
        """Numbers of one input."""
        parts = self.extractor
        return parts.features if parts.name == "none" else parts.channels * parts.size * parts.size

    @property
    def y_dim(self) -> int:
        """Numbers of a one-hot label in training."""
        return self.num_classes
