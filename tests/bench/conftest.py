"""What the tests of several suites share: a measured result, committed ones, and the page on speed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import nvdp
from nvdp.bench import report
from nvdp.bench.cases import Case
from nvdp.bench.step import step_rows
from nvdp.bench.terminal import table

COMMITTED = Path(__file__).parents[2] / "results" / "bench"


@pytest.fixture(scope="session")
def contract():
    """Entries of every row."""
    return {"model", "shape", "ours_ms", "autograd_ms", "floor_ms"}


@pytest.fixture(scope="session")
def tiny():
    """A case that is quick to measure."""
    return Case(tasks=2, points=5, context=3, width=4, layers=2)


@pytest.fixture(scope="session")
def step_result(tiny):
    """A measured result of the suite step."""
    before = Path(nvdp.__file__).parents[1]  # this version itself
    rows = step_rows(2, [tiny, replace(tiny, model="np+cnp", shape="mnist", x_dim=2)], warmup=1, before=before)
    return {"suite": "step", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": rows}


@pytest.fixture(scope="session")
def committed():
    """A function name -> committed result."""
    return lambda name: json.loads((COMMITTED / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def printed():
    """A function (result, width) -> lines of its table on a console of this width."""

    def lines(result, width):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(table(result, width))
        return capture.get().splitlines()

    return lines


@pytest.fixture(scope="session")
def page():
    """The page on speed of the committed files, without its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda *_: [])
        return report.speed_page(COMMITTED, Path("figures"))


@pytest.fixture(scope="session")
def section(page):
    """A function heading -> part of the page under it."""
    return lambda heading: page.split(f"\n{heading}\n")[1].split("\n## ")[0]
