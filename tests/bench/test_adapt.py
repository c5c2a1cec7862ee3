"""Suites adapt and fewshot: every method is timed and scored on the same new tasks."""

import pytest
import torch

from nvdp.bench import adapt, fewshot
from nvdp.bench.adapt import adapt_rows, gp_tasks
from nvdp.bench.draw import draw
from nvdp.bench.terminal import table
from nvdp.models.registry import build_model


def test_adapt_rows_have_time_and_quality_of_every_method(tmp_path, contract):
    rows = adapt_rows(None, 2, 10.0, contexts=(5,), many=4)
    assert [row["tasks"] for row in rows] == [1, 4]
    for row in rows:
        assert set(row) >= contract
        assert row["ours_ms"] > 0
        assert row["finetune_ms"] > 0
        assert -2 < row["ours_ll"] < row["oracle_ll"]
        assert row["conv_ms"] > 0
        for name in ("sklearn", "gpytorch"):
            assert (row[f"{name}_ms"] is None) == (adapt.MODULES[name] in adapt.missing_peers())
    assert draw({"suite": "adapt", "rows": rows}, tmp_path / "adapt.png")[0].exists()
    one, many = rows
    assert one["ours_first_ms"] > 0
    assert many["sklearn_over_fastest"] > 0
    assert many["fastest_ll"] == pytest.approx(many["mean_weights_ll"], abs=0.1)


@pytest.mark.parametrize("name", ["sklearn", "gpytorch"])
def test_a_gaussian_process_fitted_to_enough_points_predicts_well(name):
    pytest.importorskip(name)
    method = {"sklearn": adapt.sklearn_gp, "gpytorch": adapt.gpytorch_gp}[name]()
    tasks = gp_tasks(1, 60, 40)
    mean, std = method(tasks.x[0, :60], tasks.y[0, :60], tasks.x[0, 60:])
    assert mean.shape == std.shape == (40, 1)
    assert (mean - tasks.y[0, 60:]).square().mean() < 0.5 * tasks.y[0, 60:].square().mean()


def test_fine_tuning_leaves_the_model_as_it_was(small_config):
    model, tasks = build_model(small_config()), gp_tasks(1, 8, 5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tune, x, y = adapt.fine_tuned(model), tasks.x[0], tasks.y[0]
    first, again = (tune(x[:8], y[:8], x[8:])[0] for _ in range(2))
    torch.testing.assert_close(first, again)
    assert not torch.equal(first, adapt.adapted(model)(x[:8], y[:8], x[8:])[0])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_every_few_shot_classifier_is_timed_in_turns_beside_prototypes(tmp_path):
    shape = fewshot.EpisodeShape("omniglot-fewshot", 3, 1)
    rows = fewshot.fewshot_rows(2, 20.0, [shape])
    assert [row["model"] for row in rows] == fewshot.NAMES
    assert len(rows) == 8
    costs = {row["model"]: row for row in rows}
    assert costs["protonet"]["adapt_over_protonet"] == costs["protonet"]["predict_over_protonet"] == 1
    # A second-order inner loop goes through the extractor forth and back; class means go through it once.
    assert costs["maml"]["adapt_over_protonet"] > 1
    result = {"suite": "fewshot", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": rows}
    assert table(result).row_count == 8
    assert draw(result, tmp_path / "fewshot.png")[0].stat().st_size > 1000
