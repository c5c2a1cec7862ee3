"""The suite on real data: its sets, its rivals and its summary."""

import numpy as np
import pytest

from nvdp.bench.real import METRICS, cases, real_rows, rivals, summary
from nvdp.bench.real_sets import REAL_SETS


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
