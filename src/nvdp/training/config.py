"""The whole configuration of a run, or of pretraining, as one frozen record; its JSON form is config.json."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_type_hints

from nvdp.data.episodes import FEWSHOT_TASKS, EpisodeConfig
from nvdp.data.registry import check_kind, check_task
from nvdp.data.source import NO_DATA, DataConfig
from nvdp.errors import InputError, unknown_name
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.registry import check_serves
from nvdp.nn.extractors import EXTRACTORS, check_components
from nvdp.nn.views import VIEWS
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.training.muon import LARGEST

FORMAT_VERSION = 2
MOST_BYTES = 1_000_000  # of a config.json
OPTIMIZERS, SCHEDULES = ("adam", "nadam", "muon"), ("cosine", "constant")
PRETRAIN_OPTIMIZERS, PRETRAIN_OBJECTIVES = ("sgd", "muon"), ("classes", "episodes")
MOST_WARPS = 0.5  # larger affine maps mirror some images
FULL_PRECISION = "32-true"
HEADS, PRECISIONS, EXTRACTOR_KIND = ("cosine", "linear"), (FULL_PRECISION, "bf16-mixed"), "extractor"
_GROUPS: dict[str, tuple[type, ...]] = {
    "model": (ModelConfig, ClassifierConfig),
    "kl": (KLScale,),
    "data": (DataConfig,),
    "episodes": (EpisodeConfig, NoneType),
}
KINDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
T = TypeVar("T")


@dataclass(frozen=True)
class RunConfig:
    """What is trained, on which tasks, and how."""

    task: str = "gp"
    model: ModelConfig | ClassifierConfig = field(default_factory=ModelConfig)
    preset: str = "cpu"
    objective: str = "variational-prior"
    kl: KLScale = field(default_factory=KLScale)
    steps: int = 10_000
    tasks_per_step: int = 16
    optimizer: str = "adam"
    muon_rows: int = LARGEST  # Muon moves matrices whose smaller side is at most this; Adam moves the others
    learning_rate: float = 5e-4
    schedule: str = "cosine"  # or "constant"; warm-up comes before either
    warmup_steps: int = 0
    gradient_clip: float | None = None  # largest norm of the whole gradient
    seed: int = 0
    data: DataConfig = NO_DATA  # for the tasks `images` and `folder-of-classes`
    episodes: EpisodeConfig | None = None  # for the tasks of classification
    start: str | None = None  # the folder of a finished run whose weights it begins with
    log_every: int = 100
    checkpoint_every: int = 1_000
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for name, kinds in _GROUPS.items():
            if not isinstance(getattr(self, name), kinds):
                raise InputError(f"setting '{name}' is {getattr(self, name)!r}; expected a group of settings")
        check_task(self.task)
        check_serves(self.model)
        check_kind(self.task, self.model.kind)
        if (expected := self.task in FEWSHOT_TASKS) != (self.episodes is not None):
            words = ("no", "some") if expected else ("some", "none")
            raise InputError(f"the task {self.task} is given {words[0]} settings of episodes; expected {words[1]}")
        if self.episodes is not None and self.episodes.regime == "fine-tuned" and self.start is None:
            raise InputError("the regime fine-tuned is given no start; expected a pretrained extractor: --extractor")
        if self.objective not in OBJECTIVES:
            raise unknown_name("objective", self.objective, OBJECTIVES)
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        _check_training(self, "steps", "tasks_per_step", "muon_rows", "log_every", "checkpoint_every")
        if self.model.normalises_tasks and self.tasks_per_step < 2:
            raise InputError(f"normalisation over tasks needs at least 2 tasks a step; got {self.tasks_per_step}")
        if self.warmup_steps < 0:
            raise InputError(f"setting 'warmup_steps' is {self.warmup_steps}; expected at least 0")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise InputError(f"setting 'gradient_clip' is {self.gradient_clip}; expected a positive number or null")

    def to_json(self) -> str:
        """The text of config.json; data, episodes and start are in it only if there are any."""
        values = dataclasses.asdict(self)
        for name, absent in (("data", NO_DATA), ("episodes", None), ("start", None)):
            if getattr(self, name) == absent:
                del values[name]
        return json.dumps(values, indent=2) + "\n"

    def choices(self) -> dict[str, Any]:
        """What differs from a setting's default: the same in later versions, which may have more settings.

        >>> RunConfig(steps=20, model=ModelConfig("cnp").updated({"decoder.width": 8})).choices()
        {'model': {'name': 'cnp', 'decoder': {'width': 8}}, 'steps': 20}
        """
        return _differing(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], origin: str = "configuration") -> Self:
        """The record of a dictionary; an unknown key is refused by name.

        Args:
            values: As `to_json` writes them; what is left out has its default.
            origin: What an error calls the dictionary.

        Returns:
            The configuration.
        """
        return _record(cls, values, origin)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The record of a config.json."""
        values = _read(path, "run")
        if values.get("kind") == EXTRACTOR_KIND:
            raise InputError(
                f"{path.parent} holds an extractor of `nvdp pretrain`, not a model; `nvdp train … --features "
                f"{path.parent}` trains one on its features"
            )
        return cls.from_dict(values, str(path))


