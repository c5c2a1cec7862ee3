"""The summary chooses the best run of each kind by the paper's formula, and sets the paper's number beside it."""

import json

import pytest

from nvdp.errors import InputError
from nvdp.experiments.report_tables import Results
from nvdp.experiments.results import result_path
from nvdp.experiments.summary import fewshot_summary, regression_summary, summary
from nvdp.experiments.table3 import SETTINGS, run_name


def images(folder, name, model, score, better_mean=0.0, fourier=6):
    scores = {m: {"mean_parameters": score + better_mean, "expected_log": score} for m in ("LL", "RLL", "PLL")}
    settings = {"name": model, "inputs": {"fourier": fourier}, "likelihood": {"integrate_last": True}}
    write(folder, "table2", name, {"model": settings}, {"scores": scores, "task": "celeba", "steps": 9})


def write(folder, what, name, config, evaluation):
    row = {"name": name, "config": config, "steps": 1, "seconds": 1.0, "evaluation": evaluation}
    (folder / what).mkdir(exist_ok=True)
    result_path(folder, what, "cpu", name).write_text(json.dumps(row))


def test_the_best_run_of_each_kind_is_shown_by_the_papers_formula(tmp_path):
    images(tmp_path, "nvdp-celeba", "nvdp", 0.3, fourier=None)
    images(tmp_path, "nvdp-mixture-celeba", "nvdp", 0.4, better_mean=0.5)
    images(tmp_path, "nvdp-conv-celeba", "nvdp-conv", 0.5)
    images(tmp_path, "nvdp-conv-mixture-celeba", "nvdp-conv", 0.6)
    images(tmp_path, "cnp-celeba", "cnp", 0.45)
    (line,) = regression_summary(Results(tmp_path)).splitlines()[2:]
    assert line == (
        "| CelebA: LL / PLL | 0.83 / 0.82 | 0.30 / 0.30 `nvdp` (9) | 0.40 / 0.40 `nvdp-mixture` (9) "
        "| 0.45 / 0.45 `cnp` (9) | 0.60 / 0.60† `nvdp-conv-mixture` (9) | 0.45 / 0.45 `cnp` (9) |  |"
    )


def test_equal_seconds_are_the_longest_that_all_models_had(tmp_path):
    images(tmp_path, "nvdp-celeba", "nvdp", 0.3)
    rows = [
        {"model": model, "shape": "gp", "recipe": recipe, "budget": budget, "seconds": budget, "steps": 9, "LL": 0.0}
        | {"LL_expected_log": score, "ceiling_LL": 1.2, "attainable_LL": 1.14, "ours_ms": 1.0}
        | {"autograd_ms": None, "floor_ms": None}
        for model, recipe, budget, score in (
            ("nvdp", "paper", 30.0, -0.8), ("nvdp", "quick", 30.0, 0.7), ("cnp", "quick", 30.0, 0.8),
            ("nvdp-conv", "quick", 30.0, 0.9), ("convgnp", "quick", 30.0, 1.0), ("cnp", "quick", 99.0, 1.1),
        )
    ]  # fmt: skip
    machine = {"processor": "Fast", "threads": 1, "load_average": None}
    (tmp_path / "bench").mkdir()
    written = {"suite": "quality", "commit": "0123456", "machine": machine, "rows": rows}
    (tmp_path / "bench" / "quality.json").write_text(json.dumps(written))
    assert regression_summary(Results(tmp_path)).splitlines()[3] == (
        "| GP functions, 30 s of one core each: LL |  | -0.80 `nvdp` | 0.70† `nvdp` | 0.80 `cnp` | 0.90† `nvdp-conv` "
        "| 1.00† `convgnp` | 1.14 |"
    )


def test_pretrained_models_count_and_their_functions_are_told(tmp_path):
    scores = {m: {"expected_log": 0.85} for m in ("LL", "RLL", "PLL")}
    evaluation = {"model": "nvdp", "task": "gp", "variance": "learned", "tasks": 2_048, "steps": 7, "scores": scores}
    evaluation |= {"attainable": dict.fromkeys(("LL", "RLL", "PLL"), 1.1), "joint": {}, "gates": {}}
    (tmp_path / "gates").mkdir()
    for name, tasks in (("plain", 2_048), ("of-few-tasks", 64)):
        (tmp_path / "gates" / f"{name}.json").write_text(json.dumps(evaluation | {"tasks": tasks}))
    assert "0.85 / 0.85 / 0.85 `plain` (7)" in summary(Results(tmp_path))
    assert "of-few-tasks" not in summary(Results(tmp_path))
    whole = {"expected_log_of_functions": {"LL": -0.96}, "oracle_expected_log_of_functions": {"LL": -0.42}}
    (tmp_path / "gates" / "plain.json").write_text(json.dumps(evaluation | whole))
    text = summary(Results(tmp_path))
    assert "0.85 / 0.85 / 0.85† `plain` (7)" in text
    assert "LL is `plain` -0.96. The exact GP that knows the kernel then has -0.42" in text


def test_few_shot_columns_have_both_ways_and_the_best_other_method(tmp_path):
    for method, accuracy in (("nvdp", 0.5), ("nvdp-paper-rates", 0.9), ("cnp", 0.6), ("maml", 0.55)):
        without = {"accuracy": accuracy + 0.01, "interval95": 0.01}
        scores = {"accuracy": accuracy, "interval95": 0.01, "without_sampling": without}
        write(tmp_path, "table3", run_name(method, SETTINGS[-1], "features"), {}, scores)
    (line,) = fewshot_summary(Results(tmp_path)).splitlines()[2:]
    assert line == "| MiniImageNet 5-way 5-shot | 68.12 ± 1.04 | 50.00 | 51.00 | 60.00 `cnp` |"
    for method in ("cnp", "maml"):
        result_path(tmp_path, "table3", "cpu", run_name(method, SETTINGS[-1], "features")).unlink()
    assert fewshot_summary(Results(tmp_path)) == ""  # no other method


def test_without_results_there_is_no_summary(tmp_path):
    assert summary(Results(tmp_path)) == ""


def test_a_damaged_file_of_the_page_is_one_line(tmp_path):
    (tmp_path / "gates").mkdir()
    path = tmp_path / "gates" / "gp.json"
    for text, words in (("{", "cannot be read as JSON"), ("[]", "holds a list"), ("{}", "has no entry 'model'")):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            summary(Results(tmp_path))
