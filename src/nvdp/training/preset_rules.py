"""The rules of the presets: settings by preset, family of tasks and model, as one table.

`RULES` says what differs from the defaults of `RunConfig` and of the model's configuration, which are the paper's. All
rules that fit are applied in their order, so a later one wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nvdp.data.gp import MaternTNPTasks, TNPTasks
from nvdp.objectives import KLScale

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
    # `python benchmarks/search.py` compares NAdam and Muon for equal seconds.
    Rule(
        {"family": "gp", "preset": OWN, "reader": None},
        {"optimizer": "muon", "muon_rows": 128, "learning_rate": 6e-3},
    ),
    Rule({"family": "gp", "preset": OWN, "model": "nvdp"}, {"learning_rate": 1.2e-2}),
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
    Rule({"family": "few-shot", "preset": "quick", "regime": "fine-tuned"}, {"steps": 100, "warmup_steps": 20}),
    Rule({"family": "few-shot", "preset": "quick", "regime": "features"}, {"steps": 500, "warmup_steps": 20}),
    Rule({"family": "few-shot", "preset": "cpu", "regime": "end-to-end"}, {"steps": 8_000, "warmup_steps": 200}),
    Rule({"family": "few-shot", "preset": "cpu", "regime": "features"}, {"steps": 4_000, "warmup_steps": 200}),
    Rule({"family": "few-shot", "preset": "cpu", "regime": "fine-tuned"}, {"steps": 1_000, "warmup_steps": 100}),
    # Smaller steps than from random weights, so that what the extractor has learned is kept.
    Rule({"family": "few-shot", "preset": OWN, "regime": "fine-tuned"}, {"learning_rate": 2e-4}),
    Rule(
        {"family": "few-shot", "preset": OWN, "model": "nvdp"},
        model={"rates.sees": "contrast", "rates.path": "activations"},
    ),
    Rule(
        {"family": "few-shot", "preset": OWN, "model": "nvdp", "regime": ("features", "fine-tuned")},
        model={"rates.sees": "directions"},
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
