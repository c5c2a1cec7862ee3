"""`Predictor`: a trained model whose inputs and predictions are in the user's units; and `load`, which finds one.

A pretrained model, the folder of a run and a folder of ``nvdp fit`` are loaded alike, of regression or classification.
"""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from nvdp.data import gp
from nvdp.data.priors import PriorTasks
from nvdp.data.registry import IMAGE_TASKS
from nvdp.data.tables import Columns
from nvdp.errors import InputError, NameNote, check_format, unknown_name
from nvdp.evaluation.explain import Explanation, Neighbours, explain
from nvdp.models.base import RegressionModel
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.models.registry import AnyModel, build_model
from nvdp.posteriors.adjusted import AdjustedPosterior, Adjustment
from nvdp.system import check_outputs, new_folder, write_text
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG, WEIGHTS, load_any_run, save_model
from nvdp.units import MOST_INPUTS, ContextUnits, PosteriorInUnits, TaskUnits, Units, warn_far

if TYPE_CHECKING:
    from nvdp.models.state import TaskState

FIT, FIT_VERSION, SCORES, CARD = "fit.json", 2, "scores.json", "card.json"
PROCESS = "process.safetensors"  # the hierarchical GP of a table, where the network predicts its residuals
NEIGHBOURS = "neighbours.safetensors"  # curves of training tasks
# Inputs that the models of a family of tasks were trained on.
X_RANGES = {"gp": gp.DOMAIN, "trig": (-math.pi, math.pi), **dict.fromkeys(IMAGE_TASKS, (0.0, 1.0))}


class Widths(NamedTuple):
    """Numbers of inputs and outputs that a model takes."""

    x: range
    y: int


@dataclass(frozen=True)
class Predictor:
    """A trained model, and what is needed to predict with it.

    >>> predictor = load("gp")
    >>> predictor.kind, predictor.config.task, predictor.units.x_high
    ('regression', 'gp', (2.0,))
    >>> predictor.adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]).predict([0.5]).mean.shape
    torch.Size([1, 1])
    """

    model: Any  # a `MetaModel`, of regression or classification
    units: Units
    config: RunConfig | None = None  # of the run that trained it
    columns: Columns | None = None  # of the table that it was fitted to
    card: dict[str, Any] = field(default_factory=dict)  # what was measured
    adjustment: Adjustment | None = None  # of a model of ``nvdp fit``: calibration, and the table's process
    neighbours: Neighbours | None = None  # curves of the tasks that it was fitted to

    @classmethod
    def of(cls, model: "AnyModel | Predictor") -> "Predictor":
        """A model that works on values as they are; a predictor is returned as it is."""
        return model if isinstance(model, Predictor) else cls(model, _own_units(model))

    def within(self, low: Sequence[float], high: Sequence[float]) -> "Predictor":
        """The same predictor for inputs of a known range, where units come from the context.

        A range tells a scale of inputs that a context of few points does not have.

        Args:
            low: The lowest value of every input.
            high: The highest.

        Returns:
            A predictor whose inputs are scaled by the range instead of by the context.
        """
        if not isinstance(self.units, ContextUnits):
            raise InputError(f"{self.model.config.name} has units of its own; a range is for models like 'general'")
        bounds = tuple(map(float, low)), tuple(map(float, high))
        return replace(self, units=ContextUnits(x_range=bounds))

    @property
    def kind(self) -> str:
        """regression or classification."""
        return str(self.model.config.kind)

    @property
    def widths(self) -> "Widths":
        """How many inputs and outputs a point may have."""
        config = self.model.config
        if isinstance(self.units, ContextUnits):
            return Widths(range(1, MOST_INPUTS + 1), config.y_dim)
        own = len(self.units.x_centre)  # a network around a process sees more than the user's inputs
        return Widths(range(own, own + 1), config.y_dim)

    def adapt(self, x: Any, y: Any = None, mask: Tensor | None = None) -> Any:
        """The posterior of a task given its context, in the user's units.

        Args:
            x: Inputs (points, features) of one task or (tasks, points, features) of several, or a `PointSet`.
            y: Outputs in the same layout; of a classifier numbers of classes, or one-hot labels.
            mask: Which entries are real points (tasks, points); all, if left out.

        Returns:
            A posterior: `predict`, `suggest`, and where the model can take in points one by one `update`, `forget` and
            `to_bytes`.
        """
        if isinstance(self.units, ContextUnits):
            x, y, mask = self.units.readable(x, y, mask)
        units = self.units.of_context(x, y, mask)
        context = units.points_in(x, y)
        adjusted = self.adjustment
        posterior = self.model.adapt(*context, mask) if adjusted is None else adjusted.adapt(self.model, *context, mask)
        if mask is None:
            self.warn_far(x, y)
        return self.in_units(posterior, units)

    def explain(self, x: Any, y: Any) -> Explanation:
        """Why it answers so: the nearest training tasks, and what each context point changes.

        Args:
            x: Inputs of a context (points, features), in the user's units.
            y: Its outputs.

        Returns:
            See `nvdp.evaluation.explain.Explanation`.
        """
        return explain(self, x, y)

    def plot(
        self, x: Any, y: Any, path: str | Path, others: tuple[Any, Any] | None = None, force: bool = False
    ) -> list[Path]:
        """Draw a task: the prediction from its rows over the range of the first input, with its 90 % interval.

        Args:
            x: Inputs of the rows.
            y: Their outputs; the first is drawn.
            path: A PNG; a PDF goes beside it.
            others: Further rows (x, y) to show, which are not predicted from.
            force: Whether existing files are replaced.

        Returns:
            The files written.
        """
        from nvdp.plots.tables import figure_tables, task_panel

        check_outputs([Path(path), Path(path).with_suffix(".pdf")], force=force)

        names = self.columns or Columns(None, ("x",), ("y",))
        return figure_tables([task_panel(self, x, y, others)], path, names.x[0], names.y[0], names.x[0] in names.dates)

    def warn_far(self, x: Any, y: Any = None) -> None:
        """Warn if a context is unlike the data that the model has learned from, with the numbers of both."""
        warn_far(self.units, x, y)

    def posterior_from_bytes(self, data: bytes) -> Any:
        """The posterior whose ``to_bytes`` gave these bytes."""
        if not isinstance(self.model, RegressionModel):
            raise InputError(f"posteriors of the classifier {self.model.config.name} are not kept as bytes")
        if isinstance(self.units, ContextUnits):
            raise InputError("a model in units of its context keeps no memory of it; adapt to all points again")
        posterior = self.model.posterior_from_bytes(data)
        if self.adjustment is None:
            return self.in_units(posterior)
        counts = cast("TaskState", posterior.memory).counts
        whole = AdjustedPosterior(self.model, posterior, self.adjustment, counts, None, posterior.single)
        return self.in_units(whole)

    def in_units(self, posterior: Any, units: Units | TaskUnits | None = None) -> Any:
        """A posterior of the model, to be asked in the user's units; by default those of the predictor."""
        if units is None:
            units = self.units  # never those of a context, which `adapt` makes
        if not (units.same_x and units.same_y):
            return PosteriorInUnits(posterior, units)
        posterior.known = units
        return posterior

    def __reduce__(self) -> tuple[Any, ...]:
        # The weights travel as safetensors bytes, so that unpickling them runs no code.
        weights = tensors_to_bytes({name: value.contiguous() for name, value in self.model.state_dict().items()})
        rest = (self.units, self.config, self.columns, self.card, self.adjustment, self.neighbours)
        return _rebuilt, (self.model.config, weights, *rest)