FEATURE_SETTINGS = ("views", "components")  # matter for features alone, which are made after training


@dataclass(frozen=True)
class PretrainConfig:
    """How a feature extractor is pretrained.

    With the objective ``classes`` it classifies the training classes by a head that is not kept; with ``episodes`` each
    step is an episode of one shot, `per_class` images a class, and queries are classified by the nearest direction.
    """

    task: str
    extractor: str
    channels: int
    size: int
    data: DataConfig = NO_DATA  # for the task folder-of-classes
    last_relu: bool = True  # of the extractor
    objective: str = "classes"  # or "episodes"
    per_class: int = 4  # images of a class in an episode: one for support, the others are queries
    head: str = "cosine"  # or "linear"
    steps: int = 10_000
    batch: int = 128
    optimizer: str = "sgd"  # or "muon"
    muon_rows: int = LARGEST  # as of a run; what Adam moves has no decay
    learning_rate: float = 0.1
    momentum: float = 0.9  # of SGD
    weight_decay: float = 5e-4
    flips: bool = False  # mirror images at random; not for characters
    shifts: int = 0  # move images at random by up to so many pixels
    warps: float = 0.0  # how much random affine maps scale, shear, turn and move images; 0: not at all
    crops: float = 0.0  # how much of either side random crops leave out at most; the rest is enlarged
    colours: float = 0.0  # how much brightness, contrast and saturation change at random
    turns: float = 0.0  # share of images to turn by quarters; a class in each direction is a class of its own
    views: str = "image"  # whose features are averaged; see image_views
    components: int | None = None  # that features are reduced to by principal component analysis; None: all features
    precision: str = FULL_PRECISION  # or "bf16-mixed"
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    kind: str = EXTRACTOR_KIND
    version: int = FORMAT_VERSION
    schedule: ClassVar[str] = "cosine"
    warmup_steps: ClassVar[int] = 0
    gradient_clip: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        for what, name, known in (
            ("task of classification", self.task, FEWSHOT_TASKS),
            ("extractor", self.extractor, EXTRACTORS),
            ("objective of pretraining", self.objective, PRETRAIN_OBJECTIVES),
            ("optimizer", self.optimizer, PRETRAIN_OPTIMIZERS),
            ("head", self.head, HEADS),
            ("views of an image", self.views, VIEWS),
            ("precision", self.precision, PRECISIONS),
        ):
            if name not in known:
                raise unknown_name(what, name, known)
        _check_training(self, "steps", "batch", "muon_rows", "log_every", "checkpoint_every")
        if self.batch == 1:
            raise InputError("setting 'batch' is 1; expected at least 2, as batch norm compares images")
        if not 0 <= self.shifts < self.size:
            raise InputError(f"setting 'shifts' is {self.shifts}; expected from 0 to {self.size - 1} pixels")
        if not 0 <= self.warps <= MOST_WARPS:
            raise InputError(f"setting 'warps' is {self.warps}; expected from 0 to {MOST_WARPS}")
        for name in ("crops", "colours", "turns"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise InputError(f"setting '{name}' is {value}; expected from 0 to less than 1")
        features = EXTRACTORS[self.extractor].features(self.size)
        if features < 1:
            raise InputError(
                f"setting 'extractor' is '{self.extractor}', which has no features of images of "
                f"{self.size}×{self.size}; expected conv4, or larger images"
            )
        check_components("setting 'components'", self.components, features)
        if self.objective == "episodes":
            self._check_episodes()
        if self.kind != EXTRACTOR_KIND:
            raise InputError(f"the configuration is of a '{self.kind}'; expected an {EXTRACTOR_KIND}")

    def _check_episodes(self) -> None:
        if self.head != "cosine":
            raise InputError(f"setting 'head' is '{self.head}', but episodes have no head; expected cosine")
        if self.turns:
            raise InputError(f"setting 'turns' is {self.turns}, but only the objective classes takes turns; expected 0")
        most = max(2, self.batch // 2)
        if not 2 <= self.per_class <= self.batch // 2:
            raise InputError(
                f"settings 'per_class' and 'batch' are {self.per_class} and {self.batch}; expected from 2 to {most} "
                "images a class, and two classes in a batch"
            )

    @property
    def features(self) -> int:
        """Numbers that come out of the extractor."""
        return self.components or EXTRACTORS[self.extractor].features(self.size)

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """The record of a config.json."""
        values = _read(path, "extractor")
        if "model" in values:
            raise InputError(f"{path.parent} holds a run, not an extractor; `nvdp pretrain` makes one")
        for name in ("mixup", "half_share"):  # of a time between two versions
            if values.pop(name, 0):
                raise InputError(f"{path}: setting '{name}' was removed; pretrain the extractor again")
        return _record(cls, values, str(path))


TrainingConfig = RunConfig | PretrainConfig


def config_digest(config: TrainingConfig) -> str:
    """A short text that differs where training does; settings of later versions do not change it.

    >>> config_digest(RunConfig()) == config_digest(RunConfig(seed=1))
    False
    """
    differing = _differing(config)
    if isinstance(config, PretrainConfig):
        for name in FEATURE_SETTINGS:
            differing.pop(name, None)
    return _digest(differing)


def recipe_digest(config: PretrainConfig) -> str:
    """A short text that differs where an extractor or its features do."""
    return _digest(_differing(config))


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _check_training(config: Any, *counts: str) -> None:
    """Refuse what no training can do, or a file of another version."""
    for name in counts:
        if getattr(config, name) < 1:
            raise InputError(f"setting '{name}' is {getattr(config, name)}; expected at least 1")
    if not 0 < config.learning_rate < float("inf"):
        raise InputError(f"setting 'learning_rate' is {config.learning_rate}; expected a positive, finite number")
    if config.version != FORMAT_VERSION:
        raise InputError(f"the configuration has format version {config.version}; this nvdp reads {FORMAT_VERSION}")


def is_extractor(path: Path) -> bool:
    """Whether a config.json is that of an extractor; one that cannot be read is refused."""
    return _read(path, "run").get("kind") == EXTRACTOR_KIND


def _read(path: Path, what: str) -> dict[str, Any]:
    """The values of a config.json of this version; `what` its folder should hold."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} has {path.stat().st_size} bytes; a configuration has at most {MOST_BYTES}")
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path.parent} holds no {what}: {path.name} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; expected a JSON object")
    if values.get("version", 1) == 1:
        raise InputError(f"{path} was written by version 0.1, which this version does not read; train again")
    return values


def _differing(record: Any) -> dict[str, Any]:
    """The fields of a record that differ from those of one made without arguments, or have no default."""
    values: dict[str, Any] = {}
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        if value != default:
            values[item.name] = _differing(value) if dataclasses.is_dataclass(value) else value
    return values


def _check_kind(name: str, value: Any, hint: Any, origin: str) -> None:
    """Refuse a value that is not of the kind that its setting is declared to be; JSON's 1 is also a 1.0."""
    kinds = get_args(hint) or (hint,)
    if not set(kinds) <= {int, float, str, bool, NoneType}:
        return  # a group of settings, checked by its own record
    fits = type(value) in kinds or (float in kinds and type(value) is int)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        expected = " or ".join("null" if kind is NoneType else KINDS[kind] for kind in kinds)
        raise InputError(f"{origin}: setting '{name}' is {str(value)[:40]!r}; expected {expected}")


def _record(kind: type[T], values: dict[str, Any], origin: str) -> T:
    """The record of a dictionary, groups of settings included."""
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    hints, given = get_type_hints(kind), {}
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{origin}: {unknown_name('key', name, known)}")
        groups = [group for group in get_args(hints[name]) or (hints[name],) if dataclasses.is_dataclass(group)]
        if groups and isinstance(value, dict):
            given[name] = _record(_group_for(groups, value), value, f"{origin}: {name}")
        elif groups and not (value is None and NoneType in get_args(hints[name])):
            raise InputError(f"{origin}: setting '{name}' is {str(value)[:40]!r}; expected a group of settings")
        else:
            _check_kind(name, value, hints[name], origin)
            given[name] = value
    try:
        return kind(**given)
    except TypeError as error:
        raise InputError(f"{origin}: {error}") from None


def _group_for(groups: list[Any], values: dict[str, Any]) -> Any:
    """Of several groups that a setting may be, the one of the values' kind."""
    return next((group for group in groups[1:] if values.get("kind") == group.kind), groups[0])
