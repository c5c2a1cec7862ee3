"""The summary chooses the best run of each kind by the paper's formula, and sets the paper's number beside it."""

import json

from nvdp.experiments.report_tables import Results
from nvdp.experiments.results import result_path
from nvdp.experiments.summary import fewshot_summary, regression_summary, summary
from nvdp.experiments.table3 import SETTINGS, run_name


def images(folder, name, model, score, better_mean=0.0):
    scores = {m: {"mean_parameters": score + better_mean, "expected_log": score} for m in ("LL", "RLL", "PLL")}
    config, evaluation = {"model": {"name": model}}, {"scores": scores, "task": "celeba"}
    write(folder, "table2", name, config, evaluation)


def write(folder, what, name, config, evaluation):
    row = {"name": name, "config": config, "steps": 1, "seconds": 1.0, "evaluation": evaluation}
    (folder / what).mkdir(exist_ok=True)
    result_path(folder, what, "cpu", name).write_text(json.dumps(row))


def test_the_best_run_of_each_kind_is_shown_by_the_papers_formula(tmp_path):
    images(tmp_path, "nvdp-celeba", "nvdp", 0.4, better_mean=0.5)
    images(tmp_path, "nvdp-conv-celeba", "nvdp-conv", 0.5)
    images(tmp_path, "nvdp-conv-mixture-celeba", "nvdp-conv", 0.6)
    images(tmp_path, "cnp-celeba", "cnp", 0.45)
    (line,) = regression_summary(Results(tmp_path)).splitlines()[2:]
    assert line == (
        "| CelebA: LL / PLL | 0.83 / 0.82 | 0.40 / 0.40 `nvdp` | 0.60 / 0.60 `nvdp-conv-mixture` "
        "| 0.45 / 0.45 `cnp` |  |"
    )


def test_few_shot_columns_have_both_ways_and_the_best_other_method(tmp_path):
    for method, accuracy in (("nvdp", 0.5), ("nvdp-paper-rates", 0.9), ("cnp", 0.6), ("maml", 0.55)):
        without = {"accuracy": accuracy + 0.01, "interval95": 0.01}
        scores = {"accuracy": accuracy, "interval95": 0.01, "without_sampling": without}
        write(tmp_path, "table3", run_name(method, SETTINGS[-1], "features"), {}, scores)
    (line,) = fewshot_summary(Results(tmp_path)).splitlines()[2:]
    assert line == "| MiniImageNet 5-way 5-shot | 68.12 ± 1.04 | 50.00 | 51.00 | 60.00 `cnp` |"


def test_without_results_there_is_no_summary(tmp_path):
    assert summary(Results(tmp_path)) == ""
