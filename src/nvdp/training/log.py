"""What a run leaves to be read: log.csv always, TensorBoard events if it is installed."""

import csv
import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nvdp.files import write_text
from nvdp.training.run_folder import LOG

COLUMNS = ("step", "bound", "LL", "KL", "rate", "learning_rate", "skipped", "seconds")


class RunLog:
    """Appends a row at a time; on resume, rows from after the checkpoint are dropped."""

    def __init__(self, folder: Path, start: int) -> None:
        self.path = folder / LOG
        kept = [",".join(COLUMNS)]
        if start and self.path.exists():
            rows = [line.split(",") for line in self.path.read_text().splitlines()[1:]]
            # The last row is incomplete if the machine failed while it was written.
            kept += [",".join(row) for row in rows if len(row) == len(COLUMNS) and int(row[0]) <= start]
        write_text(self.path, "\n".join(kept) + "\n")
        self._file = self.path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._events: Any = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=start)

    def write(self, row: dict[str, float]) -> None:
        """Append one row."""
        self._writer.writerow({name: _short(value) for name, value in row.items()})
        self._file.flush()
        if self._events is not None:
            for name, value in row.items():
                if name != "step":
                    self._events.add_scalar(name, value, int(row["step"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
