"""The examples about growth: the public tables are what they are said to be, and so is the simulator."""

import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import growth_curves
    import sim_to_real

    yield growth_curves, sim_to_real
    for name in ("growth_curves", "sim_to_real"):
        sys.modules.pop(name, None)


def test_the_public_tables_hold_more_than_fifty_short_series(examples):
    growth, _ = examples
    for name, tasks, rows in (("pigs", 72, 12), ("spruces", 79, 13)):
        columns = growth.SETS[name].columns
        sizes = growth.read_set(name).groupby(columns.task).size()
        assert (len(sizes), sizes.max()) == (tasks, rows)


def test_the_simulator_and_the_trees_start_from_nothing_and_grow(examples):
    _, sim = examples
    simulated, trees = sim.simulated(50), sim.real()
    assert len(trees) == 79
    assert all(len(t) == 5 and t[0, 0] == 0 and size[0, 0] == 0 for t, size in trees)
    assert np.mean([y[-1] - y[0] for _, y in simulated]) > 0.5
    assert np.mean([size[-1, 0] for _, size in trees]) > 0.5
