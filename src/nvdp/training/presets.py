"""Presets: the configuration of a run by preset, task and model, put together from the rules that fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nvdp.data.episodes import FEWSHOT_TASKS, EpisodeConfig, class_source
from nvdp.data.features import described_features, extractor_folder, extractor_folders, has_features
from nvdp.data.images import ImageTasks
from nvdp.data.registry import GP_TASKS, IMAGE_TASKS, task_source
from nvdp.data.source import ANY_CONTEXT, NO_DATA, DataConfig
from nvdp.errors import InputError, unknown_name
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.registry import check_serves, model_spec
from nvdp.nn.extractors import EXTRACTORS
from nvdp.objectives import KLScale
from nvdp.training.config import PretrainConfig, RunConfig
from nvdp.training.preset_rules import CONV5_SIZE, FEWSHOT_PRESETS, MEDIUM, OWN, PRESETS, RULES, SMALL, Settings
from nvdp.training.run_folder import CONFIG


def image_data(task: str, model: str, preset: str, **pictures: Any) -> DataConfig:
    """Pictures, and how a preset draws their contexts: convolutions, which hardly take longer, see up to all pixels.

    >>> image_data("images", "nvdp-conv", "cpu", size=64).any_context, image_data("images", "nvdp", "cpu").any_context
    (0.125, 0.0)
    """
    convolutions = task in IMAGE_TASKS and preset in OWN and model_spec(model).reader == "convolution"
    return replace(ANY_CONTEXT if convolutions else NO_DATA, **pictures)


def preset_config(
    task: str,
    model: str,
    preset: str = "cpu",
    variance: str = "learned",
    data: DataConfig | None = None,
    *,
    way: int = 5,
    shot: int = 1,
    queries: int | None = None,
    features: str | None = None,
    extractor: str | None = None,
    recipe: PretrainConfig | None = None,
    architecture: Settings | None = None,
    **changes: Any,
) -> RunConfig:
    """The configuration of a preset for a task and model, with some settings changed.

    Args:
        task: The family of tasks, by its name.
        model: A name of the registry.
        preset: quick, cpu, paper, tuned or, for regression, released.
        variance: Of regression: learned, or fixed (σ = 1).
        data: For tasks of a folder of images, and how contexts of images are drawn; by default as the preset has it.
        way: Of few-shot tasks: classes of an episode.
        shot: Of few-shot tasks: support images of a class.
        queries: Of few-shot tasks: images of a class to classify; None for the preset's number.
        features: Of few-shot tasks: a pretrained extractor, or several with commas between, whose cached features
            replace the images.
        extractor: Of few-shot tasks: a pretrained extractor with whose weights the model's convolutions begin.
        recipe: Of that extractor; by default the one in its folder.
        architecture: Settings of the model by dotted name.
        changes: Settings of the run.

    Returns:
        The configuration.

    >>> preset_config("gp", "nvdp", "paper").steps
    500000
    >>> celeba = preset_config("celeba", "nvdp", "paper").model
    >>> celeba.x_dim, celeba.y_dim, celeba.encoder.size
    (2, 3, 1024)
    >>> config = preset_config("miniimagenet", "nvdp", "paper", way=5, shot=1)
    >>> config.model.extractor.name, config.tasks_per_step, config.learning_rate, config.objective
    ('conv5', 8, 0.00025, 'variational-prior')
    """
    base: ModelConfig | ClassifierConfig
    known: tuple[str, ...] = PRESETS
    data = image_data(task, model, preset) if data is None else data
    if task in FEWSHOT_TASKS:
        known = FEWSHOT_PRESETS
        if features is not None and extractor is not None:
            raise InputError(f"features of {features} and the extractor {extractor} exclude each other")
        if queries is None:  # features cost so little that they take 15 with any preset
            queries = 5 if preset in OWN and features is None else 15
        regime = "features" if features is not None else "end-to-end" if extractor is None else "fine-tuned"
        facts: dict[str, Any] = {"family": "few-shot", "way": way, "shot": shot, "regime": regime}
        shown = _extractor(task, data, features) | (
            {} if extractor is None else _fine_tuned(extractor, recipe, task, data, model)
        )
        base = ClassifierConfig(model, way).updated(shown | dict(architecture or {}))
        if model == "nvdp" and preset in OWN and regime != "end-to-end":  # its start needs both signs of every feature
            base = base.updated({"decoder.width": max(base.decoder.width, 2 * base.extractor.features)})
        changes = {"episodes": EpisodeConfig(way, shot, queries, regime, features), "start": extractor} | changes
    else:
        families = dict.fromkeys(IMAGE_TASKS, "image") | {kind.name: "gp" for kind in GP_TASKS}
        facts = {"kind": "regression", "family": families.get(task, task)}
        source = task_source(task, data)
        base = ModelConfig(model, source.x_dim, source.y_dim).updated({"likelihood.variance": variance})
        if isinstance(source, ImageTasks) and model_spec(model).reader == "convolution":
            base = base.updated({"convolution.cells": source.source.size})  # one for every pixel
    if preset not in known:
        raise unknown_name("preset", preset, known)
    facts |= {"task": task, "model": model, "preset": preset}
    return _assembled(facts, base, architecture or {}, {"data": data} | changes)


def table_config(model: str, x_dim: int, y_dim: int, tasks: int, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit to a table of numbers; its model's size follows the number of tasks.

    >>> [table_config("nvdp", 1, 1, tasks, 100, seed=0).model.decoder.width for tasks in (40, 5_000)]
    [48, 128]
    """
    size = "small" if tasks < SMALL else "medium" if tasks < MEDIUM else "large"
    facts = {"family": "table", "task": "csv", "model": model, "preset": "cpu", "size": size}
    return _fit(_assembled(facts, ModelConfig(model, x_dim, y_dim), {}, {"seed": seed}), steps)


