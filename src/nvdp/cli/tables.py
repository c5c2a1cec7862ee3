"""What commands about tables share: column names, notes, and predictions as rows."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nvdp.errors import FarNote, InputError, counted

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nvdp.data.tables import Columns, TableTask
    from nvdp.loading import Predictor

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
ROWS_AT_ONCE = 8_192
NUMBERS_AT_ONCE = 100_000  # of the covariances of tasks that are predicted together


def column_names(text: str) -> tuple[str, ...]:
    """Names separated by commas.

    >>> column_names("day, height")
    ('day', 'height')
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
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
def say_far(predictor: "Predictor", *groups: Sequence["TableTask"]) -> Iterator[None]:
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
            say(predictor.units.far(np.concatenate([each.x for each in tasks]), y))
        yield


def predicted_rows(posterior: Any, task: "TableTask", samples: int, outputs: Sequence[str] = ()) -> "pd.DataFrame":
    """Mean, standard deviation and quantiles at the rows of one task, under the places of these rows.

    With several outputs each column begins with its output's name. Rows are predicted in parts, so that memory is
    bounded.
    """
    import pandas as pd

    parts = []
    for start in range(0, len(task.x), ROWS_AT_ONCE):
        prediction = posterior.predict(task.x[start : start + ROWS_AT_ONCE], samples)
        columns = {name: values.numpy() for name, values in _columns(prediction, outputs).items()}
        parts.append(pd.DataFrame(columns, index=task.rows[start : start + ROWS_AT_ONCE]))
    rows = pd.concat(parts)
    _check_predicted(rows.to_numpy(), task)
    return rows


def predicted_together(
    predictor: "Predictor", pairs: Sequence[tuple["TableTask | None", "TableTask"]], outputs: Sequence[str]
) -> "pd.DataFrame":
    """The same of several tasks at once, each given as its context, if there is one, and its queries."""
    import numpy as np
    import pandas as pd
    import torch

    from nvdp.tasks import PointSet

    inputs, width, pad = pairs[0][1].x.shape[1], predictor.widths.y, torch.nn.utils.rnn.pad_sequence
    sizes = torch.tensor([0 if context is None else len(context.x) for context, _ in pairs])
    none = np.empty((0, inputs)), np.empty((0, width))
    given = [none if context is None else (context.x, context.y) for context, _ in pairs]
    x, y = (pad([torch.from_numpy(each) for each in part], batch_first=True) for part in zip(*given, strict=True))
    context = PointSet(x, y, torch.arange(x.shape[1]) < sizes[:, None])
    asked = pad([torch.from_numpy(query.x) for _, query in pairs], batch_first=True)
    columns = _columns(predictor.adapt(context).predict(asked), outputs)
    real = (torch.arange(asked.shape[1]) < torch.tensor([len(query.x) for _, query in pairs])[:, None]).numpy()
    rows = pd.DataFrame({name: values.numpy()[real] for name, values in columns.items()})
    rows.index = pd.Index(np.concatenate([query.rows for _, query in pairs]))
    for place, (_, query) in enumerate(pairs):
        _check_predicted(np.stack([values.numpy()[place, : len(query.x)] for values in columns.values()]), query)
    return rows


def together(tasks: Iterable["TableTask"], contexts: dict[str, "TableTask"]) -> Iterator[list[Any]]:
    """Pairs of context and queries in groups that are predicted at once, so that memory is bounded."""
    group: list[Any] = []
    points = queries = 0
    for task in tasks:
        context = contexts.get(task.name)
        points, queries = max(points, 1 if context is None else len(context.x)), max(queries, len(task.x))
        if group and (len(group) + 1) * points * (points + queries) > NUMBERS_AT_ONCE:
            yield group
            group, points, queries = [], 1 if context is None else len(context.x), len(task.x)
        group.append((context, task))
    if group:
        yield group


def _columns(prediction: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """Columns of numbers by name; with several outputs the name of the output comes first."""
    numbers = {"mean": prediction.mean, "std": prediction.std}
    numbers |= {name: prediction.quantile(level) for name, level in QUANTILES.items()}
    width = prediction.mean.shape[-1]
    names = list(outputs) if len(outputs) == width else [f"y{index + 1}" for index in range(width)]
    prefix = [""] if width == 1 else [f"{name}_" for name in names]
    return {prefix[i] + kind: values[..., i] for i in range(width) for kind, values in numbers.items()}


def _check_predicted(numbers: "np.ndarray", task: "TableTask") -> None:
    import numpy as np

    if not np.isfinite(numbers).all():
        raise InputError(
            f"the prediction of task '{task.name}' is not finite; its context or its inputs are too far from the data "
            "of training"
        )


def write_predictions(frame: "pd.DataFrame", parts: Sequence["pd.DataFrame"], out: Path) -> None:
    """Write a table's rows with their predictions; a row that was left out keeps empty cells.

    Columns of the table that have the name of a prediction keep it; the predictions are then named predicted_mean and
    so on.
    """
    import pandas as pd

    from nvdp.system import write_text

    predicted = pd.concat(list(parts)).reindex(range(len(frame)))
    taken = {str(name) for name in frame.columns}
    first = next((name for name in predicted.columns if name in taken), None)
    while any(name in taken for name in predicted.columns):
        predicted = predicted.add_prefix("predicted_")
    if first is not None:
        say(f"the table has a column '{first}' already; predictions are in {', '.join(predicted.columns)}")
    if out.parent != Path():
        out.parent.mkdir(parents=True, exist_ok=True)
    kept = frame.reset_index(drop=True)
    write_text(out, pd.concat([kept, predicted], axis=1).to_csv(index=False, float_format="%.9g"))
