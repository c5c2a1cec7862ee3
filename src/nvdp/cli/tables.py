"""What commands about tables share: column names, notes, and tables that are written."""

import csv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nvdp.errors import FarNote, InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from nvdp.data.tables import Columns
    from nvdp.loading import Predictor


def column_names(text: str) -> tuple[str, ...]:
    """Names separated by commas; one that holds a comma is in double quotes.

    >>> column_names("day, height"), column_names('"height (cm, wet)"')
    (('day', 'height'), ('height (cm, wet)',))
    """
    cells = next(csv.reader([text], skipinitialspace=True), [])
    names = tuple(name.strip() for name in cells if name.strip())
    if not names:
        raise InputError(f"'{text}' names no column; expected names separated by commas")
    return names


def columns_of(predictor: "Predictor", name: str, task: str | None, x: str | None, y: str | None) -> "Columns":
    """The columns of the fitted table, or those that the options name for a model without a table.

    Args:
        predictor: The model.
        name: Its folder or name, for errors.
        task: The value of --task, and so on.
        x: Names separated by commas.
        y: Names separated by commas.
    """
    from nvdp.data.tables import Columns

    named = [option for option, value in (("--task", task), ("--x", x), ("--y", y)) if value is not None]
    if predictor.columns is not None:
        if named:
            raise InputError(f"{name} was fitted to a table and knows its columns; leave out {', '.join(named)}")
        return predictor.columns
    if predictor.kind != "regression":
        raise InputError(f"{name} is a classifier; a table needs a model of regression such as general")
    if x is None or y is None:
        raise InputError(
            f"{name} was not fitted to a table; name its columns with --x and --y, for several tasks --task"
        )
    columns, takes = Columns(task, column_names(x), column_names(y)), predictor.widths
    for option, given, expected in (("--x", columns.x, takes.x), ("--y", columns.y, range(takes.y, takes.y + 1))):
        if len(given) not in expected:
            most = f"1 to {expected[-1]}" if len(expected) > 1 else str(expected[-1])
            raise InputError(f"{option} names {counted(len(given), 'column')}; {name} takes {most}")
    return columns


def say(note: str | None) -> None:
    """A note for a person, on standard error."""
    if note is not None:
        typer.echo(f"note: {note}", err=True)


@contextmanager
def without_far_warnings(predictor: "Predictor") -> Iterator[None]:
    """Silence the warning of each task about points far from those of training, where one note tells of all.

    Where each context brings its own units, its warnings are shown.
    """
    from nvdp.units import ContextUnits

    with warnings.catch_warnings():
        if not isinstance(predictor.units, ContextUnits):
            warnings.simplefilter("ignore", FarNote)
        yield


def check_output_format(out: Path, folder: bool = False) -> None:
    """Refuse a name that promises another format than predictions have.

    Args:
        out: What will be written.
        folder: Whether it will be a folder of Parquet files.
    """
    from nvdp.data.table_files import EXCEL, SUFFIXES

    suffix = out.suffix.lower()
    if folder and suffix in (".csv", EXCEL):
        raise InputError(f"{out} is to be a new folder of Parquet files; choose a name without '{out.suffix}'")
    if suffix == EXCEL:
        raise InputError(f"{out}: predictions are written as CSV, or as Parquet to a name in {' or '.join(SUFFIXES)}")
    if suffix in SUFFIXES and find_spec("pyarrow") is None:
        raise InputError(f"{out}: writing Parquet needs pyarrow; pip install pyarrow")


def write_predictions(frame: "pd.DataFrame", parts: "Sequence[pd.DataFrame]", out: Path) -> None:
    """Write a table's rows with their predictions: as Parquet where the file's name says so, else as CSV."""
    from nvdp.data.table_files import SUFFIXES
    from nvdp.system import write_text, write_whole
    from nvdp.tables.predict import with_predictions

    rows, note = with_predictions(frame, parts)
    say(note)
    if out.parent != Path():
        out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() in SUFFIXES:
        write_whole(out, lambda path: rows.to_parquet(path, index=False))
    else:
        write_text(out, rows.to_csv(index=False, float_format="%.9g"))
