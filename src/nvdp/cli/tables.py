"""What commands about tables share: column names, notes, and tables that are written."""

import csv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nvdp.errors import FarNote, InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from nvdp.data.tables import Columns, TableTask
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
def say_far(predictor: "Predictor", *groups: Sequence["TableTask"], columns: "Columns | None" = None) -> Iterator[None]:
    """One note about the points of all tasks that are unlike the data of training, instead of one for each task.

    Where each context brings its own units, its warnings are shown.
    """
    import numpy as np

    from nvdp.units import ContextUnits

    with warnings.catch_warnings():
        if not isinstance(predictor.units, ContextUnits):
            warnings.simplefilter("ignore", FarNote)
        for tasks in filter(None, groups):
            y = None if not tasks[0].y.shape[1] else np.concatenate([each.y for each in tasks])
            say(predictor.units.far(np.concatenate([each.x for each in tasks]), y, columns))
        yield


def write_predictions(frame: "pd.DataFrame", parts: "Sequence[pd.DataFrame]", out: Path) -> None:
    """Write a table's rows with their predictions as CSV."""
    from nvdp.system import write_text
    from nvdp.tables.predict import with_predictions

    rows, note = with_predictions(frame, parts)
    say(note)
    if out.parent != Path():
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, rows.to_csv(index=False, float_format="%.9g"))
