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

from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from nvdp.cards import FIT, FIT_VERSION, NEIGHBOURS, PROCESS, card_of, fit_of
from nvdp.data import gp
from nvdp.data.priors import PriorTasks
from nvdp.data.registry import IMAGE_TASKS
from nvdp.data.tables import Columns, split_tasks
from nvdp.errors import InputError, NameNote, unknown_name
from nvdp.evaluation.explain import Explanation, Neighbours, explain
from nvdp.models.base import RegressionModel
from nvdp.models.registry import AnyModel, build_model
from nvdp.posteriors.adjusted import AdjustedPosterior, Adjustment
from nvdp.system import check_outputs, new_folder, write_text
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG, WEIGHTS, load_any_run, save_model
from nvdp.units import MOST_INPUTS, ContextUnits, PosteriorInUnits, TaskUnits, Units, warn_far

if TYPE_CHECKING:
    from nvdp.models.state import TaskState

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
            x: Inputs (points, features) of one task or (tasks, points, features) of several, or a `PointSet`; or
                rows of the fitted table, see `rows`.
            y: Outputs in the same layout; of a classifier numbers of classes, or one-hot labels.
            mask: Which entries are real points (tasks, points); all, if left out.

        Returns:
            A posterior: `predict`, `suggest`, and where the model can take in points one by one `update`, `forget` and
            `to_bytes`.
        """
        if y is None and hasattr(x, "columns"):
            x, y = self.rows(x)
        if isinstance(self.units, ContextUnits):
            x, y, mask = self.units.readable(x, y, mask)
        units = self.units.of_context(x, y, mask)
        context = units.points_in(x, y)
        adjusted = self.adjustment
        posterior = self.model.adapt(*context, mask) if adjusted is None else adjusted.adapt(self.model, *context, mask)
        if mask is None:
            self.warn_far(x, y)
        return self.in_units(posterior, units)

    @property
    def fills_in(self) -> bool:
        """Whether outputs of a context may be missing: a process fills them in."""
        return self.adjustment is not None and self.adjustment.process is not None

    def rows(self, frame: Any) -> tuple[Any, Any]:
        """Inputs and outputs of the rows of one task, as `adapt` takes them.

        Args:
            frame: A DataFrame with the columns of the fitted table; dates and words as there. The column of tasks may
                be left out, and without the columns of outputs there are none.

        Returns:
            Arrays (points, features) and (points, outputs). Rows without an input are left out, and those without an
            output where the model cannot fill it in.
        """
        if self.columns is None:
            raise InputError(f"{self.model.config.name} was not fitted to a table; give x and y as arrays")
        names = self.columns if self.columns.task in frame.columns else replace(self.columns, task=None)
        if not any(name in frame.columns for name in names.y):
            names = replace(names, y=(), log=tuple(name for name in names.log if name in names.x))
        table = split_tasks(frame, replace(names, group=None), "the frame", partial=self.fills_in)
        if len(table.tasks) > 1:
            raise InputError(f"the frame holds {len(table.tasks)} tasks; expected the rows of one")
        return table.tasks[0].x, table.tasks[0].y

    def explain(self, x: Any, y: Any = None) -> Explanation:
        """Why it answers so: the nearest training tasks, and what each context point changes.

        Args:
            x: Inputs of a context (points, features), in the user's units; or rows of the fitted table, see `rows`.
            y: Its outputs.

        Returns:
            See `nvdp.evaluation.explain.Explanation`.
        """
        return explain(self, *(self.rows(x) if y is None else (x, y)))

    def plot(
        self, x: Any, y: Any = None, path: str | Path = "task.png", others: Any = None, force: bool = False
    ) -> list[Path]:
        """Draw a task: the prediction of all outputs over the range of the first input, with its 90 % interval.

        Args:
            x: Inputs of the rows to predict from; or rows of the fitted table, see `rows`.
            y: Their outputs.
            path: A PNG; a PDF goes beside it.
            others: Further rows to show, which are not predicted from: (x, y), or rows of the fitted table.
            force: Whether existing files are replaced.

        Returns:
            The files written.
        """
        from nvdp.plots.tables import TaskRows, figure_tasks

        check_outputs([Path(path), Path(path).with_suffix(".pdf")], force=force)
        points = self.rows(x) if y is None else (x, y)
        shown = self.rows(others) if hasattr(others, "columns") else others
        names = self.columns or Columns(None, ("x",), ("y",))
        return figure_tasks(self, [TaskRows("", *points, shown)], path, names)

    def warn_far(self, x: Any, y: Any = None) -> None:
        """Warn if a context is unlike the data that the model has learned from, with the numbers of both."""
        warn_far(self.units, x, y, self.columns)

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
        whole = AdjustedPosterior(
            self.model, posterior, self.adjustment, counts=counts, points=None, single=posterior.single
        )
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
