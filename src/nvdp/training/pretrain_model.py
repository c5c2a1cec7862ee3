"""The extractor with the head that pretrains it, and the extractor alone, read back from its folder."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.data.feature_cache import Extract
from nvdp.errors import InputError
from nvdp.nn.conv import ConvExtractor
from nvdp.randomness import derived_seed
from nvdp.runtime import chosen_device
from nvdp.training.checkpoint import checksum, load_tensors
from nvdp.training.pretrain_config import PretrainConfig
from nvdp.training.run_folder import CONFIG

EXTRACTOR = "extractor.safetensors"
COSINE_SCALE = 10.0


class PretrainedClassifier(nn.Module):
    """Extractor and head; a cosine head compares directions alone, as Chen et al.'s Baseline++ does."""

    def __init__(self, config: PretrainConfig, classes: int) -> None:
        super().__init__()
        self.config = config
        self.extractor = ConvExtractor(config.extractor, config.channels)
        self.head = nn.Linear(config.features, classes, bias=config.head == "linear")
        self.scale = nn.Parameter(torch.tensor(COSINE_SCALE), requires_grad=config.head == "cosine")

    def features(self, vectors: Float[Tensor, "image vector"]) -> Float[Tensor, "image feature"]:
        """Features of images given as rows."""
        shape = (self.config.channels, self.config.size, self.config.size)
        return self.extractor(vectors.to(self.head.weight.device).unflatten(-1, shape))

    def forward(self, vectors: Float[Tensor, "image vector"]) -> Float[Tensor, "image class"]:
        """Logits of the training classes."""
        features = self.features(vectors)
        if self.config.head == "linear":
            return self.head(features)
        return self.scale * F.linear(F.normalize(features.float(), dim=-1), F.normalize(self.head.weight, dim=-1))


def build_classifier(config: PretrainConfig, classes: int) -> PretrainedClassifier:
    """A classifier with weights from the configuration's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "initialisation"))
        return PretrainedClassifier(config, classes)


def evaluated(model: PretrainedClassifier) -> Extract:
    """The extractor of a model with the running statistics of its batch norm, in full precision."""
    return lambda vectors: model.eval().features(vectors)


def load_extractor(folder: Path, device: str = "auto") -> tuple[Extract, str]:
    """A pretrained extractor as a function of images given as rows, and the digest of its weights."""
    config = PretrainConfig.load(folder / CONFIG)
    if not (folder / EXTRACTOR).exists():
        raise InputError(f"{folder} has no {EXTRACTOR} yet: its training has not ended; --resume it first")
    tensors, _ = load_tensors(folder / EXTRACTOR)
    model = build_classifier(config, 1)
    try:
        model.extractor.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{folder / EXTRACTOR} does not fit its configuration: {reason}") from None
    return evaluated(model.requires_grad_(False).to(chosen_device(device))), checksum(tensors, "extractor")
