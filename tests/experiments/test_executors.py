"""Executors by name, and what the worker of a cluster does; no cluster is needed."""

import json
import sys
from dataclasses import replace

import pytest

from faults.runs import TINY
from nvdp.errors import InputError
from nvdp.experiments.executors import executor_named, run_job_json
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue import Job, run_queue
from nvdp.experiments.results import read_result

SHORT = replace(TINY, steps=2)


def job(tmp_path, folder="run"):
    result = tmp_path / "results" / "quick-one.json"
    return Job("table1", "quick", PlannedRun("one", SHORT, 2), str(tmp_path / folder), str(result), "cpu")


def test_a_worker_runs_a_job_and_reports_no_error(tmp_path):
    given = job(tmp_path)
    assert Job.from_json(given.to_json()) == given
    assert json.loads(run_job_json(given.to_json())) == {"error": "", "lines": []}
    assert read_result(tmp_path / "results" / "quick-one.json")["steps"] == 2


def test_an_error_of_a_worker_is_returned_as_text(tmp_path):
    (tmp_path / "file").write_text("")
    answer = json.loads(run_job_json(job(tmp_path, "file").to_json()))
    assert "is a file; --out needs a folder" in answer["error"]


@pytest.mark.parametrize(
    ("name", "address", "words"),
    [("rya", None, "unknown executor 'rya'; did you mean 'ray'"), ("local", "10.0.0.1:6379", "only --executor ray")],
)
def test_unknown_executors_are_refused(name, address, words):
    with pytest.raises(InputError, match=words):
        executor_named(name, address)


def test_without_ray_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = Experiment("table1", "a test", lambda budget: [PlannedRun("one", SHORT, 2)])
    with pytest.raises(InputError, match=r"needs Ray; pip install 'nvdp\[cluster\]'"):
        run_queue(plan, "quick", tmp_path, tmp_path / "runs", executor=executor_named("ray"))
