"""Timing in turns: the order of rounds, the numbers of a row, and waiting for a GPU."""

import time

import pytest
import torch

from nvdp.bench.timing import Timings, interleaved, measured


def test_variants_take_turns_and_odd_rounds_go_backwards():
    order = []
    interleaved({name: lambda index, name=name: order.append((name, index)) for name in "ab"}, rounds=2, warmup=1)
    assert order == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_variant_that_ran_elsewhere_reports_its_own_time_and_scaling_is_applied():
    timings = interleaved({"a": lambda _: (4.0, 2.0)}, rounds=3)
    row = timings.columns({"a": 10.0})
    assert (row["a_ms"], row["a_cpu_ms"], row["a_quartiles_ms"], row["rounds"]) == (40.0, 20.0, [40.0, 40.0], 3)
    assert Timings({"a": [(4.0, 3.0)], "b": [(2.0, 1.0)]}).ratio("a", "b", processor=True) == 3.0


@pytest.mark.parametrize("gpu", [True, False])
def test_the_clock_is_read_when_a_gpu_in_use_has_finished(gpu, monkeypatch):
    order, clock = [], time.perf_counter

    def read():
        order.append("clock")
        return clock()

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronise"))
    monkeypatch.setattr(time, "perf_counter", read)
    measured(lambda: order.append("work"))
    wait = ["synchronise"] if gpu else []
    assert order == [*wait, "clock", "work", *wait, "clock"]
