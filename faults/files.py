"""Tables with rows that do not fit their header, outputs that exist, and fits that are stopped at any moment."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from faults.tally import Tally
from nvdp.data.tables import Columns, read_tasks
from nvdp.errors import InputError

COLUMNS = Columns("tree", ("day",), ("size",))
NAMES = ["--task", "tree", "--x", "day", "--y", "size"]
ROWS = [f"t{number % 9},{number},{number / 7:.3f}" for number in range(60)]


def shifted_rows(place: Path, tables: int, seed: int = 0) -> Tally:
    """A cell too many or too few, a quote that is not closed, or a name twice, at a random place of a good table."""
    tally = Tally("a table with a cell too many or too few, an open quote or a doubled name, at a random line")
    place.mkdir(parents=True, exist_ok=True)
    chance, path = random.Random(seed), place / "table.csv"
    for _ in range(tables):
        lines = ["tree,day,size", *ROWS]
        kind, line = chance.choice(("more", "fewer", "quote", "name")), chance.randrange(1, len(lines))
        cells = lines[line].split(",")
        place_in_row = chance.randrange(len(cells))
        if kind == "more":
            cells.insert(place_in_row, str(chance.randrange(99)))
        elif kind == "fewer":
            del cells[place_in_row]
        elif kind == "quote":
            cells[place_in_row] = '"' + cells[place_in_row]
        else:
            line, cells = 0, ["tree", "day", "size", chance.choice(("tree", "day", "size"))]
            lines[1:] = [f"{each},1" for each in lines[1:]]
        lines[line] = ",".join(cells)
        path.write_text("\n".join(lines) + "\n")
        try:
            read_tasks(path, COLUMNS)
            tally.failed(f"{kind} in line {line + 1} was read")
        except InputError as error:
            told = kind not in ("more", "fewer") or f"line {line + 1} " in str(error)
            tally.check(told, "refused, with the line where one is at fault", f"{kind}: {error}")
    return tally


def existing_outputs(place: Path) -> Tally:
    """Every command that writes a file, onto a file that exists and onto its own input."""
    tally = Tally("commands that write a file, onto one that exists and, with --force, onto their own input")
    place.mkdir(parents=True, exist_ok=True)
    table, picture = place / "table.csv", place / "digit.png"
    table.write_text("\n".join(["tree,day,size", *ROWS]) + "\n")
    from PIL import Image

    Image.new("L", (28, 28)).save(picture)
    _nvdp("fit", table, *NAMES, "--out", place / "model", "--steps", "6", "--quiet")
    store = [place / "tasks.db", table, "--model", place / "model", *NAMES[:4]]
    _nvdp("store", "observe", *store, *NAMES[4:])
    writers = {
        "predict": ["predict", place / "model", "--context", table, "--at", table],
        "store predict": ["store", "predict", *store],
        "complete": ["complete", "mnist", picture],
        "plot": ["plot", "gp"],
    }
    for name, command in writers.items():
        out = place / ("kept.png" if name in ("complete", "plot") else "kept.csv")
        out.write_text("mine")
        code = _nvdp(*command, "--out", out)
        tally.check(code == 2 and out.read_text() == "mine", "refused, the file is as it was", f"{name}: exit {code}")
        if name != "plot":
            own = picture if name == "complete" else table
            before = own.read_bytes()
            code = _nvdp(*command, "--out", own, "--force")
            tally.check(code == 2 and own.read_bytes() == before, "refused, the input is as it was", f"{name}: {code}")
    code = _nvdp("fit", table, *NAMES, "--out", place / "model", "--steps", "6", "--quiet")
    tally.check(code == 2, "refused, the file is as it was", f"fit: exit {code}")
    return tally


def stopped_fits(place: Path, times: int) -> Tally:
    """SIGTERM, SIGINT and SIGKILL at moments spread over a whole fit."""
    tally = Tally("a fit is sent SIGTERM, SIGINT or SIGKILL at moments spread over its whole length")
    place.mkdir(parents=True, exist_ok=True)
    table = place / "table.csv"
    table.write_text("\n".join(["tree,day,size", *ROWS]) + "\n")
    command = [*map(str, ("fit", table, *NAMES, "--steps", "60", "--quiet", "--out"))]
    began = time.monotonic()
    _nvdp(*command, place / "whole")
    length = time.monotonic() - began
    for number in range(times):
        kind = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[number % 3]
        out = place / f"model-{number}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        whole_command = [sys.executable, "-m", "nvdp", *command, str(out)]
        with subprocess.Popen(whole_command, env=environment, **quiet) as process:
            time.sleep(length * (number + 1) / (times + 1))
            with suppress(ProcessLookupError):
                process.send_signal(kind)
            process.wait()
        left = sorted(path.name for path in place.iterdir() if f"model-{number}" in path.name)
        whole = left == [out.name] and _nvdp("info", out) == 0
        nothing = not left or (kind == signal.SIGKILL and not out.exists())
        outcome = "a whole model" if whole else "nothing is left that could be taken for a model"
        tally.check(whole or nothing, outcome, f"{kind.name}: {left}")
    return tally


def _nvdp(*arguments: object) -> int:
    command = [sys.executable, "-m", "nvdp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode
