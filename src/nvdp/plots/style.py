"""How every figure looks and how it is saved: Okabe–Ito colours, 8 pt text, PNG and PDF."""

from pathlib import Path
from typing import TYPE_CHECKING

from nvdp.errors import InputError
from nvdp.system import write_whole

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Okabe & Ito (2008): distinct under the common kinds of colour blindness. Yellow is too faint for lines.
BLACK, BLUE, VERMILLION, GREEN = "#000000", "#0072B2", "#D55E00", "#009E73"
PURPLE, SKY_BLUE, ORANGE = "#CC79A7", "#56B4E9", "#E69F00"
SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE)
SERIES_LINES = (
    "-",
    (0, (5, 1.5)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
FONT_SIZE, WIDTH, DPI = 8, 7.2, 150  # points, inches of a printed page, pixels an inch
FORMATS = (".png", ".pdf", ".svg")


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """An empty figure of that many inches which arranges its own parts."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: "matplotlib.axes.Axes") -> None:
    """Two spines, short ticks, small print."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT_SIZE, length=2.5, width=0.6)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)


def save_figure(figure: "matplotlib.figure.Figure", path: Path | str) -> list[Path]:
    """Write the figure, a PNG with a PDF beside it, and return the paths; the same figure, the same bytes."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise InputError(f"cannot draw {path}: its suffix is '{path.suffix}'; expected one of {', '.join(FORMATS)}")
    paths = [path, path.with_suffix(".pdf")] if path.suffix == ".png" else [path]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {path.parent}: {error.strerror}") from None
    for each in paths:
        kind = each.suffix[1:]
        dated = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
        write_whole(each, lambda beside: figure.savefig(beside, format=kind, dpi=DPI, metadata=dated))  # noqa: B023
    return paths
