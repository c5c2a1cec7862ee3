"""The report that ``nvdp fit`` leaves: `report.md`, and `report.html` with its figures inside."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nvdp.data.tables import Columns
from nvdp.errors import counted
from nvdp.system import write_text

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}caption{text-align:left;font-weight:600}"
    "th,td{padding:.25rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:right}th:first-child,td:first-child{text-align:left}img{max-width:100%}"
)
FEW, FEWEST_FOR_FOLDS = 30, 10  # scored tasks, and tasks in all
CURVES, CALIBRATION = "Held-out tasks", "Calibration"  # the sections with a figure
KINDS = {"random": "random points", "forecast": "the first points"}
Rows = list[Sequence[str]]  # of a table, its header first


class Section(NamedTuple):
    """A part of the report: sentences, then tables by their captions."""

    title: str
    sentences: list[str]
    tables: dict[str, Rows] = {}  # noqa: RUF012  (never changed)


def sections(report: dict[str, Any], columns: Columns) -> list[Section]:
    """What there is to say about a fit.

    Args:
        report: The report of ``fit.json``.
        columns: Of the table.

    Returns:
        Titles, sentences and tables; the first section has the verdict.
    """
    main = "forecast" if report["forecast"] else "random"
    kinds = {main: report["scores"]}
    if report["forecast_scores"]:
        kinds["forecast"] = report["forecast_scores"]
    several = len(columns.y) > 1
    worst = [
        (row["task"], f"{row['LL']:.3f}", *([] if several else [f"{row['RMSE']:.4g}"]), f"{row['coverage90']:.1%}")
        for row in report["worst"]
    ]
    head = (str(columns.task), "LL", *([] if several else ["RMSE"]), "inside 90 %")
    return [
        Section("Verdict", [report["verdict"], _meaning(report)]),
        Section("Data", [*_data(report, columns), *(f"Note: {note}." for note in report["notes"])]),
        *(_scores(report, columns, kind, scores) for kind, scores in kinds.items()),
        *([Section(CURVES, [_drawn(report)])] if len(columns.x) == 1 else []),
        *_learning_curve(report, several),
        _calibration(report),
        Section("Tasks predicted worst", [f"Of the scored tasks, from {KINDS[main]}."], {"": [head, *worst]}),
        _tried(report),
        Section("Limits", list(_limits(report))),
    ]


def _meaning(report: dict[str, Any]) -> str:
    error = (
        ""
        if all(each is None for each in report["standard_errors"].values())
        else (" A number after ± is the standard error of the difference over these tasks.")
    )
    return (
        "LL is the mean log-likelihood of an output in the units of the table; higher is better. RMSE is the error of "
        f"the predicted mean. Both are of {counted(report['tasks']['scored'], 'task')}.{error}"
    )


def _data(report: dict[str, Any], columns: Columns) -> Iterable[str]:
    tasks, rows, (least, middle, most) = report["tasks"], report["rows"], report["points"]
    used = f"{tasks['training']} for training and {tasks['ending']} for early stopping and calibration"
    if report["folds"]:
        used += (
            f". The scores are of {report['folds']} further fits, each without the tasks that it is scored on; each of "
            f"the {tasks['held_out']} tasks is left out once"
        )
    elif tasks["too_few_for_both"]:
        used = f"{tasks['training']} for training, {tasks['held_out']} for early stopping and for the scores as well"
    else:
        used += f", and {tasks['held_out']} held out, of which {tasks['scored']} are scored"
    points = f"{least:,.0f} to {most:,.0f} points (median {middle:g})" if least < most else f"{most:,.0f} points"
    yield f"{rows['read']:,} rows. Tasks: {used}. A task has {points}."
    parts = []
    for name, (low, high) in report["ranges"].items():
        kind = "input" if name in columns.x else "output"
        by = ", by its logarithm" if name in columns.log else ""
        parts.append(f"{name} ({kind}{by}) is from {low} to {high}")
    given = f" Given of each task: {', '.join(columns.given)}." if columns.given else ""
    yield f"Task: {columns.task}; {'; '.join(parts)}.{given}"


def _scores(report: dict[str, Any], columns: Columns, kind: str, scores: dict[str, dict[str, float]]) -> Section:
    low, high = report["context_sizes"][kind]
    size = counted(high, "point") if low == high else f"{low} to {high} points"
    chosen = "that come first in x" if kind == "forecast" else "chosen at random"
    how = (
        f"Each task is predicted from {size} of it, {chosen}; the scores are of its other points. Of all outputs, 90 % "
        "should be inside the 90 % intervals, and 50 % inside the 50 % intervals."
    )
    tables = {"": _table(scores)}
    if len(columns.y) > 1:
        how += " Errors of outputs with different units have no common mean, so the RMSE is by output."
        outputs = report["by_output"].get(kind, {})
        tables = {"All outputs": _table(scores, False)} | {name: _table(each) for name, each in outputs.items()}
    return Section(f"Scores from {KINDS[kind]}", [how], tables)


def _table(scores: dict[str, dict[str, float]], error: bool = True) -> Rows:
    table: Rows = [("", "LL", *(["RMSE"] if error else []), "inside 90 %", "inside 50 %")]
    for name, row in scores.items():
        inside = (f"{row[level]:.1%}" for level in ("coverage90", "coverage50"))
        table.append((name, f"{row['LL']:.3f}", *([f"{row['RMSE']:.4g}"] if error else []), *inside))
    return table


def _drawn(report: dict[str, Any]) -> str:
    whose = "The tasks for early stopping" if report["folds"] else "Held-out tasks"
    return (
        f"{whose}, the first ones and not the best: the prediction from the black points, with its 90 % interval. The "
        "circles are the other points of the task."
    )


def _learning_curve(report: dict[str, Any], several: bool) -> list[Section]:
    if not report["by_context"]:
        return []
    names = next(iter(report["by_context"].values()))
    curve = [
        (
            counted(int(size), "point"),
            *(f"{each['LL']:.3f}" + ("" if several else f" / {each['RMSE']:.4g}") for each in scores.values()),
            str(next(iter(scores.values()))["cases"]),
        )
        for size, scores in report["by_context"].items()
    ]
    what = "LL" if several else "LL / RMSE"
    how = f"{what} from contexts of a fixed size, of tasks with more points than that; the last column counts them."
    return [Section("Learning curve", [how], {"": [("context", *names, "contexts"), *curve]})]


def _calibration(report: dict[str, Any]) -> Section:
    numbers = report["calibration"]
    sizes = [f"up to {size} points" for size in numbers["sizes"]] + ["more points"]
    rows = zip(sizes, numbers["factors"], numbers["factors_ahead"], strict=False)
    factors: Rows = [("context", "between its points", "beyond the last point")]
    factors += [(size, f"{inside:.2f}", f"{ahead:.2f}") for size, inside, ahead in rows]
    table: Rows = [("", "LL", "inside 90 %", "inside 50 %")]
    for name in ("before", "after"):
        row = numbers[name]
        table.append((name, f"{row['LL']:.3f}", f"{row['coverage90']:.1%}", f"{row['coverage50']:.1%}"))
    flatters = report["tasks"]["too_few_for_both"]
    found = "on the scored tasks themselves, so their scores are optimistic" if flatters else "without the scored tasks"
    how = (
        f"Predictive deviations are multiplied by factors that were found {found}. The second table and the plot show "
        "the scored tasks before and after; in the table tasks count alike, in the plot outputs do."
    )
    return Section(CALIBRATION, [how], {"Factors": factors, "Scored tasks": table})


def _tried(report: dict[str, Any]) -> Section:
    chosen = (
        f"Chosen: {report['recipe']}; {report['steps']} steps in {report['seconds']:.0f} seconds. The weights of step "
        f"{report['best_step']} are kept."
    )
    if report["around_process"] or report["network_share"] < 1:
        share = f"{report['network_share']:.0%}"
        chosen += f" The network's share of the prediction is {share}, the rest is the hierarchical GP's."
    tried = [(name, f"{score:.3f}") for name, score in report["tried"].items()]
    head = ("candidate", "LL of the tasks for early stopping, standardised outputs")
    return Section("What was tried", [chosen], {"": [head, *tried]})


def _limits(report: dict[str, Any]) -> Iterable[str]:
    tasks = report["tasks"]
    yield "The scores are for tasks like those of the table, and for inputs in the ranges above."
    if tasks["too_few_for_both"]:
        yield "The scored tasks also ended the training, so their scores are optimistic."
    if tasks["scored"] < FEW:
        enough = not report["folds"] and tasks["training"] + tasks["ending"] + tasks["held_out"] >= FEWEST_FOR_FOLDS
        only = f"Only {counted(tasks['scored'], 'task')} scored: small differences mean little"
        yield f"{only}; --folds 5 scores every task." if enough else f"{only}."
    if report["still_improving"]:
        yield "The tasks for early stopping were still predicted better and better at the end: try more --minutes."


def write_report(
    folder: Path, report: dict[str, Any], columns: Columns, figures: Mapping[str, Path] | None = None
) -> list[Path]:
    """Write both files.

    Args:
        folder: Of the fit.
        report: The report of ``fit.json``.
        columns: Of the table.
        figures: PNG files by the titles of their sections.

    Returns:
        The files written.
    """
    name = f"Report of a fit: {', '.join(columns.y)} by {', '.join(columns.x)}"
    lines, parts = [f"# {name}", ""], [f"<h1>{html.escape(name)}</h1>"]
    for title, sentences, tables in sections(report, columns):
        lines += [f"## {title}", "", *(f"{sentence}\n" for sentence in sentences)]
        parts += [f"<h2>{html.escape(title)}</h2>", *(f"<p>{html.escape(each)}</p>" for each in sentences)]
        for caption, table in tables.items():
            lines += [*([f"{caption}:", ""] if caption else []), *_markdown(table), ""]
            parts.append(_html(caption, table))
        if figure := (figures or {}).get(title):
            lines += [f"![{title}]({figure.name})", ""]
            picture = base64.b64encode(figure.read_bytes()).decode()
            parts.append(f'<img alt="{title}" src="data:image/png;base64,{picture}">')
    page = (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(name)}</title>"
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n"
    )
    files = {folder / "report.md": "\n".join(lines), folder / "report.html": page}
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def _markdown(table: Rows) -> list[str]:
    head, *rows = ([cell.replace("|", "\\|") for cell in row] for row in table)
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _html(caption: str, table: Rows) -> str:
    head, *rows = table
    cells = [
        f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>"
        for tag, row in [("th", head), *(("td", row) for row in rows)]
    ]
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{''.join(cells)}</table>"
