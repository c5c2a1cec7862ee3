"""Mutation check by mutmut: change the files of ``[tool.mutmut]`` in one place at a time; does a test notice?

``python -m faults.mutants`` works on a copy and leaves results/trust/mutants.json, from which the page is made.
"""

import ast
import contextlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from faults.tally import Tally

ROOT = Path(__file__).parents[1]
LEAST = 0.8  # of the mutants of each file must be killed
KEPT = {"staticmethod", "classmethod"}  # decorators that mutmut sees through


def pytest_itemcollected(item: Any) -> None:
    """This file is also a plugin: mutmut 3.8 asks a test for its name as pytest kept it before 9.2."""
    item._nodeid = item.nodeid


def undecorated(source: str) -> str:
    """The same code with ``@d`` above a function written ``f = d(f)`` below it: mutmut passes decorated ones over.

    >>> print(undecorated("@cache\\ndef f():\\n    return 1\\n"), end="")
    def f():
        return 1
    f = cache(f)
    """
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda node: node.lineno, reverse=True):
        decorators = [ast.unparse(each) for each in function.decorator_list]
        if not decorators or KEPT & {*decorators} or f"{function.name}.setter" in decorators:
            continue
        call = function.name
        for decorator in reversed(decorators):
            call = f"{decorator}({call})"
        lines.insert(function.end_lineno or 0, f"{' ' * function.col_offset}{function.name} = {call}")
        del lines[function.decorator_list[0].lineno - 1 : function.lineno - 1]
    return "\n".join([*lines, ""])


def check(place: Path) -> list[Tally]:
    """Run mutmut on a copy of the tree in `place`; a tally for each file, with the changes that no test noticed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    shutil.copy(ROOT / "pyproject.toml", place)
    for folder in ("src", "tests", "faults"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in settings["only_mutate"]:
        (place / name).write_text(undecorated((place / name).read_text()))
    subprocess.run([Path(sys.executable).with_name("mutmut"), "run", "--max-children", "1"], cwd=place, check=True)
    with contextlib.chdir(place):
        return [_tally(Path(name)) for name in settings["only_mutate"]]


def _tally(path: Path) -> Tally:
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    codes = json.loads(Path("mutants", f"{path}.meta").read_text())["exit_code_by_key"]
    status = {mutant: status_by_exit_code[code] for mutant, code in codes.items()}
    tally = Tally(str(path), Counter(killed=0, survived=0, timeout=0))
    tally.outcomes.update(status.values())
    differences = [get_diff_for_mutant(mutant, path=path) for mutant, what in status.items() if what != "killed"]
    tally.numbers["alive"] = [[line for line in each.splitlines()[2:] if line[0] in "+-"] for each in differences]
    return tally


def main() -> None:
    """Check, write the tallies, and fail if a file has too many survivors."""
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        tallies = check(Path(folder))
    record = {
        "section": "mutants",
        "seconds": round(time.monotonic() - began),
        "versions": {each: version(each) for each in ("mutmut", "pytest", "torch")},
        "tried": [tally.record() for tally in tallies],
    }
    from nvdp.system import write_text  # not above: as a plugin this file may not import what is to be mutated

    write_text(ROOT / "results" / "trust" / "mutants.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for tally in tallies:
        print(f"{tally.what}: {tally.outcomes['killed']} of {tally.tried} mutants killed")
    sys.exit(any(tally.outcomes["killed"] < LEAST * tally.tried for tally in tallies))


if __name__ == "__main__":
    main()