def _rebuilt(model_config: Any, weights: bytes, *rest: Any) -> Predictor:
    tensors = tensors_from_bytes(weights)
    precision = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), None)
    model = build_model(model_config).to(precision)
    model.load_state_dict(tensors)
    return Predictor(model.eval().requires_grad_(False), *rest)


def _own_units(model: AnyModel, task: str = "") -> Units:
    if task == PriorTasks.name:
        return ContextUnits()
    y_dim = model.config.y_dim if isinstance(model, RegressionModel) else 0
    return Units.identity(model.config.x_dim, y_dim, *X_RANGES.get(task, ()))


def load(name_or_folder: str | Path) -> Predictor:
    """A trained model, ready to ``adapt``.

    A name that is both a pretrained model and a folder means the folder if it holds a run; a warning says so.

    Args:
        name_or_folder: The name of a pretrained model, the folder of a run or the folder that ``nvdp fit`` left.

    Returns:
        The model with its units, columns and measured scores.

    >>> load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]).predict([0.5]).mean.shape
    torch.Size([1, 1])
    >>> load("omniglot").kind
    'classification'
    """
    folder = find_run(name_or_folder)
    config, model, _ = load_any_run(folder)
    fitted = fit_of(folder)
    units, columns = (fitted["units"], fitted["columns"]) if fitted else (_own_units(model, config.task), None)
    adjustment, near = (fitted["adjustment"], fitted["neighbours"]) if fitted else (None, None)
    return Predictor(model.requires_grad_(False), units, config, columns, card_of(folder), adjustment, near)


