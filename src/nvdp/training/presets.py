"""Presets: the settings of a run by preset, family of tasks and model, as one table of rules.

`RULES` says what differs from the defaults of `RunConfig` and of the model's configuration, which are the paper's. All
rules that fit are applied in their order, so a later one wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nvdp.data.episodes import FEWSHOT_TASKS, EpisodeConfig, class_source
from nvdp.data.features import described_features, extractor_folders, has_features
from nvdp.data.gp import MaternTNPTasks, TNPTasks
from nvdp.data.images import ImageTasks
from nvdp.data.registry import GP_TASKS, IMAGE_TASKS, task_source
from nvdp.data.source import ANY_CONTEXT, NO_DATA, DataConfig
from nvdp.errors import unknown_name
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.registry import check_serves, model_spec
from nvdp.nn.extractors import EXTRACTORS
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig

Settings = Mapping[str, Any]
# quick and cpu: our own recipe. paper: as printed. tuned: the paper's network, steps and learning rate, with our weight
# of the KL and bounds of the rates. released: with those of the authors' code.
PRESETS = ("quick", "cpu", "paper", "tuned", "released")
FEWSHOT_PRESETS = ("quick", "cpu", "paper", "tuned")
OWN, PRINTED = ("quick", "cpu"), ("paper", "tuned", "released")
TNP = (TNPTasks.name, MaternTNPTasks.name)
EPOCHS, TASKS_PER_STEP = 300, 16  # of the paper
SMALL, MEDIUM = 200, 2_000  # tasks of a table from which on a model is made wider
CONV5_SIZE = 64  # from this size on, images get five blocks

TOY: dict[str, Any] = {
    "decoder.width": 12,
    "decoder.layers": 2,
    "encoder.size": 12,
    "rates.width": 12,
    "decoder.latent": 12,
    "rates.activation": "mish",
    "decoder.sees": "x,r",
}
# Models without a reader learn faster with these, on GP functions (`nvdp reproduce recipes`, `quarter`) and on images.
FOURIER: dict[str, Any] = {
    "encoder.residual": True,
    "rates.residual": True,
    "encoder.activation": "silu",
    "rates.activation": "silu",
    "decoder.layers": 3,  # Fourier features need fewer layers
    "encoder.layers": 3,
    "rates.layers": 2,
    "inputs.fourier": 8,
    "encoder.aggregation": "bayesian",
}
# Images on a grid with a cell for every pixel: a U-Net over squares of 2×2 pixels is cheaper than one over pixels.
PIXELS: dict[str, Any] = {
    "convolution.kernel": 3,
    "convolution.blocks": 1,
    "convolution.levels": 3,
    "convolution.patch": 2,
    "convolution.dense": True,
}
# A pixel of a digit is black or white: eight Gaussians describe what one cannot.
MIXTURE: dict[str, Any] = {
    "likelihood.components": 8,
    "likelihood.shared_std": False,
    "likelihood.joint_share": 0.0,
}


@dataclass(frozen=True)
class Rule:
    """Settings of the run, and of the model by dotted name, where all facts have one of the given values."""

    when: Settings
    run: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)

    def fits(self, facts: Settings) -> bool:
        """Whether the rule is for these facts."""
        return all(
            facts.get(name) in (values if isinstance(values, tuple) else (values,))
            for name, values in self.when.items()
        )


def _epochs(images: int) -> int:
    return EPOCHS * images // TASKS_PER_STEP


RULES = (
    # Regression: steps and learning rate.
    Rule(
        {"kind": "regression", "preset": "quick"},
        {"steps": 2_000, "learning_rate": 1e-3, "warmup_steps": 100, "gradient_clip": 1.0},
    ),
    Rule(
        {"kind": "regression", "preset": "cpu"},
        {"steps": 36_000, "learning_rate": 1e-3, "warmup_steps": 500, "gradient_clip": 1.0},
    ),
    Rule({"kind": "regression", "preset": PRINTED}, {"steps": 500_000, "learning_rate": 5e-4, "schedule": "constant"}),
    Rule({"family": "image", "preset": PRINTED}, {"learning_rate": 4e-4}),
    Rule({"task": "mnist", "preset": PRINTED}, {"steps": _epochs(50_000)}),
    Rule({"task": ("omniglot", "images"), "preset": PRINTED}, {"steps": _epochs(16_720)}),  # a folder's size is unknown
    Rule({"task": "celeba", "preset": PRINTED}, {"steps": _epochs(162_770)}),
    Rule({"family": "trig", "preset": OWN}, {"learning_rate": 3e-3}),  # a network of 12 units takes larger steps
    Rule({"family": ("gp", "image"), "preset": OWN, "reader": None}, {"optimizer": "nadam"}, FOURIER),
    # The bound of the paper drives the rates to where functions do not differ: `nvdp reproduce alive`.
    Rule(
        {"family": "gp", "preset": OWN, "model": "nvdp"},
        model={"likelihood.integrate_plain": True, "likelihood.shared_std": False},
    ),
    # It wins short runs; the longer, the less it matters.
    Rule({"family": "gp", "preset": "quick", "model": "nvdp"}, {"learning_rate": 2e-3}),
    # NVDP's LL (E log) on validation digits after two minutes: 0.83, 0.87 and 0.91 with 1, 2 and 4e-3, level beyond; a
    # CNP's after one minute 0.78 and 0.89 with 1 and 4e-3.
    Rule({"family": "image", "preset": OWN, "reader": None}, {"learning_rate": 4e-3}),
    # The KL and the bounds of the rates as the paper prints them: eq. 6, and (0.01, 0.99) in the appendix.
    Rule({"dropout": True, "preset": "paper"}, {"kl": KLScale("text", 1.0)}, {"rates.bounds": "clip"}),
    # Regression: the KL.
    Rule({"family": ("gp", "trig"), "dropout": True, "preset": "released"}, {"kl": KLScale("released", 1.4)}),
    Rule({"family": "image", "dropout": True, "preset": "released"}, {"kl": KLScale("released", 0.5)}),
    # Regression: the architecture.
    Rule({"kind": "regression", "preset": "released"}, model={"rates.bounds": "clip"}),
    # No floor above the noise of 0.02; scores count targets alone, and so does training.
    Rule({"task": TNP}, model={"likelihood.min_std": 1e-3, "likelihood.scored": "targets"}),
    Rule({"task": "trig"}, model=TOY),
    Rule({"task": "celeba"}, model={"encoder.size": 1_024}),
    # Layers before a wide r: a step is far cheaper. A residual encoder would have to be as wide as r.
    Rule({"task": "celeba", "preset": OWN}, model={"encoder.width": 128, "encoder.residual": False}),
    # Where targets read the context themselves, r and the rates carry little.
    Rule(
        {"kind": "regression", "reader": ("attention", "convolution")},
        model={"decoder.layers": 2, "decoder.activation": "silu", "encoder.layers": 3, "rates.layers": 2},
    ),
    Rule(  # a U-Net that reaches ±2.7 of x
        {"family": "gp", "reader": "convolution", "preset": OWN},
        {"tasks_per_step": 8, "learning_rate": 3e-3, "optimizer": "muon"},
        {
            "convolution.cells": 128,
            "convolution.levels": 4,
            "convolution.blocks": 1,
            "convolution.kernel": 5,
            "convolution.dense": True,
        },
    ),
    Rule({"family": "gp", "reader": "convolution", "preset": "quick"}, {"steps": 2_400}),
    Rule({"family": "gp", "reader": "convolution", "preset": "cpu"}, {"steps": 30_000}),
    Rule(
        {"family": "gp", "reader": "attention", "preset": "quick"},
        {"tasks_per_step": 8, "learning_rate": 2e-3, "optimizer": "muon"},
    ),
    # One noisy hidden layer and a low floor of the rates keep what a target reads precise. Rates of the task alone
    # would not matter: targets would learn their doubt from what they read. One σ for all points would be larger than
    # the noise near the context; with a σ of each point, nothing less than the whole joint density keeps functions
    # apart under every seed.
    Rule(
        {"family": "gp", "model": ("nvdp-attentive", "nvdp-conv"), "preset": OWN},
        model={
            "decoder.layers": 1,
            "rates.floor": 1e-3,
            "rates.per": "target",
            "likelihood.shared_std": False,
            "likelihood.joint_share": 1.0,
        },
    ),
    Rule({"kind": "regression", "model": "convgnp"}, model={"likelihood.joint_share": 1.0, "decoder.latent": 64}),
    Rule({"family": "gp", "model": "convgnp", "preset": OWN}, model={"likelihood.shared_std": False}),
    Rule({"kind": "regression", "model": "anp"}, model={"attention.by_distance": False}),
    Rule(  # as published, but with normalisation before each part of a block
        {"kind": "regression", "model": "tnp-d"},
        model={"attention.by_distance": False, "attention.blocks": 6, "attention.heads": 4, "decoder.layers": 1},
    ),
    Rule(
        {"family": "image", "reader": "convolution"},
        model={"convolution.low": 0.0, "convolution.high": 1.0, "convolution.kernel": 5},
    ),
    Rule(
        {"family": "image", "reader": "convolution", "preset": OWN},
        {"optimizer": "nadam", "learning_rate": 3e-3, "warmup_steps": 100},
        {"convolution.low": -2.0, "convolution.high": 2.0, "encoder.size": 128, **PIXELS},
    ),
    Rule({"family": "image", "model": ("nvdp-conv", "convcnp"), "preset": OWN}, model=MIXTURE),
    Rule(  # x from [0, 1] to [−2, 2], y to [−1, 1]
        {"family": "image", "preset": OWN},
        model={"inputs.x_centre": 0.5, "inputs.x_scale": 4.0, "inputs.y_centre": 0.5, "inputs.y_scale": 2.0},
    ),
    # A CNP learns slower with it, and on GP functions an NVDP whose targets read the context.
    Rule({"family": "gp", "preset": OWN, "dropout": True, "reader": None}, model={"encoder.task_norm": True}),
    Rule({"family": "image", "preset": OWN, "dropout": True}, model={"encoder.task_norm": True}),
    # The general prior: noise from the network, scored on targets alone.
    Rule(
        {"family": "general", "preset": OWN},
        model={
            "likelihood.min_std": 0.003,
            "likelihood.shared_std": False,
            "likelihood.components": 8,
            "likelihood.joint_share": 0.1,
            "likelihood.scored": "targets",
            "encoder.residual": True,
            "encoder.activation": "silu",
            "encoder.aggregation": "bayesian",
            "rates.residual": True,
            "rates.activation": "silu",
            "rates.floor": 0.001,
        },
    ),
    Rule({"family": "general", "preset": "cpu"}, {"steps": 40_000, "tasks_per_step": 32}),
    # On GP functions NVDP learns slower with it.
    Rule({"family": "image", "preset": OWN, "model": "nvdp"}, model={"rates.norm": True}),
    # Few-shot classification: the paper trains as VERSA does; shapes without a rule take those of 5-way 5-shot.
    Rule(
        {"family": "few-shot", "preset": PRINTED},
        {"steps": 80_000, "tasks_per_step": 16, "learning_rate": 1e-4, "schedule": "constant"},
    ),
    Rule({"task": "omniglot-fewshot", "preset": PRINTED, "way": 20, "shot": 5}, {"steps": 60_000}),
    Rule({"task": "omniglot-fewshot", "preset": PRINTED, "way": 20, "shot": 1}, {"steps": 100_000}),
    Rule({"task": "miniimagenet", "preset": PRINTED, "way": 5, "shot": 5}, {"steps": 100_000, "tasks_per_step": 4}),
    Rule(
        {"task": "miniimagenet", "preset": PRINTED, "way": 5, "shot": 1},
        {"steps": 50_000, "tasks_per_step": 8, "learning_rate": 2.5e-4},
    ),
    Rule({"family": "few-shot", "preset": OWN}, {"tasks_per_step": 8, "learning_rate": 1e-3, "gradient_clip": 10.0}),
    Rule(
        {"family": "few-shot", "preset": "quick", "regime": "end-to-end"},
        {"steps": 300, "tasks_per_step": 4, "warmup_steps": 20},
    ),
    Rule({"family": "few-shot", "preset": "quick", "regime": "features"}, {"steps": 500, "warmup_steps": 20}),
    Rule({"family": "few-shot", "preset": "cpu", "regime": "end-to-end"}, {"steps": 8_000, "warmup_steps": 200}),
    Rule({"family": "few-shot", "preset": "cpu", "regime": "features"}, {"steps": 4_000, "warmup_steps": 200}),
    Rule(
        {"family": "few-shot", "preset": OWN, "model": "nvdp"},
        model={"rates.sees": "contrast", "rates.path": "activations"},
    ),
    Rule(
        {"family": "few-shot", "preset": OWN, "model": "nvdp", "regime": "features"}, model={"rates.sees": "directions"}
    ),
    # Gradient steps of adaptation, as in the papers of these models.
    Rule({"family": "few-shot", "fixed_classes": True}, model={"gradient.steps": 5, "gradient.rate": 0.01}),
    Rule({"task": "omniglot-fewshot", "fixed_classes": True}, model={"gradient.rate": 0.1}),
    Rule(
        {"task": "omniglot-fewshot", "model": "maml", "way": (2, 3, 4, 5)},
        model={"gradient.steps": 1, "gradient.rate": 0.4},
    ),
    # Fits to a table: the size of the model follows the number of tasks.
    Rule(
        {"family": "table"},
        {"learning_rate": 2e-3, "warmup_steps": 100, "gradient_clip": 1.0},
        # σ in units of all outputs: tables are often less noisy than the paper's tasks.
        {"likelihood.min_std": 0.02, "decoder.layers": 3, "encoder.layers": 3, "rates.layers": 2},
    ),
    Rule(
        {"family": "table", "size": "small"},
        model={"decoder.width": 48, "encoder.size": 48, "rates.width": 48, "decoder.latent": 24},
    ),
    Rule(
        {"family": "table", "size": "medium"},
        model={"decoder.width": 64, "encoder.size": 64, "rates.width": 64, "decoder.latent": 32},
    ),
    Rule(
        {"family": "table", "size": "large"},
        {"learning_rate": 1e-3},
        {"decoder.layers": 4, "encoder.layers": 4, "decoder.latent": 64},
    ),
    Rule({"family": "table", "dropout": True}, model={"encoder.task_norm": True}),
    Rule(
        {"family": "class table"},
        {"tasks_per_step": 8, "learning_rate": 2e-3, "warmup_steps": 50, "gradient_clip": 10.0},
        {
            "extractor.name": "none",
            "extractor.normalise": False,  # of a vector of few numbers little is left
            "decoder.width": 128,
            "decoder.sees": "x,r",
            "meta.width": 64,
        },
    ),
)


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
        if queries is None:  # features cost so little that they take 15 with any preset
            queries = 5 if preset in OWN and features is None else 15
        regime = "end-to-end" if features is None else "features"
        facts: dict[str, Any] = {"family": "few-shot", "way": way, "shot": shot, "regime": regime}
        base = ClassifierConfig(model, way).updated(_extractor(task, data, features) | dict(architecture or {}))
        if model == "nvdp" and preset in OWN and features is not None:  # its start needs every feature with both signs
            base = base.updated({"decoder.width": max(base.decoder.width, 2 * base.extractor.features)})
        changes = {"episodes": EpisodeConfig(way, shot, queries, regime, features)} | changes
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
