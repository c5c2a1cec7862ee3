"""The results page: which sections it has, and that tables and sentences hold the numbers of the files."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import nvdp, refusal

from nvdp.errors import InputError
from nvdp.experiments.report import PARTS, PLACEHOLDER, filled, results_page, text_of_own_page
from nvdp.experiments.report_tables import Results, seeds_table
from nvdp.experiments.report_words import compared, highest, in_words
from nvdp.experiments.results import files, result_path
from nvdp.experiments.table1 import plan, shipped_name


def result(score, stderr=0.1, rate=None):
    one = {"mean_parameters": score, "expected_log": score, "log_expected": score, "std": 1.0, "stderr": stderr}
    evaluation = {
        "task": "gp",
        "variance": "learned",
        "tasks": 8,
        "samples": 16,
        "scores": dict.fromkeys(("LL", "RLL", "PLL"), one),
        "spread": 0.1,
        "mean_rate": rate,
        "coverage": {"90%": 0.9},
    }
    return {"steps": 10, "seconds": 1.0, "config": {"model": {"name": "cnp"}}, "evaluation": evaluation}


def written(folder, what, rows):
    for name, row in rows.items():
        path = result_path(folder, what, "cpu", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(row | {"name": name}))
    return Results(folder)


def test_seeds_have_means_with_errors_and_differences_seed_by_seed(tmp_path):
    rows = {shipped_name("cnp", seed): result(float(seed)) for seed in range(3)}
    rows |= {shipped_name("nvdp", seed): result(float(seed) + 0.5 + 0.01 * seed) for seed in range(3)}
    text = seeds_table(written(tmp_path, "table1", rows))
    assert "| `cnp` | 1.000 ± 0.577 |" in text
    assert "| `nvdp` | 1.510 ± 0.583 |" in text
    assert "| `nvdp` − `cnp` | 0.510 ± 0.006 |" in text
    assert "Highest mean LL: `nvdp`; its lead over `cnp` +0.510 ± 0.006 (88.3 standard errors)." in results_page(
        tmp_path
    )


def test_without_all_seeds_there_is_no_table_of_seeds(tmp_path):
    rows = {shipped_name("cnp", seed): result(float(seed)) for seed in range(2)}
    assert seeds_table(written(tmp_path, "table1", rows)) == ""
    page = results_page(tmp_path)
    assert "### Learned variance, tuned recipe" in page
    assert "Several seeds" not in page


def test_seeds_differ_in_nothing_but_the_seed():
    runs = {run.name: run for run in plan("quick")}
    first, second = runs["nvdp-shipped"], runs["nvdp-shipped-seed-2"]
    assert first.config.choices() | {"seed": 2} == second.config.choices()
    assert (first.tasks, first.validation_seed) == (second.tasks, second.validation_seed)


def test_a_difference_is_called_clear_from_two_standard_errors():
    assert in_words(0.2, 0.1) == "+0.200 ± 0.100 (2.0 standard errors)"
    assert in_words(-0.19, 0.1) == "-0.190 ± 0.100 (no clear difference)"
    rows = {
        "base": result(0.0, 0.3),
        "up": result(1.0, 0.4),
        "near": result(-0.9, 0.4),
        "down": result(-1.1, 0.4, 0.011),
    }
    assert compared(rows, "base") == (
        "Compared with `base` in *LL mean*, clearly higher: `up`; no clear difference: `near`; clearly lower: `down`. "
        "Mean rate below 0.02: `down`."
    )


def test_the_highest_model_is_named_by_variant():
    rows = {"a": result(0.5, 0.3), "b": result(0.4, 0.4)}
    assert highest(rows) == (
        "Highest LL in every variant: `a`. *LL mean* of `a` minus that of the next, `b`: +0.100 ± 0.500 "
        "(no clear difference)."
    )
    rows["b"]["evaluation"]["scores"]["LL"] = rows["b"]["evaluation"]["scores"]["LL"] | {"log_expected": 0.6}
    assert highest(rows).startswith("Highest LL: *mean* `a`, *E log* `a`, *log E* `b`.")
    assert highest({"a": rows["a"]}) == ""


def test_a_choice_of_the_classifier_has_a_row(tmp_path):
    scores = {"accuracy": 0.5, "interval95": 0.008, "nll": 1.2, "ece": 0.02, "tasks": 600, "mean_rate": 0.25}
    row = {"steps": 500, "seconds": 60.0, "config": {}, "evaluation": scores}
    other = row | {"seconds": 9.0, "evaluation": scores | {"accuracy": 0.4, "mean_rate": None}}
    written(tmp_path, "fewshot-choices", {"shipped": row, "kl-0": row, "protonet": other})
    page = results_page(tmp_path)
    assert "| `shipped` | – | – | 50.00 ± 0.80 | 1.200 | 0.020 | 0.250 | 60 |" in page
    assert "| `protonet` | – | – | 40.00 ± 0.80 | 1.200 | 0.020 |  | 9 |" in page
    assert "in accuracy, clearly higher: none; no clear difference: `kl-0`; clearly lower: `protonet`." in page


def test_sections_without_results_are_left_out():
    template = "# Page\n\n## A\n\nText {{a}}.\n\n{{words?}}\n\n## B\n\n### C\n\n{{c}}\n\n### D\n\n{{d}}\n"
    parts = {"a": "1", "words": "", "c": "", "d": "4"}
    assert filled(template, parts.__getitem__) == "# Page\n\n## A\n\nText 1.\n\n## B\n\n### D\n\n4\n"
    parts = dict.fromkeys(parts, "")
    assert filled(template, parts.__getitem__) == "# Page\n"


def test_every_part_is_in_the_template_and_the_reverse():
    template = (files("nvdp.experiments") / "results_template.md").read_text()
    used = {match[1] for match in PLACEHOLDER.finditer(template)}
    assert used <= set(PARTS)
    assert all(name in used or name.endswith((".steps", ".tasks")) for name in PARTS)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no results of the cpu budget"):
        results_page(tmp_path)


def test_only_its_own_pages_and_their_figures_are_replaced(tmp_path):
    results, page = tmp_path / "results", tmp_path / "docs" / "page.md"
    for name in ("table1/cpu-cnp-learned.json", "figure3/cpu-figure.json"):
        (results / name).parent.mkdir(parents=True)
        shutil.copy(Path(__file__).parents[2] / "results" / name, results / name)
    mine = page.parent / "figures" / "figure3.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (mine.parent / "other.png").write_text("mine too")
    command = ("report", results, "--out", page)
    assert f"{mine} exists; add --force" in refusal(*command)
    assert (mine.read_text(), page.exists()) == ("mine", False)
    forced, again = nvdp(*command, "--force"), nvdp(*command)
    assert (forced.returncode, again.returncode) == (0, 0), again.stderr
    assert mine.read_bytes().startswith(b"\x89PNG")
    assert (mine.parent / "other.png").read_text() == "mine too"
    assert {path.name for path in page.parent.iterdir()} == {"page.md", "figures"}
    page.write_text("# Mine\n\nI like `nvdp report`.\n")
    assert f"{page} exists; add --force" in refusal(*command)
    assert "is a folder; expected the name of a page" in refusal("report", results, "--out", page.parent)


def test_the_committed_pages_are_its_own():
    docs = Path(__file__).parents[2] / "docs"
    assert all(text_of_own_page(docs / name) for name in ("results.md", "speed.md"))
    assert text_of_own_page(docs / "findings.md") is None