def find_run(name_or_folder: str | Path) -> Path:
    """The folder of a run, or of a pretrained model given by its name."""
    folder, name = Path(name_or_folder), str(name_or_folder)
    if name in pretrained_names():
        if not (folder / CONFIG).exists():
            return _weights() / name
        note = f"'{name}' is a folder with a run and also a pretrained model; the folder is used"
        warnings.warn(note, NameNote, stacklevel=3)
        return folder.absolute()
    if not folder.is_dir():
        raise unknown_name("folder or pretrained model", name, pretrained_names())
    return folder


def pretrained_names() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in _weights().glob(f"*/{CONFIG}"))


def _weights() -> Path:
    return Path(str(files("nvdp") / "weights"))


def card_of(folder: Path) -> dict[str, Any]:
    """What is known of a model: what it is, how long it was trained, and what was measured, if anything was.

    Returns:
        `model`, `task`, `steps` and, where there are some, `scores`: LL, RLL and PLL or the accuracy of a pretrained
        model; of a model of ``nvdp fit`` those of it and its rivals, beside the whole `report`. Of both also `about`:
        what it is for, its training data, its limits, and when not to use it; and the `seconds` of training, a `note`
        about it, the `coverage` of intervals and scores `by_context` size, where they were measured.

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
    card = {"steps": report.get("steps"), "scores": report.get("scores", {}), "report": report}
    if columns is None or not {"model", "tasks", "recipe", "verdict", "seconds"} <= report.keys():
        return card
    inputs, outputs = ", ".join(columns.x), ", ".join(columns.y)
    ranges = zip(columns.x, units.x_low, units.x_high, strict=False)  # given columns come after those of x
    ends = ((name, *(f"{end:g}" if name not in columns.dates else end for end in pair)) for name, *pair in ranges)
    learned = ", ".join(f"{name} from {' to '.join(columns.written(name, list(pair)))}" for name, *pair in ends)
    what = columns.task or "task"
    own = {size: scores.get(report["model"], {}) for size, scores in report.get("by_context", {}).items()}
    measured = ("LL", "coverage90", "coverage50")
    return card | {
        "about": {
            "for": f"{outputs} of a new {what} at any {inputs}, from a few rows of it",
            "trained_on": f"{report['tasks']['training']} tasks of a table, {learned}; {report['recipe']}",
            "limits": f"scored on {report['tasks']['scored']} tasks that were held out: {report['verdict']}",
            "not_for": f"a {what} unlike those of the table, and {inputs} outside the range of training",
        },
        "seconds": report["seconds"],
        "by_context": [
            {"data": "held-out tasks", "context": int(size), **{name: row[name] for name in measured if name in row}}
            for size, row in own.items()
        ],
    }


def card_lines(card: dict[str, Any]) -> list[str]:
    """The card of a model as lines of text: what ``nvdp info`` prints and the web page shows.

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


def pretrained_card(name: str) -> dict[str, Any]:
    """`card_of` a pretrained model, with its name and the size of its weights."""
    folder = _weights() / name
    return {"name": name, **card_of(folder), "bytes": (folder / WEIGHTS).stat().st_size}


def save_fit(folder: Path, predictor: Predictor, steps: int, report: dict[str, Any]) -> None:
    """Write a fitted model and the configuration that was chosen into a new or empty folder.

    The folder appears complete or not at all, and only if what was written can be loaded.
    """
    with new_folder(folder) as place:
        write_fit(place, predictor, steps, report)


def write_fit(place: Path, predictor: Predictor, steps: int, report: dict[str, Any]) -> None:
    """Write a fitted model into a folder that `nvdp.system.new_folder` made, and load it once."""
    assert predictor.config is not None
    write_text(place / CONFIG, predictor.config.to_json())
    save_model(place, predictor.model, steps)
    columns = None if predictor.columns is None else asdict(predictor.columns)
    about = {"version": FIT_VERSION, "units": predictor.units.to_dict(), "columns": columns, "report": report}
    if (found := predictor.adjustment) is not None:
        about["adjustment"] = {
            "process": found.process is not None,
            "around": found.around,
            "share": found.share,
            "sizes": list(found.sizes),
            "factors": list(found.factors),
            "factors_ahead": list(found.factors_ahead),
            "tail": list(found.tail),
        }
        if found.process is not None:
            (place / PROCESS).write_bytes(tensors_to_bytes(found.process.tensors()))
    if (near := predictor.neighbours) is not None:
        about["neighbours"] = list(near.names)
        (place / NEIGHBOURS).write_bytes(tensors_to_bytes(near.tensors()))
    write_text(place / FIT, json.dumps(about, indent=1) + "\n")
    load(place)


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
    log, dates = (tuple(names.get(part, ())) for part in ("log", "dates"))
    return Columns(names["task"], x, y, names.get("group"), given, levels, log, dates)


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
