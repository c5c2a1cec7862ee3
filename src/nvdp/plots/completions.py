"""Grids of pictures from models: a completed picture, and one image under growing contexts."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8

from nvdp.images.completion import Completion, PixelChoice, complete, random_contexts
from nvdp.models.base import MetaModel
from nvdp.plots.images import HIDDEN, PictureGrid, PictureRow

FUNCTIONS = 2  # independent samples in a row each


def shown_pixels(done: Completion) -> Float[np.ndarray, "row column channel"]:
    """The picture with its other pixels hidden."""
    return np.where(done.is_shown[..., None], done.truth, HIDDEN)


def deviation(done: Completion) -> Float[np.ndarray, "row column"]:
    """The predictive standard deviation of a pixel, its channels taken together."""
    return np.asarray(np.sqrt(np.square(done.std).mean(-1)))


def completion_grid(done: Completion, title: str) -> PictureGrid:
    """One row: what was kept, the completion, two samples, the standard deviation."""
    columns = ("kept", "completed", *(f"sample {k + 1}" for k in range(FUNCTIONS)), "deviation")
    cells = (shown_pixels(done), done.completed, *done.functions[:FUNCTIONS], deviation(done))
    return PictureGrid(title, columns, (PictureRow("", cells),))


def context_grid(
    models: Mapping[str, MetaModel],
    image: UInt8[np.ndarray, "row column channel"],
    contexts: Mapping[str, int],
    title: str,
    seed: int = 0,
) -> PictureGrid:
    """One image under growing random contexts: two samples of every model, and of the last model more.

    That is its predictive standard deviation, its completion, and its completion from as many pixels that it
    chose itself by where it was least sure.
    """
    sizes = list(contexts.values())
    chooser, model = list(models.items())[-1]
    masks = _square(random_contexts(image[None], sizes, seed), image)
    own = _square(PixelChoice(model, image[None], seed=seed).uncertain_contexts(sizes), image)
    done = {name: [complete(each, image, mask, seed=seed) for mask in masks] for name, each in models.items()}
    chosen = [complete(model, image, mask, seed=seed) for mask in own]
    rows = [PictureRow("context", tuple(map(shown_pixels, done[chooser])))]
    for name, completions in done.items():
        for k in range(FUNCTIONS):
            rows.append(PictureRow(f"{name} sample {k + 1}", tuple(each.functions[k] for each in completions)))
    rows.append(PictureRow(f"{chooser} deviation", tuple(map(deviation, done[chooser]))))
    rows.append(PictureRow(f"{chooser} completed", tuple(each.completed for each in done[chooser])))
    rows.append(PictureRow("own choice", tuple(map(shown_pixels, chosen))))
    rows.append(PictureRow("completed from it", tuple(each.completed for each in chosen)))
    columns = tuple(f"{name} = truth" if size == image[..., 0].size else name for name, size in contexts.items())
    return PictureGrid(title, columns, tuple(rows))


def _square(
    masks: Sequence[Bool[torch.Tensor, "1 pixel"]], image: UInt8[np.ndarray, "row column channel"]
) -> list[Bool[np.ndarray, "row column"]]:
    return [mask.reshape(image.shape[:2]).numpy() for mask in masks]
