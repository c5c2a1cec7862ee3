"""Predictions at the rows of a table: contexts and queries are two tables, matched by the names of their tasks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nvdp.data.tables import Columns, TableTask, TaskTable, split_tasks
from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.tasks import PointSet
from nvdp.units import ContextUnits

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
ROWS_AT_ONCE = 8_192
FARTHEST = 500  # ranges of training from its middle
NUMBERS_AT_ONCE = 100_000  # of the covariances of tasks that are predicted together
Pair = tuple[TableTask | None, TableTask]  # a context, if there is one, and its queries


def contexts_of(predictor: Predictor, columns: Columns, frame: "pd.DataFrame", origin: str) -> TaskTable:
    """The tasks to predict from; of several outputs some may be missing where a process fills them in."""
    table = split_tasks(frame, replace(columns, group=None), origin, partial=predictor.fills_in)
    _check_near(predictor, columns, table, origin)
    return table


def queries_of(
    predictor: Predictor,
    columns: Columns,
    frame: "pd.DataFrame",
    contexts: Mapping[str, TableTask],
    origin: str,
) -> TaskTable:
    """The tasks to predict.

    Args:
        predictor: The model.
        columns: Of the contexts.
        frame: Rows with the columns of tasks and inputs. If those that are constant within a task are not all there,
            they are taken from the context.
        contexts: By the names of their tasks.
        origin: Of the frame, for errors.
    """
    there = all(name in frame.columns for name in columns.given)
    asked = replace(columns, y=(), group=None, log=tuple(set(columns.log) & set(columns.x)))
    if columns.task not in (None, *frame.columns) and len(contexts) == 1:
        frame = frame.assign(**{str(columns.task): next(iter(contexts))})
    table = split_tasks(frame, asked if there else replace(asked, given=(), levels=()), origin)
    _check_near(predictor, columns, table, origin)
    if not there:
        return replace(table, tasks=tuple(_with_given(predictor, each, contexts) for each in table.tasks))
    inputs = len(columns.x)
    for task in table.tasks if columns.given else ():
        context = contexts.get(task.name)
        if context is not None and (differs := context.x[0, inputs:] != task.x[0, inputs:]).any():
            name, line = columns.input_names[inputs + int(differs.argmax())], table.line(task.rows[0])
            raise InputError(f"{origin}: column '{name}' of task '{task.name}' in line {line} is not as in its context")
    return table


def _check_near(predictor: Predictor, columns: Columns, table: TaskTable, origin: str) -> None:
    """Refuse inputs that are so far from those of training that a prediction has no meaning, or is infinite."""
    units, inputs = predictor.units, len(columns.x)
    if isinstance(units, ContextUnits):
        return
    low, high = (np.array(ends[:inputs]) for ends in (units.x_low, units.x_high))
    x, rows = (np.concatenate(part) for part in zip(*((task.x, task.rows) for task in table.tasks), strict=True))
    away = np.abs(x[:, :inputs] - (low + high) / 2) > FARTHEST * (high - low)
    away &= np.isfinite(high - low) & (high > low) & ~np.isin(columns.x, columns.log)
    if away.any():
        row, place = np.argwhere(away)[0]
        name = columns.x[place]
        found, *ends = columns.text(name, [x[row, place], low[place], high[place]])
        line, learned = table.line(rows[row]), " to ".join(ends)
        raise InputError(f"{origin}: column '{name}' holds {found} in line {line}; the fitted table has {learned}")


def _with_given(predictor: Predictor, task: TableTask, contexts: Mapping[str, TableTask]) -> TableTask:
    """A query with what is given of its task's context, or the mean of the fitted table if it has none."""
    context, inputs = contexts.get(task.name), task.x.shape[1]
    own = np.array(predictor.units.x_centre[inputs:]) if context is None else context.x[0, inputs:]
    return replace(task, x=np.concatenate([task.x, np.tile(own, (len(task.x), 1))], 1))


