"""Processor seconds and peak memory of `nvdp fit` on whole large tables, and of `nvdp predict` for a million tasks.

    python benchmarks/tables_at_scale.py fit predict --json results/bench/tables_at_scale.json

Each command is a process of its own with one thread. `predict --tasks 2000x1,2000x2` is a short trial: 2,000 tasks in
one process and in two. What was not asked for stays in the file; each row has its commit and processor.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import nvdp
from nvdp.bench.tables import TABLES
from nvdp.bench.timing import machine
from nvdp.system import source_commit, write_text

WHOLE = ("learning_curves", "cholesterol")
CASES = "100000x1,100000x2,1000000x2"
MODEL, CONTEXT, QUERIES, FILE_TASKS = "gp-nvdp", 3, 2, 50_000


def measured(arguments: list[str], place: Path) -> dict[str, Any]:
    """Run a command; its exit code, seconds, processor seconds and peak memory."""
    with (place / "said.txt").open("w") as said:
        actions = [(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        began = time.monotonic()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = os.posix_spawn(
            sys.executable, [sys.executable, "-m", "nvdp", *arguments], environment, file_actions=actions
        )
        _, status, used = os.wait4(process, 0)
    lines = (place / "said.txt").read_text()
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"nvdp {arguments[0]} ended with code {code}: {lines[-500:]}")
    return {
        "seconds": round(time.monotonic() - began),
        "processor_seconds": round(used.ru_utime + used.ru_stime),
        "peak_mb": round(used.ru_maxrss / 1024),
    }


def fits(place: Path, minutes: float, names: list[str]) -> Iterator[dict[str, Any]]:
    """`nvdp fit` on whole tables, reading, scoring, figures and report included."""
    for table in (each for each in TABLES if each.name in names):
        columns, file = table.columns, place / f"{table.name}.csv"
        frame = table.frame()
        frame.to_csv(file, index=False)
        more = ["--log", columns.x[0]] if table.logarithm else []
        more += ["--split-by", table.group] if table.group else []
        asked = ["--task", str(columns.task), "--x", ",".join(columns.x), "--y", ",".join(columns.y), *more]
        out = place / f"model-{table.name}"
        found = measured(["fit", str(file), *asked, "--out", str(out), "--minutes", str(minutes), "--quiet"], place)
        report = json.loads((out / "fit.json").read_text())["report"]
        about = {"what": "fit", "table": table.name, "tasks": frame[columns.task].nunique(), "rows": len(frame)}
        yield about | {"minutes": minutes, "steps": report["steps"], "verdict": report["verdict"]} | found


def predictions(place: Path, cases: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """`nvdp predict` for folders of so many tasks, in so many processes."""
    columns = ["--task", "tree", "--x", "day", "--y", "size"]
    for tasks, jobs in cases:
        folders = {}
        for name, points in (("contexts", CONTEXT), ("queries", QUERIES)):
            folders[name] = place / f"{name}-{tasks}"
            if folders[name].exists():
                continue
            folders[name].mkdir()
            for first in range(0, tasks, FILE_TASKS):
                random = np.random.default_rng([first, points])
                tree = np.tile(np.arange(first, min(tasks, first + FILE_TASKS)), points)
                frame = pd.DataFrame({"tree": tree, "day": random.uniform(-2, 2, len(tree))})
                frame.assign(size=np.sin(frame["day"] + frame["tree"])).to_parquet(folders[name] / f"{first}.parquet")
        out = place / f"predictions-{tasks}-{jobs}"
        files = ["--context", str(folders["contexts"]), "--at", str(folders["queries"]), "--out", str(out)]
        found = measured(["predict", MODEL, *columns, *files, "--jobs", str(jobs)], place)
        written = sum(len(pd.read_parquet(path, columns=["tree"])) for path in out.glob("*.parquet"))
        if written != tasks * QUERIES:
            raise SystemExit(f"{written} rows were written; expected {tasks * QUERIES}")
        about = {"what": "predict", "model": MODEL, "tasks": tasks, "jobs": jobs, "context": CONTEXT}
        yield about | {"rows": tasks * QUERIES} | found


def parsed(text: str) -> list[tuple[int, int]]:
    """Numbers of tasks and processes.

    >>> parsed("2000x1,2000x2")
    [(2000, 1), (2000, 2)]
    """
    pairs = [each.split("x") for each in text.split(",")]
    return [(int(tasks), int(jobs)) for tasks, jobs in pairs]


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return ("fit", row["table"]) if row["what"] == "fit" else ("predict", row["tasks"], row["jobs"])


def main() -> None:
    """Measure, and keep the rows of other cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["fit", "predict"])
    parser.add_argument("--minutes", type=float, default=5.0, help="of a fit, as its option")
    parser.add_argument("--tables", nargs="*", choices=WHOLE, default=list(WHOLE), help="to fit")
    parser.add_argument("--tasks", type=parsed, default=CASES, help="tasks and processes of predict, as 2000x1,2000x2")
    parser.add_argument("--json", type=Path, help="the file to write or to add to")
    options = parser.parse_args()
    before = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    asked = {("fit", table) for table in options.tables} | {("predict", *case) for case in options.tasks}
    rows = [row for row in before if row["what"] not in options.parts or _case(row) not in asked]
    own = {"commit": source_commit() or nvdp.__version__, "processor": machine(True)["processor"]}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        ways = {"fit": fits(place, options.minutes, options.tables), "predict": predictions(place, options.tasks)}
        for row in (row for part in options.parts for row in ways[part]):
            print(row, flush=True)
            rows.append(row | own)
            if options.json:
                write_text(options.json, json.dumps({"suite": "tables_at_scale", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
