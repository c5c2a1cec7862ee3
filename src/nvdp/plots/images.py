"""Pictures in rows and columns: figure 4 of the paper, and the completion of a single picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.style import FONT_SIZE, new_figure, save_figure

HIDDEN = -1.0  # the value of a pixel that is not shown
HIDDEN_COLOUR = (0.0, 0.15, 0.45)
DEVIATIONS = "viridis"
GAP = 2  # pixels between two pictures
CELLS, SMALLEST, LARGEST = 6.2, 0.62, 1.2  # inches of all pictures side by side, of a picture
LABELS, TITLES, BAR = 1.25, 0.6, 0.7  # inches
Cell = Float[np.ndarray, "_row _column _channel"] | Float[np.ndarray, "_row _column"]


@dataclass(frozen=True)
class PictureRow:
    """A labelled row: (row, column, channel) is a picture, (row, column) a map of standard deviations."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class PictureGrid:
    """Rows of pictures of one size under named columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[PictureRow, ...]

    def __post_init__(self) -> None:
        sizes = {cell.shape[:2] for row in self.rows for cell in row.cells}
        if len(sizes) != 1:
            raise InputError(f"grid '{self.title}': pictures of sizes {sorted(sizes)}; expected one size")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise InputError(
                    f"grid '{self.title}': row '{row.label}' has {len(row.cells)} pictures for "
                    f"{len(self.columns)} columns"
                )


def figure_pictures(grids: Sequence[PictureGrid], path: Path | str) -> list[Path]:
    """Grids side by side, their rows in line, with one scale for all standard deviations."""
    if not grids:
        raise InputError("a figure of pictures needs at least one grid; got 0")
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
