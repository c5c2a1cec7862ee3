"""Style of all figures and how they are saved: Okabe–Ito colours, 8 pt text, PNG and PDF."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdp.errors import InputError
from nvdp.system import write_whole

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Okabe & Ito (2008): distinct under the common kinds of colour blindness. Yellow is too faint for lines.
BLACK, BLUE, VERMILLION, GREEN = "#000000", "#0072B2", "#D55E00", "#009E73"
PURPLE, SKY_BLUE, ORANGE, GREY = "#CC79A7", "#56B4E9", "#E69F00", "#999999"
SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE)
# For figures with more curves, darker ones by Paul Tol: indigo, wine, olive, green, brown, violet, grey.
MORE_COLOURS = ("#332288", "#882255", "#999933", "#117733", "#661100", "#AA4499", "#777777")
SERIES_LINES = (
    "-",
    (0, (5, 1.5)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (1.2, 1.2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
FONT_SIZE, WIDTH, DPI = 8, 7.2, 150  # points, inches of a page, pixels per inch
FORMATS = (".png", ".pdf", ".svg")


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    """An empty figure of that size in inches, with constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def series_style(index: int) -> tuple[str, Any]:
    """Colour and line style of a curve by its place: the first 13 differ in colour, the first 78 in the pair.

    >>> len({series_style(index)[0] for index in range(13)}), len({str(series_style(index)) for index in range(78)})
    (13, 78)
    """
    colours = SERIES_COLOURS + MORE_COLOURS
    repeat, place = divmod(index, len(colours))
    return colours[place], SERIES_LINES[(place + repeat) % len(SERIES_LINES)]


def tidy(axes: "matplotlib.axes.Axes") -> None:
    """Apply the common style to the axes: two spines, short ticks, small labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=FONT_SIZE, length=2.5, width=0.6)
    for spine in axes.spines.values():
        spine.set_linewidth(0.6)


def figure_paths(path: Path | str) -> list[Path]:
    """The files that `save_figure` writes: a PNG gets a PDF of the same name.

    >>> [each.name for each in figure_paths("a.png")]
    ['a.png', 'a.pdf']
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise InputError(f"cannot draw {path}: its suffix is '{path.suffix}'; expected one of {', '.join(FORMATS)}")
    return [path, path.with_suffix(".pdf")] if path.suffix == ".png" else [path]


def save_figure(figure: "matplotlib.figure.Figure", path: Path | str) -> list[Path]:
    """Write a figure. The same figure always gives the same bytes.

    Args:
        figure: The figure to save.
        path: A file that ends in .png, .pdf or .svg. A PNG gets a PDF of the same name.

    Returns:
        The files written.
    """
    paths = figure_paths(path)
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {paths[0].parent}: {error.strerror}") from None
    for each in paths:
        kind = each.suffix[1:]
        dated = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
        write_whole(each, lambda beside: figure.savefig(beside, format=kind, dpi=DPI, metadata=dated))  # noqa: B023
    return paths
