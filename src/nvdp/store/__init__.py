"""The states of many tasks, in one SQLite file or on a PostgreSQL server: `TaskStore`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.models.base import MetaModel, RegressionModel
from nvdp.models.state import PointError, TaskState, encoder_fingerprint, feature_sums
from nvdp.posteriors.prediction import Prediction
from nvdp.store.postgres import StateTable, check_table_exists, is_url, table_stats
from nvdp.store.sqlite import StateFile, file_stats
from nvdp.tasks import PointSet, as_points

TASKS_AT_ONCE, POINTS_AT_ONCE = 1_000, 10_000  # that are encoded together
__all__ = ["TaskStore", "check_exists", "store_stats"]


def store_stats(place: Path | str) -> dict[str, float]:
    """Tasks and points of a store, and its size on disk; needs no model. Every state is compared with its checksum.

    Args:
        place: A file, or the URL of a PostgreSQL database.

    Returns:
        `tasks`, `points`, `bytes` and `bytes_per_task`.
    """
    return table_stats(str(place)) if is_url(place) else file_stats(Path(place))


def check_exists(place: Path | str) -> None:
    """Refuse a place where no store was made yet."""
    if is_url(place):
        check_table_exists(str(place))
    elif not Path(place).exists():
        raise InputError(f"{place} does not exist; `nvdp store observe` makes it")


class TaskStore:
    """The states of any number of tasks in one place, under one model; points and predictions are in the user's units.

    One object serves one thread.

    Args:
        place: A file, which is made if it is not there; or the URL of a PostgreSQL database, ``postgresql://…``, for
            several machines.
        model: A `Predictor`, as `nvdp.load` gives it, or a regression model itself.
        power_safe: Also wait for the disk at each transaction, so that not even a power cut loses an acknowledged
            observation. Without it only a crash of the machine can, not that of the process. A server always waits.

    >>> import nvdp, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with TaskStore(Path(folder.name) / "patients.db", nvdp.load("gp-nvdp")) as store:
    ...     store.observe("anna", [0.0, 1.0], [0.3, 0.5])
    ...     store.observe("anna", [1.5], [0.2])
    ...     store.predict("anna", [0.5, 2.0]).mean.shape, len(store)
    2
    3
    (torch.Size([2, 1]), 1)
    >>> folder.cleanup()
    """

    def __init__(self, place: Path | str, model: Predictor | MetaModel, power_safe: bool = False) -> None:
        self.predictor = Predictor.of(model)
        if not isinstance(self.predictor.model, RegressionModel):
            raise InputError(f"a store needs a model of regression; {self.predictor.model.config.name} is a classifier")
        self.model = self.predictor.model
        self._features = self.model.encoder.point_features
        TaskState.empty(self.model)  # refuses a model that is being trained
        made_by = encoder_fingerprint(self.model), json.dumps(self.predictor.units.to_dict())
        self._states: StateFile | StateTable
        if is_url(place):
            self._states = StateTable(str(place), self._features, made_by)
        else:
            self._states = StateFile(Path(place), self._features, made_by, power_safe)

    @property
    def place(self) -> str:
        """Where the states are, as it may be shown: without a password."""
        return str(self._states.place)

    def observe(self, task: str, x: Any, y: Any) -> int:
        """Take in points of a task, new or known; returns how many it has seen. On return they are safe."""
        return self.observe_many([task], [x], [y])[0]

    def observe_many(self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any]) -> list[int]:
        """Take in points of several tasks at once, all or none; a task may be named more than once."""
        return self._add(tasks, xs, ys, 1)

    def forget(self, task: str, x: Any, y: Any) -> int:
        """Take points out again, as if they had never been observed; returns how many are left."""
        return self._add([task], [x], [y], -1)[0]

    def _add(self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any], sign: int) -> list[int]:
        if not len(tasks) == len(xs) == len(ys):
            raise InputError(f"{len(tasks)} tasks need as many x and y; got {len(xs)} and {len(ys)}")
        names = [_task_name(task) for task in tasks]
        starts = range(0, len(names), TASKS_AT_ONCE)
        added = self._sums(names, xs, ys, 0)  # before other writers have to wait
        seen: dict[str, int] = {}
        with self._states.transaction(names):
            for start in starts:
                seen |= self._change(*(self._sums(names, xs, ys, start) if start else added), sign)
        return [seen[name] for name in names]

    def _change(self, names: list[str], added: Tensor, points: Tensor, sign: int) -> dict[str, int]:
        """Add to the states of tasks, or take away; inside a transaction. How many points each has seen then."""
        sums, counts = self._states.read(names)
        sums, counts = sums + sign * added, counts + sign * points
        if (counts < 0).any():
            worst = int(counts.argmin())
            raise InputError(
                f"cannot forget {int(points[worst])} points of '{names[worst]}', which has seen "
                f"{int(counts[worst] + points[worst])}"
            )
        sums = sums * (counts > 0)[:, None]
        self.model.encoder.check_sums(sums)
        self._states.write(names, (sums, counts))
        return dict(zip(names, counts.tolist(), strict=True))

    def _sums(
        self, tasks: Sequence[str], xs: Sequence[Any], ys: Sequence[Any], start: int
    ) -> tuple[list[str], Float[Tensor, "task feature"], Int[Tensor, " task"]]:
        """Names, feature sums and counts of up to `TASKS_AT_ONCE` of the tasks, from `start` on.

        Each point is encoded as a set of its own. A task may be named more than once. A point that cannot be
        remembered is told with its place in `tasks`.
        """
        part = slice(start, start + TASKS_AT_ONCE)
        names = list(dict.fromkeys(tasks[part]))
        place = {name: index for index, name in enumerate(names)}
        units, sets = self.predictor.units, []
        for name, raw_x, raw_y in zip(tasks[part], xs[part], ys[part], strict=True):
            x, y = as_points(units.x_in(raw_x), "x"), as_points(units.y_in(raw_y), "y")
            if len(x) != len(y):
                raise InputError(f"task '{name}': x holds {len(x)} points and y {len(y)}; they must agree")
            sets.append((x, y))
        widths = {(x.shape[1], y.shape[1]) for x, y in sets}
        if len(widths) > 1:
            raise InputError(f"tasks of one store must share their (x, y) widths; got {sorted(widths)}")
        sums = torch.zeros(len(names), self._features, dtype=torch.float64)
        if not sets:
            return names, sums, torch.zeros(0, dtype=torch.int64)
        sizes = torch.tensor([len(x) for x, _ in sets])
        owner = torch.repeat_interleave(torch.tensor([place[name] for name in tasks[part]]), sizes)
        x, y = (torch.cat([each[side] for each in sets])[:, None] for side in (0, 1))
        points = PointSet.of(x, y)
        for first in range(0, len(owner), POINTS_AT_ONCE):
            some = slice(first, first + POINTS_AT_ONCE)
            try:
                features, _ = feature_sums(self.model, PointSet(points.x[some], points.y[some], points.mask[some]))
            except PointError as error:
                flat = first + error.place[0]
                which = int(torch.searchsorted(sizes.cumsum(0), flat, right=True))
                number = flat - int(sizes[:which].sum())
                x, y = np.asarray(xs[start + which])[number], np.asarray(ys[start + which])[number]
                told = np.ravel(x).tolist(), np.ravel(y).tolist()
                raise PointError(*told, (start + which, number), f"task '{tasks[start + which]}': ") from None
            sums.index_add_(0, owner[some], features)
        raw_x, raw_y = (np.concatenate([np.asarray(each).reshape(-1, 1) for each in raw[part]]) for raw in (xs, ys))
        self.predictor.warn_far(raw_x, raw_y)
        return names, sums, torch.bincount(owner, minlength=len(names))

    def state(self, tasks: Sequence[str]) -> TaskState:
        """The states of several tasks, in the model's units; one that was never observed is empty."""
        return TaskState(self.model, *self._states.read(list(map(_task_name, tasks))))

    def posterior(self, task: str) -> Any:
        """The posterior of one task; the prior if it was never observed."""
        state = TaskState(self.model, *self._states.read([_task_name(task)]), single=True)
        return self.predictor.in_units(state.posterior())

    def predict(
        self, task: str, x: Any, samples: int = 0, generator: torch.Generator | int | None = None
    ) -> Prediction:
        """The prediction of one task at x (points, features); the prior's if it was never observed."""
        return self.posterior(task).predict(x, samples, generator)

    def predict_many(
        self, tasks: Sequence[str], x: Any, samples: int = 0, generator: torch.Generator | int | None = None
    ) -> Prediction:
        """Predictions of several tasks: all at one x (points, features), or at x of (tasks, points, features)."""
        if not tasks:
            raise InputError("predictions of 0 tasks were asked for; expected at least 1")
        return self.predictor.in_units(self.state(tasks).posterior()).predict(x, samples, generator)

    def count(self, task: str) -> int:
        """How many points of a task have been observed."""
        return int(self._states.read([_task_name(task)])[1])

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def close(self) -> None:
        """Close the file or the connection."""
        self._states.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _task_name(task: object) -> str:
    if not isinstance(task, str) or not task:
        raise InputError(f"a task is named by a text that is not empty; got {task!r}")
    if not task.isascii() and any("\ud800" <= letter <= "\udfff" for letter in task):
        raise InputError(f"a task is named by a text; {task!a} holds half a character and cannot be stored")
    return task
