"""The report that ``nvdp fit`` leaves: `report.md`, and `report.html` with its figure inside."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.data.tables import Columns
from nvdp.errors import counted
from nvdp.system import write_text

Section = tuple[str, list[str], list[Sequence[str]]]  # title, sentences, rows of a table with its header first
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:right}th:first-child,td:first-child{text-align:left}img{max-width:100%}"
)


def sections(report: dict[str, Any], columns: Columns) -> list[Section]:
    """What there is to say about a fit.

    Args:
        report: The report of ``fit.json``.
        columns: Of the table.

    Returns:
        Titles, sentences and tables; the first section has the verdict.
    """
    tasks, rows = report["tasks"], report["rows"]
    partial = f" {rows['partial']:,} rows have some of their outputs." if rows["partial"] else ""
    data = (
        f"{rows['read']:,} rows ({rows['left_out']:,} left out).{partial} {tasks['training']} tasks for training, "
        f"{tasks['ending']} for early stopping and calibration, {tasks['held_out']} held out for the scores. "
        f"Task: {columns.task}; inputs: {', '.join(columns.x)}; outputs: {', '.join(columns.y)}."
        + (f" By their logarithm: {', '.join(columns.log)}." if columns.log else "")
        + (f" Given of each task: {', '.join(columns.given)}." if columns.given else "")
    )
    found: list[Section] = [("Verdict", [report["verdict"]], []), ("Data", [data], [])]
    kinds = {"the first points" if report["forecast"] else "random points": report["scores"]}
    if not report["forecast"] and report["forecast_scores"]:
        kinds["the first points"] = report["forecast_scores"]
    for kind, scores in kinds.items():
        title = f"Held-out tasks from {kind}"
        found.append((title, [_explained(columns)], _scores(scores)))
    curve = [
        (counted(int(size), "point"), *(f"{each['LL']:.3f} / {each['RMSE']:.4g}" for each in scores.values()))
        for size, scores in report["by_context"].items()
    ]
    if curve:
        names = next(iter(report["by_context"].values()))
        found.append(("Learning curve: LL / RMSE by context points", [], [("context", *names), *curve]))
    found.append(_calibration(report["calibration"]))
    worst = [
        (row["task"], f"{row['LL']:.3f}", f"{row['RMSE']:.4g}", f"{row['coverage90']:.1%}") for row in report["worst"]
    ]
    found.append(("Tasks predicted worst", [], [(str(columns.task), "LL", "RMSE", "inside 90 %"), *worst]))
    tried = [(name, f"{score:.3f}") for name, score in report["tried"].items()]
    chosen = f"Chosen: {report['recipe']}, {report['steps']} steps in {report['seconds']:.0f} seconds."
    if report["around_process"] or report["network_share"] < 1:
        chosen += f" The network's share of the prediction is {report['network_share']:.0%}, the rest is the process's."
    found.append(("What was tried", [chosen], [("candidate", "LL of the tasks for early stopping"), *tried]))
    found.append(("Limits", list(_limits(report)), []))
    return found


def _explained(columns: Columns) -> str:
    several = "; with several outputs a mean over all of them" if len(columns.y) > 1 else ""
    return (
        f"LL is the log-likelihood of an output, higher is better; RMSE is the error of the mean{several}. Of all "
        "outputs, 90 % should be inside the 90 % interval."
    )


def _scores(scores: dict[str, dict[str, float]]) -> list[Sequence[str]]:
    table: list[Sequence[str]] = [("", "LL", "RMSE", "inside 90 %", "inside 50 %")]
    for name, row in scores.items():
        inside = (f"{row[level]:.1%}" for level in ("coverage90", "coverage50"))
        table.append((name, f"{row['LL']:.3f}", f"{row['RMSE']:.4g}", *inside))
    return table


def _calibration(numbers: dict[str, Any]) -> Section:
    sizes = [f"up to {size} points" for size in numbers["sizes"]] + ["more points"]
    kinds = {"": numbers["factors"], "; beyond the last context point ": numbers["factors_ahead"]}
    factors = "".join(
        kind + ", ".join(f"{size}: {factor:.2f}" for size, factor in zip(sizes, each, strict=False))
        for kind, each in kinds.items()
    )
    table: list[Sequence[str]] = [("", "LL", "inside 90 %", "inside 50 %")]
    for name in ("before", "after"):
        row = numbers[name]
        table.append((name, f"{row['LL']:.3f}", f"{row['coverage90']:.1%}", f"{row['coverage50']:.1%}"))
    return "Calibration", [f"Factors of the predictive deviation by context size: {factors}."], table


def _limits(report: dict[str, Any]) -> Iterable[str]:
    yield "Scores hold for tasks like those of the table; outside the inputs of the table nothing was learned."
    if report["tasks"]["too_few_for_both"]:
        yield "The held-out tasks also ended the training, so their scores are too good."
    if report["tasks"]["scored"] < 30:
        yield f"Only {report['tasks']['scored']} tasks were scored: small differences mean little; try --folds 5."
    if report["still_improving"]:
        yield "Held-out tasks were still predicted better at the end of training; more --minutes should help."
    for name in report["constant_outputs"]:
        yield f"Column '{name}' is constant; there is nothing to learn about it."


def write_report(
    folder: Path, report: dict[str, Any], columns: Columns, figures: Mapping[str, Path] | None = None
) -> list[Path]:
    """Write both files.

    Args:
        folder: Of the fit.
        report: The report of ``fit.json``.
        columns: Of the table.
        figures: PNG files by their titles.

    Returns:
        The files written.
    """
    found = sections(report, columns)
    lines, parts = ["# Report of a fit", ""], ["<h1>Report of a fit</h1>"]
    for title, sentences, table in found:
        lines += [f"## {title}", "", *(f"{sentence}\n" for sentence in sentences)]
        parts += [f"<h2>{html.escape(title)}</h2>", *(f"<p>{html.escape(each)}</p>" for each in sentences)]
        if table:
            head, *rows = table
            lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)] + [""]
            cells = [
                f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>"
                for tag, row in [("th", head), *(("td", row) for row in rows)]
            ]
            parts.append(f"<table>{''.join(cells)}</table>")
    for title, figure in (figures or {}).items():
        lines += [f"## {title}", "", f"![{title}]({figure.name})", ""]
        picture = base64.b64encode(figure.read_bytes()).decode()
        parts.append(f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{picture}">')
    page = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Report of a fit</title><style>{STYLE}</style>"
    files = {folder / "report.md": "\n".join(lines), folder / "report.html": f"{page}{''.join(parts)}</html>\n"}
    for path, text in files.items():
        write_text(path, text)
    return list(files)
