"""Suites tables and real: scores of ours and of its rivals on public data."""

import math

import numpy as np
import pytest

from nvdp.bench import tables
from nvdp.bench.draw import draw
from nvdp.bench.real import METRICS, cases, real_rows, rivals, summary
from nvdp.bench.real_sets import REAL_SETS
from nvdp.bench.terminal import table


def test_there_are_at_least_25_sets_of_one_to_three_inputs_and_none_is_in_both_parts():
    assert len({each.name for each in REAL_SETS}) == len(REAL_SETS) >= 25
    assert {len(each.x) for each in REAL_SETS} == {1, 2, 3}
    assert {each.part for each in REAL_SETS} == {"develop", "final"}
    assert len({(each.source, each.x, each.y) for each in REAL_SETS}) == len(REAL_SETS)


@pytest.mark.parametrize("name", ["motorcycle", "diabetes", "nile"])
def test_a_set_of_every_package_is_read(name):
    x, y = next(each for each in REAL_SETS if each.name == name).read()
    assert len(x) == len(y) >= 60
    assert np.isfinite(x).all()
    assert y.std() > 0


@pytest.mark.parametrize("name", ["sklearn", "gpytorch", "forest", "spline"])
def test_a_rival_beats_the_spread_of_the_outputs(name):
    scores = [case.scores(rivals()[name]) for case in cases(REAL_SETS[0], 40, repeats=1)]
    assert scores[0]["RMSE"] < 0.8
    assert 0.5 < scores[0]["coverage90"] <= 1


def test_the_quick_suite_scores_ours_and_sums_up():
    from nvdp.bench.real import ours
    from nvdp.loading import load

    rows = real_rows(quick=True, methods={"ours": ours(load("general"))})
    assert {row["set"] for row in rows} == {"motorcycle", "ethanol"}
    (five, twenty) = summary(rows)
    assert (five["context"], twenty["context"]) == (5, 20)
    assert set(METRICS) <= set(five)


def test_table_rows_have_time_and_scores_of_a_fit_and_its_rivals(tmp_path, contract):
    rows = tables.table_rows(1.0, 2, [tables.SimulatedTable("lines", 20)], folds=1)
    assert [(row["kind"], row["context"]) for row in rows] == [(k, s) for k in ("random", "first") for s in (2, 4, 8)]
    for row in rows:
        assert set(row) >= contract | {"fit_seconds", "steps"}
        assert row["ours_ms"] > 0
        assert row["gp_ms"] > 0
        for name in ("ours", *tables.RIVALS):
            assert math.isfinite(row[f"{name}_LL"])
            assert row[f"{name}_RMSE"] > 0
            assert 0 <= row[f"{name}_coverage90"] <= 1
    result = {"suite": "tables", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": rows}
    assert table(result).row_count == 6
    assert draw(result, tmp_path / "tables.png")[0].exists()
