"""What the files of a trained model say about it: its card, and the units, columns and report of ``nvdp fit``."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes

from nvdp.data.tables import Columns
from nvdp.errors import InputError, check_format, counted
from nvdp.evaluation.explain import Neighbours
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.adjusted import Adjustment
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG
from nvdp.units import Units

FIT, FIT_VERSION, SCORES, CARD = "fit.json", 2, "scores.json", "card.json"
PROCESS = "process.safetensors"  # the hierarchical GP of a table, where the network predicts its residuals
NEIGHBOURS = "neighbours.safetensors"  # curves of training tasks


def card_of(folder: Path) -> dict[str, Any]:
    """What is known of a model: what it is, how long it was trained, and what was measured, if anything was.

    Returns:
        `model`, `task`, `steps` and, where there are some, `scores`: LL, RLL and PLL or the accuracy of a pretrained
        model; of a model of ``nvdp fit`` those of it and its rivals, beside the whole `report`. Of both also `about`:
        what it is for, its training data, its limits, and when not to use it; and the `seconds` of training, a `note`
        about it, the `coverage` of intervals and scores `by_context` size, where they were measured.

    >>> from nvdp.loading import find_run
    >>> card = card_of(find_run("gp"))
    >>> card["model"], card["task"], card["scores"]["PLL"] > 0.9
    ('nvdp-conv', 'gp', True)
    """
    config = RunConfig.load(folder / CONFIG)
    card: dict[str, Any] = {"model": config.model.name, "task": config.task, "steps": config.steps}
    if (folder / CARD).exists():
        card["about"] = json.loads((folder / CARD).read_text())
    if fitted := fit_of(folder):
        return card | _fit_card(fitted)
    if not (folder / SCORES).exists():
        return card
    record = json.loads((folder / SCORES).read_text())
    evaluation = record["evaluation"]
    scores = {metric: row["mean_parameters"] for metric, row in evaluation.get("scores", {}).items()}
    of_classes = {metric: evaluation[metric] for metric in ("accuracy", "nll", "ece") if metric in evaluation}
    card |= {"steps": record["steps"], "scores": scores or of_classes}
    if "coverage" in evaluation:
        card["coverage"] = evaluation["coverage"]
    return card | {name: record[name] for name in ("seconds", "note", "by_context") if name in record}


def _fit_card(fitted: dict[str, Any]) -> dict[str, Any]:
    """What the report of a fit says, in the form of a model that comes with the package."""
    report, units, columns = fitted["report"], fitted["units"], fitted["columns"]
    scores = report.get("scores", {})
    if report.get("by_output"):  # errors of different units have no mean
        scores = {
            name: {score: value for score, value in row.items() if score != "RMSE"} for name, row in scores.items()
        }
    card = {"steps": report.get("steps"), "scores": scores, "report": report}
    if columns is None or not {"model", "tasks", "recipe", "verdict", "seconds"} <= report.keys():
        return card
    outputs, tasks = ", ".join(columns.y), report["tasks"]
    ranges = zip(columns.x, units.x_low, units.x_high, strict=False)  # given columns come after those of x
    learned = ", ".join(f"{name} from {' to '.join(columns.text(name, pair))}" for name, *pair in ranges)
    what = columns.task or "task"
    held = counted(tasks["scored"], "task")
    held += ", which also ended the training" if tasks.get("too_few_for_both") else " that did not train the model"
    if report.get("folds"):
        held = f"{counted(tasks['scored'], 'task')} by {report['folds']}-fold cross-validation"
    own = {size: scores.get(report["model"], {}) for size, scores in report.get("by_context", {}).items()}
    measured = ("LL", "coverage90", "coverage50")
    return card | {
        "about": {
            "for": f"{outputs} of a new {what}, from a few rows of it, at {learned}",
            "trained_on": f"{counted(tasks['training'], 'task')} of a table, and {tasks['ending']} for early stopping "
            f"and calibration; {report['recipe']}",
            "limits": f"scored on {held}: {report['verdict']}",
            "not_for": f"a {what} unlike those of the table, and inputs outside that range",
        },
        "seconds": report["seconds"],
        "by_context": [
            {"data": "held-out tasks", "context": int(size), **{name: row[name] for name in measured if name in row}}
            for size, row in own.items()
        ],
    }


def card_lines(card: dict[str, Any]) -> list[str]:
    """The card of a model as lines of text: what ``nvdp info`` prints and the web page shows.

    >>> from nvdp.loading import find_run
    >>> card_lines(card_of(find_run("gp")))[0].split(";")[0]
    "for: the paper's GP tasks"
    """
    lines = [f"{name.replace('_', ' ')}: {text}" for name, text in card.get("about", {}).items()]
    if "seconds" in card:
        note = f": {card['note']}" if "note" in card else ""
        lines.append(f"training took {card['steps']:,} steps and {card['seconds']:,.0f} seconds{note}")
    lines += [f"{name}: {_text(score)}" for name, score in card.get("scores", {}).items()]
    if "coverage" in card:
        shares = ", ".join(f"{share:.1%} inside {level}" for level, share in card["coverage"].items())
        lines.append(f"intervals cover: {shares}")
    return lines + [_row_text(row) for row in card.get("by_context", [])]


def _text(score: Any) -> str:
    if isinstance(score, dict):
        return ", ".join(f"{name} {_text(value)}" for name, value in score.items())
    return f"{score:.4g}" if isinstance(score, float) else str(score)


def _row_text(row: dict[str, Any]) -> str:
    """Scores at one context size."""
    levels = [level for level in (90, 50) if f"coverage{level}" in row]
    inside = "".join(f", {row[f'coverage{level}']:.1%} inside {level} % intervals" for level in levels)
    return f"{row['data']}, context of {row['context']}: LL {row['LL']:.2f}{inside}"


def fit_of(folder: Path) -> dict[str, Any] | None:
    """What the fit.json of a folder says, if there is one: units, columns and report."""
    path = folder / FIT
    if not path.exists():
        return None
    try:
        about = json.loads(path.read_text())
        check_format(path, about["version"], FIT_VERSION, "fit again")
        names, report = about["columns"], dict(about["report"])
        columns = None if names is None else _columns(names)
        units, adjustment = Units.from_dict(about["units"]), _adjustment(folder, about.get("adjustment"))
        near = _neighbours(folder / NEIGHBOURS, about.get("neighbours"))
        return {"units": units, "columns": columns, "report": report, "adjustment": adjustment, "neighbours": near}
    except (OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _columns(names: dict[str, Any]) -> Columns:
    levels = tuple(tuple(each) for each in names.get("levels", ()))
    x, y, given = (tuple(names.get(part, ())) for part in ("x", "y", "given"))
    log, forms = (tuple(names.get(part, ())) for part in ("log", "date_forms"))
    dates = None if names.get("dates") is None else tuple(names["dates"])
    return Columns(names["task"], x, y, names.get("group"), given, levels, log, dates, forms)


def _neighbours(path: Path, names: list[str] | None) -> Neighbours | None:
    if names is None:
        return None
    try:
        tensors = tensors_from_bytes(path.read_bytes())
        near = Neighbours(tuple(map(str, names)), tensors["x"], tensors["curves"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged: {error}") from None
    if len(near.curves) != len(near.names):
        raise InputError(f"{path} holds {len(near.curves)} tasks; {FIT} names {len(near.names)}")
    return near


def _adjustment(folder: Path, numbers: dict[str, Any] | None) -> Adjustment | None:
    if numbers is None:
        return None
    path, process = folder / PROCESS, None
    if numbers["process"]:
        try:
            process = HierarchicalGP.from_tensors(tensors_from_bytes(path.read_bytes()))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path} is missing or damaged: {error}") from None
    ahead = numbers.get("factors_ahead", numbers["factors"])  # fits of 0.2.0 made no difference
    around, share = numbers.get("around", numbers["process"]), numbers.get("share", 1.0)
    sizes, factors, (outliers, width) = tuple(numbers["sizes"]), tuple(numbers["factors"]), numbers.get("tail", (0, 1))
    return Adjustment(process, around, share, sizes, factors, tuple(ahead), (float(outliers), float(width)))
