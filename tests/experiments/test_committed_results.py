"""The committed results belong to the planned runs, and the committed pages to the committed results."""

import json
from pathlib import Path

import pytest

from nvdp.experiments.report import marked, readme_block, results_page
from nvdp.experiments.reproduce import EXPERIMENTS
from nvdp.experiments.results import read_results
from nvdp.training.config import RunConfig

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_committed_result_is_that_of_a_planned_run(name):
    planned = {run.name: run.config for run in EXPERIMENTS[name].plan("cpu")}
    for run, result in read_results(RESULTS, name, "cpu").items():
        assert run in planned, f"{name} has no run '{run}'"
        assert RunConfig.from_dict(result["config"], run) == planned[run], (
            f"{name}: '{run}' is of another configuration"
        )


def test_committed_results_are_json_without_nan():
    for path in RESULTS.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=lambda name, path=path: pytest.fail(f"{path} holds {name}"))


def test_the_pages_are_those_of_the_committed_files():
    assert (ROOT / "docs" / "results.md").read_text() == marked(results_page(RESULTS))
    assert readme_block(RESULTS) in (ROOT / "README.md").read_text()
