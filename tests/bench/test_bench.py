"""The benchmark's honesty: naive and ours compute the same, the floor counts what it says, rows keep the contract."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import refusal
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import nvdp
from nvdp.bench import SUITES, Settings, adapt, fewshot, report, run_suite, step, tables
from nvdp.bench.adapt import adapt_rows, gp_tasks
from nvdp.bench.cases import Case, floor_step, naive_model, naive_step, our_step, training_products
from nvdp.bench.draw import draw
from nvdp.bench.quality import quality_rows
from nvdp.bench.step import CASES, CELEBA, PAPERS, READERS, step_rows
from nvdp.bench.timing import Timings, interleaved
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn import dropout as dropout_linear
from nvdp.randomness import standard_normal
from nvdp.training.loop import TrainingStep

TINY = Case(tasks=2, points=5, context=3, width=4, layers=2)
CONTRACT = {"model", "shape", "ours_ms", "autograd_ms", "floor_ms"}

REGRESSION = list(PAPERS)


@pytest.fixture(scope="module")
def step_result():
    before = Path(nvdp.__file__).parents[1]  # this version itself
    rows = step_rows(2, [TINY, replace(TINY, model="np+cnp", shape="mnist", x_dim=2)], warmup=1, before=before)
    return {"suite": "step", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": rows}


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


def test_steps_train_and_the_floor_runs():
    for make in (our_step, naive_step, floor_step):
        make(TINY)()


@pytest.mark.parametrize("name", READERS)
def test_the_recorded_floor_of_a_reading_model_has_the_products_of_its_step(name):
    case = replace(TINY, model=name)
    with FlopCounterMode(display=False) as of_step:
        our_step(case)()
    with FlopCounterMode(display=False) as of_floor:
        step = floor_step(case)
        before = of_floor.get_total_flops()
        step()
    assert of_floor.get_total_flops() - before == of_step.get_total_flops() > 0


def test_variants_take_turns_and_odd_rounds_go_backwards():
    order = []
    interleaved({name: lambda index, name=name: order.append((name, index)) for name in "ab"}, rounds=2, warmup=1)
    assert order == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_variant_that_ran_elsewhere_reports_its_own_time_and_scaling_is_applied():
    timings = interleaved({"a": lambda _: (4.0, 2.0)}, rounds=3)
    row = timings.columns({"a": 10.0})
    assert (row["a_ms"], row["a_cpu_ms"], row["a_quartiles_ms"], row["rounds"]) == (40.0, 20.0, [40.0, 40.0], 3)
    assert Timings({"a": [(4.0, 3.0)], "b": [(2.0, 1.0)]}).ratio("a", "b", processor=True) == 3.0


def test_step_rows_keep_the_contract(step_result):
    for row in step_result["rows"]:
        assert set(row) >= CONTRACT
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


def test_growth_rows_measure_time_and_memory_and_skip_what_would_not_fit(monkeypatch, tmp_path):
    rows = step.growth_rows(1, 10.0, {"width": (256,)}, TINY)
    assert [row["axis"] for row in rows] == ["base", "width"]
    for row in rows:
        assert set(row) >= CONTRACT
        assert row["ours_ms"] > 0
        assert row["autograd_ms"] > 0
        assert row["predict_ms"] > 0
    assert 0 < rows[1]["ours_peak_bytes"] < rows[1]["autograd_peak_bytes"]
    assert rows[1]["predict_peak_bytes"] < rows[1]["ours_peak_bytes"]

    monkeypatch.setattr(step, "NAIVE_LIMIT", 0)
    (skipped,) = step.growth_rows(1, 10.0, {}, TINY)
    assert skipped["autograd_skipped"]
    assert skipped["autograd_ms"] is None
    assert skipped["autograd_estimated_bytes"] > 0
    everything = [*rows, *({**skipped, "axis": axis} for axis in ("tasks", "points", "layers"))]
    result = {"suite": "growth", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": everything}
    assert report.table(result).row_count == 5
    assert draw(result, tmp_path / "growth.png")[0].stat().st_size > 1000


def test_the_estimate_of_the_naive_versions_memory_is_of_the_right_size():
    case = Case(tasks=8, width=256)
    with step.Worker(1, keep_memory=True) as worker:
        measured = worker.peak_memory("autograd", case)
    assert 0.6 < step.naive_bytes(case) / measured < 1.6


def test_adapt_rows_have_time_and_quality_of_every_method(tmp_path):
    rows = adapt_rows(None, 2, 10.0, contexts=(5,), many=4)
    assert [row["tasks"] for row in rows] == [1, 4]
    for row in rows:
        assert set(row) >= CONTRACT
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
    assert report.table(result).row_count == 8
    assert draw(result, tmp_path / "fewshot.png")[0].stat().st_size > 1000


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


def test_quality_rows_follow_both_recipes_and_keep_what_is_done(tmp_path):
    recipes, saved = (("cnp", "quick"), ("nvdp", "paper")), []
    first = quality_rows([0.3], 4, recipes[:1])
    rows = quality_rows([0.6, 0.3], 4, recipes, done=first, save=lambda rows: saved.append(len(rows)))
    assert [(row["model"], row["recipe"]) for row in rows] == list(recipes) * 2
    assert rows[0] is first[0]
    assert saved == [2, 3, 4]
    for row in rows:
        assert set(row) >= CONTRACT | {"LL", "seconds", "steps"}
        assert row["steps"] > 0
        assert row["seconds"] >= row["budget"]
        assert row["attainable_LL"] <= row["ceiling_LL"] + 0.05
        assert (row["tasks"], row["LL_stderr"] > 0) == (4, True)
    with pytest.raises(InputError, match=r"cnp after 0\.3 s was scored on 4 tasks; expected 8: choose"):
        quality_rows([0.3], 8, recipes, done=first)
    assert draw({"suite": "quality", "rows": rows}, tmp_path / "quality.png")[0].exists()


def test_table_rows_have_time_and_scores_of_a_fit_and_its_rivals(tmp_path):
    rows = tables.table_rows(1.0, 2, [tables.SimulatedTable("lines", 20)], folds=1)
    assert [(row["kind"], row["context"]) for row in rows] == [(k, s) for k in ("random", "first") for s in (2, 4, 8)]
    for row in rows:
        assert set(row) >= CONTRACT | {"fit_seconds", "steps"}
        assert row["ours_ms"] > 0
        assert row["gp_ms"] > 0
        for name in ("ours", *tables.RIVALS):
            assert math.isfinite(row[f"{name}_LL"])
            assert row[f"{name}_RMSE"] > 0
            assert 0 <= row[f"{name}_coverage90"] <= 1
    result = {"suite": "tables", "machine": {"threads": 1, "torch": "", "load_average": None}, "rows": rows}
    assert report.table(result).row_count == 6
    assert draw(result, tmp_path / "tables.png")[0].exists()


def test_command_prints_a_table_writes_json_and_draws(monkeypatch, tmp_path, step_result):
    from nvdp.cli import app, bench, runs  # noqa: F401  (an app of one command has no command names)

    monkeypatch.setitem(SUITES, "step", replace(SUITES["step"], rows=lambda _: step_result["rows"]))
    file, figure = tmp_path / "new" / "step.json", tmp_path / "step.png"
    arguments = ["bench", "--suite", "step", "--quick", "--json", str(file), "--plot", str(figure)]
    outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    assert "ours / floor" in outcome.output
    result = json.loads(file.read_text())
    assert result["suite"] == "step"
    assert set(result["machine"]) >= {"cores", "torch", "threads"}
    assert len(result["rows"]) == 2
    assert figure.exists()


def test_an_existing_file_of_measurements_is_kept(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    assert "kept.json exists; add --force" in refusal("bench", "--suite", "step", "--quick", "--json", kept)
    assert kept.read_text() == "mine"


def test_unknown_suite_is_refused_by_name():
    with pytest.raises(InputError, match="did you mean 'growth'"):
        run_suite("grwth", Settings())
