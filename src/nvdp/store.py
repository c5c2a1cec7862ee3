"""Many small tasks on disk: the state of each (`nvdp.states`) is one row of a file (`nvdp.state_file`).

An observation that was acknowledged survives the death of the process at any moment: each call of `observe` is one
transaction.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from nvdp.errors import InputError
from nvdp.models.base import MetaModel
from nvdp.posteriors import Posterior
from nvdp.predictions import Prediction
from nvdp.state_file import StateFile, States, store_stats
from nvdp.states import TaskState, encoder_fingerprint, feature_sums
from nvdp.tasks import PointSet, as_points

__all__ = ["TaskStore", "store_stats"]


class TaskStore:
    """The states of any number of tasks in one file, under one model.

    ``power_safe`` also waits for the disk at each transaction, so that not even a power cut loses an acknowledged
    observation; without it only the death of the machine can, not that of the process. One object serves one thread.

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

    def __init__(self, path: Path | str, model: MetaModel, power_safe: bool = False) -> None:
        self.path, self.model, self._features = Path(path), model, model.encoder.point_features
        TaskState.empty(model)  # refuses a model that is being trained
        self._file = StateFile(self.path, self._features, encoder_fingerprint(model), power_safe)

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
        names = list(dict.fromkeys(map(_task_name, tasks)))
        place = {name: index for index, name in enumerate(names)}
        owner = [place[task] for task in tasks]
        added, points = self._sums(owner, xs, ys, len(names))
        with self._file.transaction():
            sums, counts = self._file.read(names)
            sums, counts = sums + sign * added, counts + sign * points
            if (counts < 0).any():
                worst = int(counts.argmin())
                raise InputError(
                    f"cannot forget {int(points[worst])} points of '{names[worst]}', which has seen "
                    f"{int(counts[worst] + points[worst])}"
                )
            sums = sums * (counts > 0)[:, None]
            self.model.encoder.check_sums(sums)
            self._file.write(names, (sums, counts))
        seen = counts.tolist()
        return [seen[index] for index in owner]

    def _sums(self, owner: Sequence[int], xs: Sequence[Any], ys: Sequence[Any], tasks: int) -> States:
        """Feature sums of each task; all points are encoded as one set, so that none is padding."""
        if not owner:
            return torch.zeros(0, self._features, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        sets = [(as_points(x, "x"), as_points(y, "y")) for x, y in zip(xs, ys, strict=True)]
        if len(sets) == 1:
            return feature_sums(self.model, PointSet.of(*sets[0]))
        for x, y in sets:
            if len(x) != len(y):
                raise InputError(f"x holds {len(x)} points and y {len(y)}; they must agree for every task")
        widths = {(x.shape[1], y.shape[1]) for x, y in sets}
        if len(widths) > 1:
            raise InputError(f"tasks of one store must share their (x, y) widths; got {sorted(widths)}")
        sizes = torch.tensor([len(x) for x, _ in sets])
        x, y = (torch.cat([each[part] for each in sets])[:, None] for part in (0, 1))  # each point a set of its own
        features, _ = feature_sums(self.model, PointSet.of(x, y))
        index = torch.repeat_interleave(torch.tensor(owner), sizes)
        sums = torch.zeros(tasks, self._features, dtype=torch.float64).index_add_(0, index, features)
        return sums, torch.bincount(index, minlength=tasks)

    def state(self, tasks: Sequence[str]) -> TaskState:
        """The states of several tasks; one that was never observed is empty."""
        return TaskState(self.model, *self._file.read(list(map(_task_name, tasks))))

    def posterior(self, task: str) -> Posterior:
        """The posterior of one task; the prior if it was never observed."""
        return TaskState(self.model, *self._file.read([_task_name(task)]), single=True).posterior()

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
        return self.state(tasks).posterior().predict(x, samples, generator)

    def count(self, task: str) -> int:
        """How many points of a task have been observed."""
        return self._file.count(_task_name(task))

    def __len__(self) -> int:
        return len(self._file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def close(self) -> None:
        """Write the log into the file and let go of it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _task_name(task: object) -> str:
    if not isinstance(task, str) or not task:
        raise InputError(f"a task is named by a text that is not empty; got {task!r}")
    return task
