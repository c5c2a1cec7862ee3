"""Several seeds of table 1: means, standard errors and paired differences as worked out by hand."""

from nvdp.experiments.report_table1 import table1_section
from nvdp.experiments.table1 import plan, shipped_name


def result(score):
    one = {"mean_parameters": score, "expected_log": score, "log_expected": score, "std": 1.0, "stderr": 0.1}
    evaluation = {
        "tasks": 8,
        "scores": dict.fromkeys(("LL", "RLL", "PLL"), one),
        "spread": 0.1,
        "mean_rate": None,
        "coverage": {"90%": 0.9},
    }
    return {"steps": 10, "seconds": 1.0, "evaluation": evaluation}


PAPER = {"learned variance": {}, "fixed variance": {}}


def test_seeds_have_means_with_errors_and_differences_seed_by_seed():
    results = {shipped_name("cnp", seed): result(float(seed)) for seed in range(3)}
    results |= {shipped_name("nvdp", seed): result(float(seed) + 0.5) for seed in range(3)}
    text = table1_section(results, PAPER)
    assert "| `cnp` | 1.000 ± 0.577 |" in text
    assert "| `nvdp` | 1.500 ± 0.577 |" in text
    assert "| `nvdp` − `cnp` | 0.500 ± 0.000 |" in text


def test_without_all_seeds_nothing_is_said_of_them():
    results = {shipped_name("cnp", seed): result(float(seed)) for seed in range(2)}
    assert "seeds" not in table1_section(results, PAPER)


def test_seeds_differ_in_nothing_but_the_seed():
    runs = {run.name: run for run in plan("quick")}
    first, second = runs["nvdp-shipped"], runs["nvdp-shipped-seed-2"]
    assert first.config.choices() | {"seed": 2} == second.config.choices()
    assert (first.tasks, first.validation_seed) == (second.tasks, second.validation_seed)