def class_config(model: str, features: int, way: int, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit of a classifier to a table.

    >>> class_config("protonet", features=3, way=4, steps=10, seed=0).model.x_dim
    3
    """
    facts = {"family": "class table", "task": "csv", "model": model, "preset": "cpu"}
    base = ClassifierConfig(model, max(2, way))
    return _fit(_assembled(facts, base, {"extractor.features": features}, {"seed": seed}), steps)


def _assembled(
    facts: Mapping[str, Any],
    base: ModelConfig | ClassifierConfig,
    architecture: Mapping[str, Any],
    run: Mapping[str, Any],
) -> RunConfig:
    """The rules that fit, then the given settings."""
    check_serves(base)
    spec = model_spec(base.name)
    facts = {**facts, "dropout": spec.dropout, "reader": spec.reader, "fixed_classes": spec.fixed_classes}
    settings: dict[str, Any] = {"task": facts["task"], "preset": facts["preset"], "objective": spec.objective}
    settings["kl"] = KLScale("elbo", spec.kl_weight(base.kind))
    model: dict[str, Any] = {}
    for rule in RULES:
        if rule.fits(facts):
            settings |= rule.run
            model |= rule.model
    return RunConfig(**(settings | {"model": base.updated(model | dict(architecture))} | dict(run)))


def _fit(config: RunConfig, steps: int) -> RunConfig:
    """So many steps, of which at most a tenth warm up."""
    return replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 10))


def shortened(config: RunConfig, steps: int) -> RunConfig:
    """A preset's configuration with another number of steps, of which at most a quarter warm up.

    >>> shortened(preset_config("gp", "nvdp", "cpu"), 100).warmup_steps
    25
    """
    return replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 4))


def _extractor(task: str, data: DataConfig, features: str | None) -> dict[str, Any]:
    """The model's input: images of the task's own shape, or the features of an extractor for such images."""
    source = class_source(task, data)
    name = "conv5" if source.size >= CONV5_SIZE else "conv4"
    width = EXTRACTORS[name].features(source.size)
    if features is not None:
        folders = extractor_folders(features)
        known = [described_features(folder, task)["features"] if has_features(folder) else width for folder in folders]
        return {"extractor.name": "none", "extractor.features": sum(known)}
    return {
        "extractor.name": name,
        "extractor.channels": source.channels,
        "extractor.size": source.size,
        "extractor.features": width,
    }


def _fine_tuned(
    extractor: str, recipe: PretrainConfig | None, task: str, data: DataConfig, model: str
) -> dict[str, Any]:
    """The model's input: convolutions of a pretrained extractor; models that adapt by gradients keep the last ReLU."""
    recipe = recipe or PretrainConfig.load(extractor_folder(extractor) / CONFIG)
    source = class_source(task, data)
    seen, given = ((one.size, one.size, one.channels) for one in (recipe, source))
    if seen != given:
        sizes = ["×".join(map(str, size)) for size in (seen, given)]
        raise InputError(
            f"the extractor {extractor} was pretrained on images of {sizes[0]}; those of {task} are {sizes[1]}"
        )
    shown = {"name": recipe.extractor, "features": EXTRACTORS[recipe.extractor].features(recipe.size)}
    if not model_spec(model).fixed_classes:
        shown |= {"last_relu": recipe.last_relu, "normalise_own": True}
    return {f"extractor.{name}": value for name, value in shown.items()}
