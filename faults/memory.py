"""Tables of a million rows, and small files that unpack to large ones: memory is bounded, or the file is refused."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np

from faults.tally import Tally

MOST_MB = 1_500  # of a command on a table of a million rows
COLUMNS = ("--task", "tree", "--x", "day", "--y", "size")


def large_tables(place: Path, rows: int) -> Tally:
    """A task of so many rows is fitted, and predicted at as many."""
    tally = Tally(f"a fit whose table has a task of {rows:,} rows, and predictions at {rows:,} rows")
    place.mkdir(parents=True, exist_ok=True)
    few, many, at = place / "few.csv", place / "many.csv", place / "at.csv"
    _write(few, 20, 12)
    many.write_text(few.read_text())
    _write(many, 1, rows, first=20)
    with at.open("w") as file:
        file.write("tree,day\n")
        file.writelines(f"tree 3,{10 * i / rows:.6g}\n" for i in range(rows))
    fit = ("--out", str(place / "model"), "--minutes", "0.1", "--quiet")
    asked = ("--context", str(few), "--at", str(at), "--out", str(place / "out.csv"))
    for name, command in {"fit": ("fit", str(many), *COLUMNS, *fit), "predict": (str(place / "model"), *asked)}.items():
        code, said, peak, seconds = run(place, *(command if name == "fit" else ("predict", *command)))
        good = code == 0 and peak < MOST_MB
        tally.check(good, f"done with less than {MOST_MB:,} MB", f"{name}: code {code}, {peak} MB; {said[-200:]}")
        tally.numbers |= {f"{name}_peak_mb": peak, f"{name}_processor_seconds": seconds}
    written = (place / "out.csv").read_bytes().count(b"\n") if (place / "out.csv").exists() else 0
    tally.check(written == rows + 1, "every row has a prediction", f"{written} lines were written")
    return tally


def packed_files(place: Path, megabytes: int) -> Tally:
    """Small files that unpack to so many megabytes: of many lines, and of one."""
    tally = Tally(f"packed tables of few bytes that unpack to {megabytes:,} MB, in many lines or in one")
    place.mkdir(parents=True, exist_ok=True)
    for name, part in {"lines": b"a,1,1\n" * 174_763, "line": b"1" * 1_048_576}.items():
        path = place / f"{name}.csv.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(b"tree,day,size\n")
            for _ in range(megabytes):
                file.write(part)
        code, said, peak, _ = run(place, "fit", str(path), *COLUMNS, "--out", str(place / "model"))
        good = code == 2 and len(said.splitlines()) == 1 and peak < 2 * MOST_MB
        outcome = f"refused in one line, with less than {2 * MOST_MB:,} MB"
        tally.check(good, outcome, f"{name}: code {code}, {peak} MB; {said[-200:]}")
        tally.numbers[f"{name}_peak_mb"] = peak
    return tally


def run(place: Path, *arguments: str) -> tuple[int, str, int, int]:
    """Exit code, standard error, peak memory in MB and processor seconds of a command."""
    errors = place / "errors.txt"
    with errors.open("w") as file, (place / "output.txt").open("w") as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)]
        command = [sys.executable, "-m", "nvdp", *arguments]
        process = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
    seconds = round(used.ru_utime + used.ru_stime)
    return os.waitstatus_to_exitcode(status), errors.read_text(), round(used.ru_maxrss / 1024), seconds


def _write(path: Path, tasks: int, rows: int, first: int = 0) -> None:
    """Append tasks to a table; each is a curve with noise."""
    chance = np.random.default_rng(first)
    with path.open("a") as file:
        if not file.tell():
            file.write("tree,day,size\n")
        for task in range(first, first + tasks):
            x = chance.uniform(0, 10, rows)
            y = np.sin(x) + task / 10 + chance.normal(0, 0.1, rows)
            file.writelines(f"tree {task},{a:.6g},{b:.6g}\n" for a, b in zip(x, y, strict=True))
