"""Timing in turns: the order of rounds, and the numbers of a row."""

from nvdp.bench.timing import Timings, interleaved


def test_variants_take_turns_and_odd_rounds_go_backwards():
    order = []
    interleaved({name: lambda index, name=name: order.append((name, index)) for name in "ab"}, rounds=2, warmup=1)
    assert order == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_variant_that_ran_elsewhere_reports_its_own_time_and_scaling_is_applied():
    timings = interleaved({"a": lambda _: (4.0, 2.0)}, rounds=3)
    row = timings.columns({"a": 10.0})
    assert (row["a_ms"], row["a_cpu_ms"], row["a_quartiles_ms"], row["rounds"]) == (40.0, 20.0, [40.0, 40.0], 3)
    assert Timings({"a": [(4.0, 3.0)], "b": [(2.0, 1.0)]}).ratio("a", "b", processor=True) == 3.0
