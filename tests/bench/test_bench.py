"""The benchmark's honesty: naive and ours compute the same, the floor counts what it says, rows keep the contract."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import nvdp as command
from command_line import refusal
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import nvdp
from nvdp.bench import SUITES, Settings, adapt, fewshot, quality, report, run_suite, step, suite_result, tables
from nvdp.bench.adapt import adapt_rows, gp_tasks
from nvdp.bench.cases import Case, floor_step, naive_model, naive_step, our_step, training_products
from nvdp.bench.draw import draw
from nvdp.bench.quality import RECIPES, SECONDS, quality_rows
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
COMMITTED = Path(__file__).parents[2] / "results" / "bench"


def committed(name):
    """A committed result."""
    return json.loads((COMMITTED / f"{name}.json").read_text())


def printed(result, width):
    """The lines of its table on a console of this width."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(report.table(result, width))
    return capture.get().splitlines()


def section(page, heading):
    """The part of a page under a heading."""
    return page.split(f"\n{heading}\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def page():
    """The page on speed of the committed files, without its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda *_: [])
        return report.speed_page(COMMITTED, Path("figures"))


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
    recipes, saved, said = (("cnp", "quick"), ("nvdp", "paper")), [], []
    first = quality_rows([0.3], 4, recipes[:1])
    rows = quality_rows([0.6, 0.3], 4, recipes, first, lambda rows: saved.append(len(rows)), said.append)
    assert [(row["model"], row["recipe"]) for row in rows] == list(recipes) * 2
    assert rows[0] is first[0]
    assert saved == [2, 3, 4]
    assert said == [
        f"{row['model']}, {row['recipe']}, {row['budget']:g} s: LL {row['LL']:.3f} ({count} of 4)"
        for count, row in enumerate(rows[1:], 2)
    ]
    for row in rows:
        assert set(row) >= CONTRACT | {"LL", "seconds", "steps"}
        assert row["steps"] > 0
        assert row["seconds"] >= row["budget"]
        assert row["attainable_LL"] <= row["ceiling_LL"] + 0.05
        assert (row["tasks"], row["LL_stderr"] > 0) == (4, True)
    with pytest.raises(
        InputError, match=r"cnp after 0\.3 s was scored on 4 tasks with 4 samples; expected 8 and 4: choose"
    ):
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


def test_a_file_of_rows_can_be_resumed_or_replaced(tmp_path):
    kept, other = tmp_path / "q.json", tmp_path / "step.json"
    kept.write_text(json.dumps(suite_result("quality", [])))
    other.write_text(json.dumps(suite_result("step", [])))
    said = refusal("bench", "--suite", "quality", "--quick", "--json", kept)
    assert "q.json exists; add --resume to keep its rows and go on, or --force to replace it" in said
    said = refusal("bench", "--suite", "quality", "--quick", "--json", other, "--resume")
    assert "step.json is no file of nvdp bench --suite quality" in said


def test_an_interrupted_suite_says_what_is_saved_and_resumes(monkeypatch, tmp_path):
    file = tmp_path / "q.json"
    row, seen = {"model": "cnp", "recipe": "quick", "budget": 1.0, "seconds": 1.0, "LL": 0.5, "steps": 7}, []

    def interrupted(settings):
        seen.append(settings.done)
        settings.save([row])
        settings.say("cnp, quick, 1 s: LL 0.500 (1 of 26)")
        raise KeyboardInterrupt

    monkeypatch.setitem(SUITES, "quality", replace(SUITES["quality"], rows=interrupted))
    outcome = command("bench", "--suite", "quality", "--json", file)
    assert outcome.returncode != 0
    assert "cnp, quick, 1 s: LL 0.500 (1 of 26)\n" in outcome.stderr
    assert f"the rows so far (1) are saved in {file}: repeat the command with --resume" in outcome.stderr
    assert json.loads(file.read_text())["rows"] == [row]
    command("bench", "--suite", "quality", "--json", file, "--resume")
    assert seen == [(), (row,)]
    assert "no row is saved" in command("bench", "--suite", "quality").stderr
    (tmp_path / "f.png").write_text("a figure of mine")
    assert "f.png exists" in refusal(
        "bench", "--suite", "quality", "--json", file, "--resume", "--plot", tmp_path / "f.png"
    )
    elsewhere = json.loads(file.read_text())
    elsewhere["machine"]["processor"] = "another"
    file.write_text(json.dumps(elsewhere))
    assert "was measured on 'another'" in refusal("bench", "--suite", "quality", "--json", file, "--resume")
    for rows in ([1], [{"model": "cnp"}], None):
        file.write_text(json.dumps(elsewhere | {"rows": rows}))
        assert "or a damaged one" in refusal("bench", "--suite", "quality", "--json", file, "--resume")


@pytest.mark.parametrize("name", ["step", "step-xeon", "adapt", "fewshot", "growth", "quality", "tables", "real"])
def test_tables_of_committed_results_fit_a_console_of_80_columns_without_cut_words(name):
    result = committed(name)
    lines = printed(result, 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    first = next(iter(SUITES[result["suite"]].columns.values()))
    names = {word for row in result["rows"] for word in first(row).split()}
    assert names <= set(text.replace("│", " ").split())


def test_quartiles_are_shown_where_there_is_room(step_result):
    low, high = step_result["rows"][0]["ours_quartiles_ms"]
    narrow, wide = ("\n".join(printed(step_result, width)) for width in (80, 200))
    assert f"{step_result['rows'][0]['ours_ms']:.1f} ({low:.1f}–{high:.1f})" in wide
    assert ("(quartiles)" in wide, "(quartiles)" in narrow, "–" in narrow) == (True, False, False)
    assert f"│{step_result['rows'][0]['ours_ms']:.1f}│" in narrow.replace(" ", "")


def test_columns_without_a_number_are_left_out_of_console_and_page(page, step_result):
    without = {**step_result, "rows": [{**row, "before_over_ours": None} for row in step_result["rows"]]}
    assert "before" in "\n".join(printed(step_result, 200))
    assert "before" not in "\n".join(printed(without, 200))
    parts = section(page, "## Training step").split("### Other machines")
    for part, name in zip(parts, ("step", "step-xeon"), strict=True):
        assert ("before / ours |" in part) == ("before_over_ours" in committed(name)["rows"][0])


def test_tables_name_processor_and_commit_and_accept_files_without_them(page, step_result):
    xeon = committed("step-xeon")
    assert f"{xeon['machine']['processor']}, 1 thread" in printed(xeon, 100)[-1]
    assert f"commit {xeon['commit']}" in printed(xeon, 100)[-1]
    for name in report.TEXTS:
        result = committed(name)
        assert f"*{report.measured_on(result)}; `nvdp bench --suite {name}`.*" in page
        assert result["machine"]["processor"] in report.measured_on(result)
    assert report.measured_on(step_result) == "1 thread, torch "


def test_the_page_shows_the_steps_of_every_machine_with_its_floor(page):
    steps = section(page, "## Training step")
    places = []
    for name in ("step", "step-xeon"):
        result = committed(name)
        floor, ratio = (
            statistics.median(row[key] for row in result["rows"]) for key in ("floor_ms", "ours_over_floor")
        )
        assert f"| {result['machine']['processor']} | {floor:.1f} | {ratio:.2f} × |" in steps
        places.append(steps.index(f"*{report.measured_on(result)};"))
        assert steps.count(f"*{report.measured_on(result)};") == 1
        for row in result["rows"]:
            assert f"| {row['shape']} | {row['model']} | {row['ours_ms']:.1f} (" in steps
    assert places == sorted(places)
    assert "Ratios to the floor depend on the processor" in steps


def test_the_page_has_units_and_says_what_ratios_are(page):
    assert "median over rounds of their ratio within a round" in page
    for name in ("step", "adapt", "fewshot", "growth"):
        text = section(page, f"## {SUITES[name].title.split(':')[0]}")
        assert text.strip().startswith("Milliseconds")
        assert " ms |" in text


def test_bfloat16_is_not_called_fastest(page):
    assert "fastest" not in page
    adapted = section(page, "## Adapt and predict")
    assert "| bfloat16, all cores ms |" in adapted
    many = committed("adapt")["rows"][-1]
    ratio = many["fastest_ms"] / many["mean_weights_ms"]
    assert f"*bfloat16, all cores* takes {ratio:.1f} × the time of *mean_weights*, float32 on one thread" in adapted


def test_the_page_names_trainings_that_were_not_run(page):
    rows = [{"model": m, "recipe": r, "budget": s} for s in SECONDS for m, r in RECIPES]
    assert quality.not_run(rows) == ""
    gaps = [
        row for row in rows if row["budget"] < 300 or (row["budget"] == 300 and row["model"] not in ("anp", "nvdp"))
    ]
    assert quality.not_run(gaps) == "Not run: 300 s of anp, nvdp, nvdp (paper); 1,200 s of all models."
    said = quality.not_run(committed("quality")["rows"])
    assert not said or said in section(page, "## Log-likelihood against seconds of training")


def test_legends_use_the_words_of_the_tables():
    from nvdp.bench import draw as drawing

    for name, labels in {"step": drawing.STEP_BARS, "growth": drawing.LINES, "fewshot": drawing.HALVES}.items():
        words = " ".join(SUITES[name].columns)
        assert all(part in words for label, *_ in labels.values() for part in label.split(", "))
    adapted = {label for label, _ in drawing.METHODS.values()}
    assert {f"{label} LL" for label in adapted} <= set(SUITES["adapt"].columns)


def test_unknown_suite_is_refused_by_name():
    with pytest.raises(InputError, match="did you mean 'growth'"):
        run_suite("grwth", Settings())
