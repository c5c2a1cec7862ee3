"""The folder of a pretrained extractor: loading it, and joining it with a classifier on its features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nvdp.data.features import Extract, concatenated, extractor_folder, extractor_folders
from nvdp.errors import InputError
from nvdp.models.base import FeatureClassifier
from nvdp.models.gradient import GradientModel
from nvdp.models.prototypes import MetricModel
from nvdp.models.registry import build_model
from nvdp.system import chosen_device, read_json
from nvdp.training.checkpoint import checksum, load_tensors
from nvdp.training.config import PretrainConfig, RunConfig
from nvdp.training.pretraining_model import PretrainedClassifier, build_classifier, evaluated
from nvdp.training.run_folder import CONFIG, feature_origins, load_any_run, save_model, start_run

EXTRACTOR = "extractor.safetensors"
MEASURED = "extractor.json"  # the seconds of its training, which differ each time
PROJECTION = "projection"  # of an extractor's numbers: the settings that its projection was found for


def load_extractor(folder: Path, device: str = "auto") -> tuple[Extract, str]:
    """A pretrained extractor as a function of images given as rows, and the digest of its weights."""
    _, model, digest = _load(folder)
    return evaluated(model.requires_grad_(False).to(chosen_device(device))), digest


def extractor_numbers(folder: Path) -> dict[str, Any]:
    """What was measured of an extractor.

    Args:
        folder: Of ``nvdp pretrain``, which has ended.

    Returns:
        Its `steps`, `seconds` (None if the file of them is missing) and `nearest_mean_accuracy`.
    """
    numbers = load_tensors(folder / EXTRACTOR)[1]
    if (folder / MEASURED).exists():
        return numbers | read_json(folder / MEASURED, "seconds")
    return {"seconds": None} | numbers  # which has them if an earlier version wrote it


def load_extractors(run: Path, config: RunConfig, device: str = "auto") -> tuple[PretrainConfig, Extract]:
    """The extractors of a run on features as one function of images, which they all take; with the first's recipe."""
    assert config.episodes is not None
    assert config.episodes.features is not None
    folders = extractor_folders(config.episodes.features)
    loaded = [_load_for(run, folder, origin) for folder, origin in zip(folders, feature_origins(run), strict=True)]
    first = loaded[0][0]
    for folder, (one, _) in zip(folders, loaded, strict=True):
        if (one.size, one.channels) != (first.size, first.channels):
            raise InputError(
                f"{folder} takes images of {one.size}×{one.size}×{one.channels}, {folders[0]} of "
                f"{first.size}×{first.size}×{first.channels}; expected the same"
            )
    extract = [evaluated(model.requires_grad_(False).to(chosen_device(device))) for _, model in loaded]
    return first, lambda vectors: concatenated([one(vectors) for one in extract])


def _load_for(run: Path, folder: Path, origin: str) -> tuple[PretrainConfig, PretrainedClassifier]:
    """An extractor, refused if it is not the one whose features a run was trained on."""
    if not folder.is_dir():
        raise InputError(f"{run} was trained on the features of {folder}, which is not there")
    config, model, digest = _load(folder)
    if digest != origin:
        raise InputError(
            f"{run} was trained on features {origin[:8]} of {folder}, whose extractor gives {digest[:8]} now; "
            "put the earlier one back, or train again"
        )
    return config, model


def _load(folder: Path) -> tuple[PretrainConfig, PretrainedClassifier, str]:
    config = PretrainConfig.load(folder / CONFIG)
    if not (folder / EXTRACTOR).exists():
        raise InputError(f"{folder} has no {EXTRACTOR} yet: its training has not ended; --resume it first")
    tensors, numbers = load_tensors(folder / EXTRACTOR)
    if (found := numbers.get(PROJECTION)) != (wanted := projection_settings(config)):
        told = [", ".join(map(str, each or ["none"])) for each in (found, wanted)]
        raise InputError(
            f"{folder / EXTRACTOR} has components and views of {told[0]}; its configuration asks for "
            f"{told[1]}: `nvdp pretrain … --resume` makes them"
        )
    model = build_classifier(config, 1)
    try:
        model.extractor.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{folder / EXTRACTOR} does not fit its configuration ({reason}); `nvdp pretrain … --resume` may mend it"
        ) from None
    return config, model, checksum(tensors, "extractor" if config.views == "image" else f"extractor {config.views}")


def start_from_extractor(model: FeatureClassifier | GradientModel, name: str) -> None:
    """Give a classifier of images the convolutions of a pretrained extractor; it keeps all features.

    Args:
        model: With convolutions of the same shape.
        name: A folder, or the name of one in the user's cache.
    """
    folder = extractor_folder(name)
    config, pretrained, _ = _load(folder)
    wanted, given = (model.config.extractor.name, model.config.extractor.channels), (config.extractor, config.channels)
    if wanted != given:
        raise InputError(
            f"{folder} holds a {given[0]} for {given[1]} channels; the model has a {wanted[0]} for {wanted[1]}"
        )
    own = model.network if isinstance(model, GradientModel) else model.extractor
    assert own is not None  # as the model has convolutions
    own.load_blocks(pretrained.extractor.blocks)


def projection_settings(config: PretrainConfig) -> list[Any] | None:
    """What a projection depends on: components and views; None without components."""
    return None if config.components is None else [config.components, config.views]


def join_extractor(run: Path, out: Path) -> None:
    """Make of a run on features and its extractor one run on images, which needs no other folder.

    Args:
        run: The folder of a finished run on features.
        out: A new folder.
    """
    config, model, step = load_any_run(run)
    if config.episodes is None:
        raise InputError(f"{run} was trained on {config.task}; expected a few-shot classifier on features")
    if config.episodes.features is None:
        raise InputError(f"{run} was trained on images, so it has its extractor already; expected a run on features")
    if not isinstance(model, FeatureClassifier) or isinstance(model, MetricModel):
        raise InputError(f"{run} holds a {config.model.name}, which cannot be joined; expected nvdp, versa or cnp")
    folders = extractor_folders(config.episodes.features)
    if len(folders) > 1:
        raise InputError(
            f"{run} was trained on features of {len(folders)} extractors; joining takes one: train on one of them "
            "(--features DIR), or use the run as it is (nvdp classify)"
        )
    pretrained, extractor = _load_for(run, folders[0], feature_origins(run)[0])
    own = {"name": pretrained.extractor, "channels": pretrained.channels, "size": pretrained.size}
    own |= {"last_relu": pretrained.last_relu, "views": pretrained.views, "components": pretrained.components}
    own |= {"normalise_own": config.model.flat()["extractor.normalise"]}
    whole = replace(
        config,
        model=config.model.updated({f"extractor.{name}": value for name, value in own.items()}),
        episodes=replace(config.episodes, regime="joined", features=None),
    )
    joined = build_model(whole.model)
    weights = {f"extractor.{name}": tensor for name, tensor in extractor.extractor.state_dict().items()}
    joined.load_state_dict(model.state_dict() | weights)
    start_run(out, whole, resume=False)
    save_model(out, joined, step)
