"""How a feature extractor is pretrained, as one frozen record that prints as it is saved."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nvdp.data.config import NO_DATA, DataConfig
from nvdp.data.fewshot_sets import FEWSHOT_TASKS, class_source
from nvdp.errors import InputError, unknown_name
from nvdp.nn.conv import EXTRACTORS

KIND = "extractor"
HEADS = ("cosine", "linear")
CONV5_SIZE = 64  # from this size on, images get five blocks
PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class PretrainConfig:
    """Ordinary classification of the training classes by an extractor and a head that is thrown away afterwards."""

    task: str
    extractor: str
    channels: int
    size: int
    data: DataConfig = NO_DATA  # for the task folder-of-classes
    head: str = "cosine"  # or "linear"
    steps: int = 10_000
    batch: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    flips: bool = False  # mirror images at random; not for characters
    precision: str = "32-true"  # or "bf16-mixed"
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    kind: str = KIND

    def __post_init__(self) -> None:
        if self.task not in FEWSHOT_TASKS:
            raise unknown_name("task of classification", self.task, FEWSHOT_TASKS)
        if self.head not in HEADS:
            raise unknown_name("head", self.head, HEADS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        for name in ("steps", "batch", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"setting '{name}' is {getattr(self, name)}; expected at least 1")
        if not self.learning_rate > 0:
            raise InputError(f"setting 'learning_rate' is {self.learning_rate}; expected a positive number")
        if self.kind != KIND:
            raise InputError(f"the configuration is of a '{self.kind}'; expected an {KIND}")

    @property
    def features(self) -> int:
        """Numbers that come out of the extractor."""
        return EXTRACTORS[self.extractor].features(self.size)

    def learning_rate_at(self, step: int) -> float:
        """Half a cosine down to zero."""
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """The record of a config.json."""
        try:
            values = dict(json.loads(path.read_text()))
            values["data"] = DataConfig(**values["data"])
            return cls(**values)
        except FileNotFoundError:
            raise InputError(f"{path.parent} holds no extractor: {path.name} is missing") from None
        except InputError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is no configuration of `nvdp pretrain`: {error}") from None


def pretrain_config(task: str, data: DataConfig = NO_DATA, **changes: Any) -> PretrainConfig:
    """The usual configuration for a task, with some settings changed.

    >>> pretrain_config("omniglot-fewshot").extractor, pretrain_config("miniimagenet").flips
    ('conv4', True)
    """
    source = class_source(task, data)
    extractor = "conv5" if source.size >= CONV5_SIZE else "conv4"
    settings: dict[str, Any] = {"flips": task == "miniimagenet", "batch": 64 if extractor == "conv5" else 128}
    return PretrainConfig(task, extractor, source.channels, source.size, data, **(settings | changes))
