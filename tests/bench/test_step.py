"""Suites step and growth: the naive version and ours compute the same, the floor counts what it says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import refusal
from torch.utils.flop_counter import FlopCounterMode

import nvdp
from nvdp.bench import step
from nvdp.bench.cases import Case, floor_step, naive_model, naive_step, our_step, training_products
from nvdp.bench.draw import draw
from nvdp.bench.step import CASES, CELEBA, PAPERS, READERS
from nvdp.bench.terminal import table
from nvdp.bench.timing import check_source
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn import dropout as dropout_linear
from nvdp.randomness import standard_normal
from nvdp.training.loop import TrainingStep

REGRESSION = list(PAPERS)
SOURCE = Path(nvdp.__file__).parents[1]


@pytest.mark.parametrize("name", REGRESSION)
def test_naive_version_computes_the_same_bound_and_gradient_from_the_same_parameters(name, monkeypatch):
    monkeypatch.setattr(dropout_linear, "tabled_normal", standard_normal)  # the naive version draws its noise
    case = Case(name, tasks=3, points=9, context=4, x_dim=2, width=16, layers=3)
    ours, naive, tasks = build_model(case.config), naive_model(case.config), case.batch()
    naive.copy_from(ours)
    step = TrainingStep(ours, case.recipe.objective, case.recipe.kl)
    noise = [torch.Generator().manual_seed(7) for _ in range(2)]
    bound = step(tasks.x, tasks.y, tasks.is_context, tasks.mask, noise[0])["bound"]
    naive_bound = naive.bound(tasks.x, tasks.y, case.context, case.recipe.kl, noise[1])
    torch.testing.assert_close(naive_bound, bound, atol=1e-4, rtol=1e-4)

    bound.backward()
    naive_bound.backward()
    # The parameters are cut up differently, so compare what does not depend on that.
    norms = [sum(p.grad.square().sum() for p in m.parameters() if p.grad is not None) for m in (ours, naive)]
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-3, atol=1e-8)
    assert len({sum(p.numel() for p in m.parameters()) for m in (ours, naive)}) == 1


def test_naive_version_refuses_what_it_was_not_written_for():
    with pytest.raises(InputError, match="residual"):
        naive_model(ModelConfig("nvdp").updated({"encoder.residual": True, "rates.residual": True}))


def test_floor_of_a_small_nvdp_is_what_a_hand_counts():
    case = Case("nvdp", tasks=2, points=3, context=2, width=4, layers=1)
    encoder = 2 * (2 * 6 * 2 * 128) + 5 * 3 * (2 * 6 * 128 * 128)  # 6 rows; the first layer's inputs are data
    decoder = 2 * 2 * (2 * 2 * 3 * 1 * 4) + 2 * 3 * (2 * 2 * 3 * 4 * 2)  # mean and variance, 1 → 4 → 2
    rates = 4 * 3 * (2 * 2 * 4 * 128 * 128)  # two networks of four layers, 2 × 2 sets
    heads = 3 * (2 * 4 * 128 * (1 + 4 + 1)) + 3 * (2 * 4 * 128 * (4 + 2 + 1))
    assert sum(product.flops for product in training_products(case)) == encoder + decoder + rates + heads


@pytest.mark.parametrize(
    "case",
    [*(Case(name) for name in REGRESSION), replace(CELEBA, model="np+cnp+vp")],
    ids=lambda c: f"{c.model}-{c.shape}",
)
def test_floor_counts_nearly_all_the_products_of_a_real_step(case):
    step = our_step(case)

    def in_place(_, left, right, **__):
        return 2 * left[0] * left[1] * left[2] * right[2]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place}) as counter:
        step()
    floor = sum(product.flops for product in training_products(case))
    assert floor <= counter.get_total_flops() <= 1.02 * floor


def test_steps_train_and_the_floor_runs(tiny):
    for make in (our_step, naive_step, floor_step):
        make(tiny)()


@pytest.mark.parametrize("name", READERS)
def test_the_recorded_floor_of_a_reading_model_has_the_products_of_its_step(name, tiny):
    case = replace(tiny, model=name)
    with FlopCounterMode(display=False) as of_step:
        our_step(case)()
    with FlopCounterMode(display=False) as of_floor:
        step = floor_step(case)
        before = of_floor.get_total_flops()
        step()
    assert of_floor.get_total_flops() - before == of_step.get_total_flops() > 0


def test_an_earlier_version_must_be_the_one_that_is_imported(tmp_path):
    check_source(SOURCE)
    package = tmp_path / "nvdp"
    package.mkdir()
    for folder in (tmp_path, SOURCE.parent):  # a folder without a package, and the one above
        with pytest.raises(InputError, match="is not the src folder of a version of nvdp: a process imports"):
            check_source(folder)
    (package / "__init__.py").write_text("x = (")
    with pytest.raises(InputError, match="is not the src folder of a version of nvdp: SyntaxError"):
        check_source(tmp_path)
    assert "--before is for --suite step" in refusal("bench", "--suite", "growth", "--before", SOURCE)


def test_step_rows_keep_the_contract(step_result, contract):
    for row in step_result["rows"]:
        assert set(row) >= contract
        for name in ("ours", "autograd", "floor", "autograd_default_malloc", "before"):
            low, high = row[f"{name}_quartiles_ms"]
            assert 0 < low <= row[f"{name}_ms"] <= high
        assert row["ours_over_floor"] > 0
        assert row["autograd_over_ours"] > 0
    assert {(case.shape, case.model) for case in CASES} == {
        *((s, m) for s in ("gp", "mnist", "celeba") for m in REGRESSION),
        *(("gp, as shipped", m) for m in READERS),
    }
    json.dumps(step_result)


def test_growth_rows_measure_time_and_memory_and_skip_what_would_not_fit(monkeypatch, tmp_path, tiny, contract):
    rows = step.growth_rows(1, 10.0, {"width": (256,)}, tiny)
    assert [row["axis"] for row in rows] == ["base", "width"]
    for row in rows:
        assert set(row) >= contract
        assert row["ours_ms"] > 0
        assert row["autograd_ms"] > 0
        assert row["predict_ms"] > 0
    assert 0 < rows[1]["ours_peak_bytes"] < rows[1]["autograd_peak_bytes"]
    assert rows[1]["predict_peak_bytes"] < rows[1]["ours_peak_bytes"]

    monkeypatch.setattr(step, "NAIVE_LIMIT", 0)
    (skipped,) = step.growth_rows(1, 10.0, {}, tiny)
    assert skipped["autograd_skipped"]
    assert skipped["autograd_ms"] is None
    assert skipped["autograd_estimated_bytes"] > 0
    everything = [*rows, *({**skipped, "axis": axis} for axis in ("tasks", "points", "layers"))]
    result = {"suite": "growth", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": everything}
    assert table(result).row_count == 5
    assert draw(result, tmp_path / "growth.png")[0].stat().st_size > 1000


def test_the_estimate_of_the_naive_versions_memory_is_of_the_right_size():
    case = Case(tasks=8, width=256)
    with step.Worker(1, keep_memory=True) as worker:
        measured = worker.peak_memory("autograd", case)
    assert 0.6 < step.naive_bytes(case) / measured < 1.6
