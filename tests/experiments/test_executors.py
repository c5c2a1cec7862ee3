"""Where runs take place is a choice by name; what a cluster's worker does needs no cluster to be tested."""

import json
import sys
from dataclasses import asdict, replace

import pytest

from faults.runs import TINY
from nvdp.errors import InputError
from nvdp.experiments.executors import executor_named
from nvdp.experiments.executors_ray import carry_out_text
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue import Order, work_off
from nvdp.experiments.results import read_result

SHORT = replace(TINY, steps=2)


def order(tmp_path, folder="run"):
    result = tmp_path / "results" / "quick-one.json"
    return Order("table1", "one", "quick", SHORT, 2, str(tmp_path / folder), str(result), "cpu")


def test_a_worker_carries_out_an_order_and_says_so(tmp_path):
    given = order(tmp_path)
    assert json.loads(carry_out_text(json.dumps(asdict(given)))) == {"trouble": "", "lines": []}
    assert read_result(tmp_path / "results" / "quick-one.json")["steps"] == 2


def test_a_worker_s_trouble_comes_back_as_text(tmp_path):
    (tmp_path / "file").write_text("")
    answer = json.loads(carry_out_text(json.dumps(asdict(order(tmp_path, "file")))))
    assert "is a file; --out needs a folder" in answer["trouble"]


@pytest.mark.parametrize(
    ("name", "address", "words"),
    [("rya", None, "unknown executor 'rya'; did you mean 'ray'"), ("local", "10.0.0.1:6379", "only --executor ray")],
)
def test_an_executor_that_is_not_there_is_told(name, address, words):
    with pytest.raises(InputError, match=words):
        executor_named(name, address)


def test_without_ray_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = Experiment("table1", "a test", lambda budget: [PlannedRun("one", SHORT, 2)])
    with pytest.raises(InputError, match=r"needs Ray; pip install 'nvdp\[cluster\]'"):
        work_off(plan, "quick", tmp_path, tmp_path / "runs", executor=executor_named("ray"))