def predictions(
    predictor: Predictor,
    contexts: Mapping[str, TableTask],
    queries: Iterable[TableTask],
    outputs: Sequence[str],
    samples: int = 0,
) -> "list[pd.DataFrame]":
    """Mean, standard deviation and quantiles at the rows of all queries, under the places of these rows.

    Args:
        predictor: The model.
        contexts: By the names of their tasks; a task without one is predicted all the same.
        queries: The tasks to predict.
        outputs: Names of the outputs; with several, each column begins with one.
        samples: Sampled functions behind each prediction; 0 needs none.

    Returns:
        Tables, which together have the rows of all queries.
    """
    parts = []
    for pairs in _together(queries, contexts):
        if samples or len(pairs) == 1:
            posteriors = ((_posterior(predictor, context, query), query) for context, query in pairs)
            parts += [predicted_rows(posterior, query, samples, outputs) for posterior, query in posteriors]
        else:
            parts.append(_predicted_together(predictor, pairs, outputs))
    return parts


def predicted_rows(posterior: Any, task: TableTask, samples: int, outputs: Sequence[str] = ()) -> "pd.DataFrame":
    """The same of one task; its rows are predicted in parts, so that memory is bounded."""
    import pandas as pd

    parts = []
    for start in range(0, len(task.x), ROWS_AT_ONCE):
        prediction = posterior.predict(task.x[start : start + ROWS_AT_ONCE], samples)
        columns = {name: values.numpy() for name, values in _columns(prediction, outputs).items()}
        parts.append(pd.DataFrame(columns, index=task.rows[start : start + ROWS_AT_ONCE]))
    rows = pd.concat(parts)
    _check_predicted(rows.to_numpy(), task)
    return rows


def with_predictions(frame: "pd.DataFrame", parts: "Sequence[pd.DataFrame]") -> "tuple[pd.DataFrame, str | None]":
    """A table's rows with their predictions, and what to say about their names.

    A row that was left out keeps empty cells. Columns of the table that have the name of a prediction keep it; the
    predictions are then named predicted_mean and so on.
    """
    import pandas as pd

    predicted = pd.concat(list(parts)).reindex(range(len(frame)))
    taken = {str(name) for name in frame.columns}
    first = next((name for name in predicted.columns if name in taken), None)
    while any(name in taken for name in predicted.columns):
        predicted = predicted.add_prefix("predicted_")
    note = f"the table has a column '{first}' already; predictions are in {', '.join(predicted.columns)}"
    return pd.concat([frame.reset_index(drop=True), predicted], axis=1), None if first is None else note


def _predicted_together(predictor: Predictor, pairs: Sequence[Pair], outputs: Sequence[str]) -> "pd.DataFrame":
    """Several tasks at once."""
    import pandas as pd

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
    if not np.isfinite(rows.to_numpy()).all():
        for place, (_, query) in enumerate(pairs):
            _check_predicted(np.stack([values.numpy()[place, : len(query.x)] for values in columns.values()]), query)
    return rows


def _together(tasks: Iterable[TableTask], contexts: Mapping[str, TableTask]) -> Iterator[list[Pair]]:
    """Pairs of context and queries in groups that are predicted at once, so that memory is bounded."""
    group: list[Pair] = []
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


def _posterior(predictor: Predictor, context: TableTask | None, query: TableTask) -> Any:
    if context is not None:
        return predictor.adapt(context.x, context.y)
    return predictor.adapt(np.empty((0, query.x.shape[1])), np.empty((0, predictor.widths.y)))


def _columns(prediction: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """Columns of numbers by name."""
    numbers = [prediction.mean, prediction.std, *(prediction.quantile(level) for level in QUANTILES.values())]
    names = _names(outputs, prediction.mean.shape[-1])
    return {name: numbers[kind][..., place] for (place, kind), name in names.items()}


def _names(outputs: Sequence[str], width: int) -> dict[tuple[int, int], str]:
    """The name of each column by the places of its output and kind; of several outputs their name comes first."""
    names = list(outputs) if len(outputs) == width else [f"y{index + 1}" for index in range(width)]
    prefix = [""] if width == 1 else [f"{name}_" for name in names]
    kinds = ("mean", "std", *QUANTILES)
    return {(place, i): prefix[place] + kind for place in range(width) for i, kind in enumerate(kinds)}


def no_predictions(outputs: Sequence[str], width: int) -> "pd.DataFrame":
    """The columns of predictions, for rows of which none can be predicted."""
    import pandas as pd

    return pd.DataFrame({name: np.empty(0) for name in _names(outputs, width).values()})


def _check_predicted(numbers: np.ndarray, task: TableTask) -> None:
    if not np.isfinite(numbers).all():
        raise InputError(
            f"the prediction of task '{task.name}' is not finite; its context or its inputs are too far from the data "
            "of training"
        )
