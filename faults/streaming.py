"""A folder of Parquet files of growing size: the memory that reading it takes must not grow with it."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from faults.tally import Tally

ROWS_A_TASK, FILE_ROWS = 20, 1_000_000
ALLOWED_GROWTH = 1.25  # of the peak, from the smallest to the largest folder


def growing_folders(place: Path, millions: tuple[int, ...]) -> Tally:
    """Peak memory and time of reading 1 to 50 million rows, each size in a process of its own."""
    tally = Tally(
        f"a folder of Parquet files of {' to '.join(str(m) for m in (millions[0], millions[-1]))} million rows"
    )
    peaks: dict[int, float] = {}
    seconds: dict[int, float] = {}
    folder, written = place / "rows", 0
    folder.mkdir()
    for million in millions:
        while written < million:
            _write(folder / f"part-{written:03d}.parquet", written)
            written += 1
        command = [sys.executable, "-m", "faults.streaming", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        measured = json.loads(done.stdout)
        peaks[million], seconds[million] = measured["peak_mb"], measured["seconds"]
        tally.check(measured["rows"] == million * FILE_ROWS, "read to the end", f"{million} million: {measured}")
    growth = max(peaks.values()) / peaks[millions[0]]
    tally.check(growth <= ALLOWED_GROWTH, "peak memory flat", f"the peak grows {growth:.2f} times: {peaks}")
    tally.numbers = {"peak_mb": peaks, "seconds": seconds, "growth": growth}
    return tally


def _write(path: Path, number: int) -> None:
    import pandas as pd

    chance = np.random.default_rng(number)
    task = number * FILE_ROWS // ROWS_A_TASK + np.arange(FILE_ROWS) // ROWS_A_TASK
    x = chance.random(FILE_ROWS)
    pd.DataFrame({"task": task, "x": x, "y": np.sin(6 * x + task % 7)}).to_parquet(path)


def _measure(folder: Path) -> dict[str, float]:
    from nvdp.data.streams import stream_tasks
    from nvdp.data.tables import Columns

    began = time.monotonic()
    table = stream_tasks(folder, Columns("task", ("x",), ("y",)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": table.rows, "tasks": len(table.tasks), "peak_mb": round(peak), "seconds": time.monotonic() - began}


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
