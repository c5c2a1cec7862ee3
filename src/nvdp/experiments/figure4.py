"""Figure 4: images completed from 10, 30, 100, half and all pixels, at random or chosen by the model.

Faces of CelebA may not be passed on: their figure is drawn inside the run folder, and results hold only numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from nvdp.data.images import PublicImages
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.results import DIGITS
from nvdp.experiments.table2 import plan as table2_plan
from nvdp.images.completion import PixelChoice, random_contexts
from nvdp.models.base import RegressionModel
from nvdp.plots import PictureGrid, PictureRow, context_grid, figure_pictures
from nvdp.randomness import derived_generator
from nvdp.training.run_folder import load_run

MODELS = ("np", "np+cnp", "nvdp", "nvdp-conv")
TRAINED_ON = {"mnist": "mnist", "omniglot": "mnist", "celeba": "celeba"}  # shown: trained on
PRIVATE = ("celeba",)  # images that may not be passed on
SCORED_IMAGES, SHOWN_IMAGE, SEED = 32, 0, 4


def plan(budget: str) -> Sequence[PlannedRun]:
    """The runs of table 2 that the figure shows."""
    shown = {f"{model}-{task}" for model in MODELS for task in TRAINED_ON.values()}
    return [run for run in table2_plan(budget) if run.name in shown]


def context_sizes(pixels: int) -> dict[str, int]:
    """The paper's context sizes by title, for an image of that many pixels.

    >>> context_sizes(784)
    {'10': 10, '30': 30, '100': 100, 'half': 392, 'all': 784}
    """
    return {"10": 10, "30": 30, "100": 100, "half": pixels // 2, "all": pixels}


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Images of the sets that may be shown, and for every set the scores of random and of chosen pixels."""
    return collected({name: _models(folders, name) for name in TRAINED_ON})


def collected(models: Mapping[str, Mapping[str, RegressionModel]]) -> dict[str, Any]:
    """The same for models by label, by the set whose test images they complete."""
    grids, numbers = [], {}
    for name, by_label in models.items():
        images = shown_test_images(name)
        sizes = context_sizes(images.shape[1] * images.shape[2])
        numbers[name] = {label: pixel_choice(model, images, sizes) for label, model in by_label.items()}
        if name not in PRIVATE:
            grids.append(grid_to_json(context_grid(by_label, images[SHOWN_IMAGE], sizes, _title(name), SEED)))
    return {"images": SCORED_IMAGES, "grids": grids, "pixels": numbers}


def pixel_choice(
    model: RegressionModel, images: UInt8[np.ndarray, "image row column channel"], sizes: Mapping[str, int]
) -> dict[str, dict[str, dict[str, float]]]:
    """PSNR, LL and spread by context size, for random pixels and for pixels that the model chose.

    Args:
        model: The model.
        images: The images to complete.
        sizes: Context sizes by title.

    Returns:
        Mean scores over the images, by "random" or "uncertainty", then by title.
    """
    choice = PixelChoice(model, images, seed=SEED, length_scale=0.0)  # by their own variance, as in the paper
    ways = {
        "random": random_contexts(images, list(sizes.values()), SEED),
        "uncertainty": choice.uncertain_contexts(list(sizes.values())),
    }
    return {
        way: {size: choice.scores(mask) for size, mask in zip(sizes, masks, strict=True)} for way, masks in ways.items()
    }


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """Draw the figure."""
    return figure_pictures([grid_from_json(grid) for grid in data["grids"]], path)


def draw_private(folders: Mapping[str, Path]) -> Sequence[Path]:
    """Draw the figure of CelebA inside the folder of its NVDP run."""
    written: list[Path] = []
    for name in PRIVATE:
        images = shown_test_images(name)
        sizes = context_sizes(images.shape[1] * images.shape[2])
        grid = context_grid(_models(folders, name), images[SHOWN_IMAGE], sizes, _title(name), SEED)
        written += figure_pictures([grid], folders[f"nvdp-{name}"] / "figure4.png")
    return written


def grid_to_json(grid: PictureGrid) -> dict[str, Any]:
    """A grid as lists."""
    rows = [{"label": row.label, "cells": [cell.round(DIGITS).tolist() for cell in row.cells]} for row in grid.rows]
    return {"title": grid.title, "columns": list(grid.columns), "rows": rows}


def grid_from_json(values: dict[str, Any]) -> PictureGrid:
    """The grid that `grid_to_json` wrote."""
    rows = [PictureRow(row["label"], tuple(np.array(cell, float) for cell in row["cells"])) for row in values["rows"]]
    return PictureGrid(values["title"], tuple(values["columns"]), tuple(rows))


def _models(folders: Mapping[str, Path], name: str) -> dict[str, RegressionModel]:
    return {model.upper(): load_run(folders[f"{model}-{TRAINED_ON[name]}"])[1] for model in MODELS}


def shown_test_images(name: str) -> UInt8[np.ndarray, "image row column channel"]:
    """The test images of a set that the figure is about."""
    images = PublicImages(name).split("test")
    order = torch.randperm(len(images), generator=derived_generator(SEED, "figure4", name))
    return images[order[:SCORED_IMAGES].numpy()]


def _title(name: str) -> str:
    trained = TRAINED_ON[name]
    return f"{name} ({'trained on ' + trained if trained != name else 'new images'}): pixels shown"


FIGURE4 = Experiment(
    "figure4", "Figure 4: images completed from 10, 30, 100, half and all pixels", plan, collect, draw, draw_private
)
