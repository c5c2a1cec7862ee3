"""A table for the console: it wraps cells and headers at spaces; a narrow console has rows one under the other."""

from collections.abc import Collection, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table

from nvdp.bench.suites import SUITES, measured_on, table_cells

Column = Sequence[str]  # the header and the cells
SHORT = 8  # characters of a cell that is never wrapped
MOST_COLUMNS = 12  # that a terminal shows side by side
NAMES = ("model", "method", "recipe", "part")  # headers of columns of words


def table(result: dict[str, Any], width: int = 80) -> Table:
    """The rows of a result for people; a suite of many columns has one row for each of them instead.

    Where the columns do not fit side by side, each row is a block of lines, one for each column.

    Args:
        result: Of a suite.
        width: Characters of the console; quartiles and details are left out if they do not fit.

    Returns:
        The table.
    """
    suite = SUITES[result["suite"]]
    title, columns = suite.title, _console_columns(result)
    if needed_width(columns) > width:
        title, columns = title.replace(" (quartiles)", ""), _console_columns(result, quartiles=False)
    if least_width(columns) > width:
        columns = _console_columns(result, quartiles=False, details=False)
    if least_width(columns) <= width:
        return console_table(columns, width, title, measured_on(result), NAMES)
    cells = table_cells(result, quartiles=False)
    lines = [pair for row in zip(*cells.values(), strict=True) for pair in zip(cells, row, strict=True)]
    blocks = [["", *part] for part in zip(*lines, strict=True)]
    return console_table(blocks, width, title, measured_on(result), left=("",), block=len(cells))


def _console_columns(result: dict[str, Any], quartiles: bool = True, details: bool = True) -> list[list[str]]:
    left_out = () if details else SUITES[result["suite"]].details
    columns = [[name, *cells] for name, cells in table_cells(result, quartiles).items() if name not in left_out]
    return columns if len(columns) <= MOST_COLUMNS else [list(line) for line in zip(*columns, strict=True)]


def needed_width(columns: Sequence[Column]) -> int:
    """Characters of a table whose headers are wrapped at spaces and whose cells are not wrapped.

    >>> needed_width([["a model", "np+cnp"], ["ours ms", "4.0"]])
    13
    """
    return sum(_whole_cells(column) for column in columns) + _between(columns, 1)


def least_width(columns: Sequence[Column]) -> int:
    """Characters of a table that is wrapped wherever it can be.

    >>> least_width([["a model", "np+cnp"], ["table", "liver, 285 tasks"]])
    13
    """
    return sum(map(_wrapped, columns)) + _between(columns, 0)


def console_table(
    columns: Sequence[Column],
    width: int,
    title: str,
    caption: str,
    left: Collection[str] = (),
    block: int | None = None,
) -> Table:
    """A table of at most `width` characters, if its longest words fit into them.

    Args:
        columns: Header and cells of each.
        width: Characters of the console.
        title: Above the table.
        caption: Below it.
        left: Headers of columns that are aligned on the left, as the first one always is.
        block: A line is drawn after so many rows; None for no lines.

    Returns:
        The table.
    """
    padding = 1 if needed_width(columns) <= width else 0
    grid = Table(title=title, caption=caption, box=box.MINIMAL, show_edge=False, pad_edge=False, padding=(0, padding))
    grid.show_header = any(header for header, *_ in columns)
    for (header, *_), characters in zip(columns, _widths(columns, width - _between(columns, padding)), strict=True):
        aligned = grid.columns == [] or header in left
        grid.add_column(header, justify="left" if aligned else "right", width=characters, overflow="fold")
    for number, line in enumerate(list(zip(*columns, strict=True))[1:], 1):
        grid.add_row(*line, end_section=block is not None and number % block == 0)
    return grid


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """Widths for this room, the widest reduced first: headers are wrapped first, then cells; no word is cut."""
    widths = [max(map(cell_len, column)) for column in columns]
    for least in (list(map(_whole_cells, columns)), list(map(_wrapped, columns))):
        while sum(widths) > room:
            free = [index for index, width in enumerate(widths) if width > least[index]]
            if not free:
                break
            widths[max(free, key=lambda index: widths[index])] -= 1
    return widths


def _whole_cells(column: Column) -> int:
    header, *cells = column
    return max([_longest_word(header), *map(cell_len, cells)])


def _wrapped(column: Column) -> int:
    header, *cells = column
    least = (cell_len(cell) if cell_len(cell) <= SHORT else _longest_word(cell) for cell in cells)
    return max([_longest_word(header), *least])


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _between(columns: Sequence[Column], padding: int) -> int:
    return (len(columns) - 1) * (1 + 2 * padding)
