"""Images in rows and columns: figure 4 of the paper, and the completion of one image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8

from nvdp.errors import InputError
from nvdp.images.completion import Completion, PixelChoice, complete, drawn_in_blocks, random_contexts
from nvdp.models.base import RegressionModel
from nvdp.plots.style import FONT_SIZE, new_figure, save_figure

HIDDEN = -1.0  # value of a pixel that is not in the context
FUNCTIONS = 2  # sampled functions of a model, one row each
HIDDEN_COLOUR = (0.0, 0.15, 0.45)
DEVIATIONS = "viridis"
GAP = 2  # pixels between two images
CELLS, SMALLEST, LARGEST = 6.2, 0.62, 1.2  # inches: all images of a row together, one image
LABELS, TITLES, BAR = 1.25, 0.6, 0.7  # inches
Cell = Float[np.ndarray, "_row _column _channel"] | Float[np.ndarray, "_row _column"]


@dataclass(frozen=True)
class PictureRow:
    """A labelled row. A cell (row, column, channel) is an image, (row, column) a map of standard deviations."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class PictureGrid:
    """Rows of images of one size under named columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[PictureRow, ...]

    def __post_init__(self) -> None:
        sizes = {cell.shape[:2] for row in self.rows for cell in row.cells}
        if len(sizes) != 1:
            raise InputError(f"grid '{self.title}': images of sizes {sorted(sizes)}; expected one size")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise InputError(
                    f"grid '{self.title}': row '{row.label}' has {len(row.cells)} images for "
                    f"{len(self.columns)} columns"
                )


def figure_pictures(grids: Sequence[PictureGrid], path: Path | str) -> list[Path]:
    """Draw grids side by side.

    Args:
        grids: All standard deviations share one colour scale. Row labels are those of the first grid.
        path: The file to write.

    Returns:
        The files written.
    """
    if not grids:
        raise InputError("a figure of images needs at least one grid; got 0")
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    deviations = [cell.max() for grid in grids for row in grid.rows for cell in row.cells if cell.ndim == 2]
    scale = ScalarMappable(Normalize(0, max(deviations, default=1.0)), DEVIATIONS)
    columns, rows = [len(grid.columns) for grid in grids], max(len(grid.rows) for grid in grids)
    cell = min(max(CELLS / sum(columns), SMALLEST), LARGEST)
    figure = new_figure(LABELS + cell * sum(columns) + BAR, cell * rows + TITLES)
    all_axes = figure.subplots(1, len(grids), squeeze=False, width_ratios=columns)[0]
    for index, (axes, grid) in enumerate(zip(all_axes, grids, strict=True)):
        axes.imshow(_mosaic(grid, scale), interpolation="nearest")
        height, width = grid.rows[0].cells[0].shape[:2]
        places = np.arange(max(rows, len(grid.columns)))
        axes.set_xticks(places[: len(grid.columns)] * (width + GAP) + width / 2, grid.columns, fontsize=FONT_SIZE)
        labels = [row.label for row in grid.rows] if index == 0 else []
        axes.set_yticks(places[: len(labels)] * (height + GAP) + height / 2, labels, fontsize=FONT_SIZE)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.set_title(grid.title, fontsize=FONT_SIZE + 1)
    if deviations:
        bar = figure.colorbar(scale, ax=all_axes, shrink=min(1.0, 4 / rows), aspect=20)
        bar.set_label("standard deviation", fontsize=FONT_SIZE)
        bar.ax.tick_params(labelsize=FONT_SIZE, length=2.5, width=0.6)
        bar.outline.set_linewidth(0.6)
    return save_figure(figure, path)


def _mosaic(grid: PictureGrid, scale: object) -> Float[np.ndarray, "row column 3"]:
    height, width = grid.rows[0].cells[0].shape[:2]
    shape = (len(grid.rows) * (height + GAP) - GAP, len(grid.columns) * (width + GAP) - GAP, 3)
    mosaic = np.ones(shape)
    for i, row in enumerate(grid.rows):
        for j, cell in enumerate(row.cells):
            top, left = i * (height + GAP), j * (width + GAP)
            mosaic[top : top + height, left : left + width] = _colours(cell, scale)
    return mosaic


def _colours(cell: Cell, scale: object) -> Float[np.ndarray, "row column 3"]:
    if cell.ndim == 2:
        return np.asarray(scale.to_rgba(cell))[..., :3]  # type: ignore[attr-defined]
    hidden = (cell == HIDDEN).all(-1, keepdims=True)
    return np.where(hidden, HIDDEN_COLOUR, np.broadcast_to(cell.clip(0, 1), (*cell.shape[:2], 3)))


def shown_pixels(done: Completion) -> Float[np.ndarray, "row column channel"]:
    """The image with all pixels outside the context hidden."""
    return np.where(done.is_shown[..., None], done.truth, HIDDEN)


def deviation(done: Completion) -> Float[np.ndarray, "row column"]:
    """Predictive standard deviation of each pixel: root mean square over channels."""
    return np.asarray(np.sqrt(np.square(done.std).mean(-1)))


def completion_grid(done: Completion, title: str) -> PictureGrid:
    """One row that shows a completed image.

    Args:
        done: The completion.
        title: Title of the grid.

    Returns:
        The context, the completion, two sampled functions and the standard deviation.
    """
    columns = ("kept", "completed", *(f"sample {k + 1}" for k in range(FUNCTIONS)), "deviation")
    cells = (shown_pixels(done), done.completed, *done.functions[:FUNCTIONS], deviation(done))
    return PictureGrid(title, columns, (PictureRow("", cells),))


def context_grid(
    models: Mapping[str, RegressionModel],
    image: UInt8[np.ndarray, "row column channel"],
    contexts: Mapping[str, int],
    title: str,
    seed: int = 0,
) -> PictureGrid:
    """One image completed from growing contexts.

    Args:
        models: Models by name, two sampled functions of each. The last model also shows two pictures drawn block by
            block, its standard deviation, its completion, and its completion from pixels that it chose itself where its
            standard deviation was largest.
        image: The image to complete.
        contexts: Sizes of the contexts, by the titles of their columns.
        title: Title of the grid.
        seed: Of the random contexts and the sampled functions.

    Returns:
        The grid: one column for each context.
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
    for k in range(FUNCTIONS):
        blocks = [
            drawn_in_blocks(model, image[None], torch.from_numpy(mask).reshape(1, -1), seed + k) for mask in masks
        ]
        rows.append(PictureRow(f"{chooser} in blocks {k + 1}", tuple(each[0] for each in blocks)))
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
