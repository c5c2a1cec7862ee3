"""Goals of speed: met or missed as the files say, and nothing about what was not measured."""

import json

from nvdp.bench import report
from nvdp.bench.goals import goals_table
from nvdp.bench.step import STEP_NOTES
from nvdp.system import source_commit


def outcomes(folder):
    """What each line of the table ends in, by what it is about."""
    lines = [line for line in goals_table(folder).splitlines() if line.startswith("| ")][2:]
    cells = (line.split(" | ") for line in lines)
    return {what.removeprefix("| "): outcome for what, _, _, outcome, _ in cells}


def test_a_goal_is_met_or_missed_as_its_file_says(tmp_path):
    assert goals_table(tmp_path) == ""
    rows = [
        {"model": "nvdp-conv", "shape": "gp, as shipped", "ours_over_floor": 1.404},
        {"model": "np", "shape": "gp", "ours_over_floor": 1.19},
        {"model": "cnp", "shape": "gp", "ours_over_floor": 1.21},
    ]
    result = {"suite": "step", "notes": STEP_NOTES, "machine": {"processor": "Fast"}, "rows": rows}
    (tmp_path / "step.json").write_text(json.dumps(result))
    assert outcomes(tmp_path) == {
        "step / floor, `nvdp-conv`, Fast": "met",
        "step / floor, CNP and NP family, GP functions, Fast": "**missed**",
    }
    scores = {"ConvGNP": 1.04, "ConvCNP": 0.96, "nvdp-attentive": 1.089, "nvdp-conv": 0.97, "nvdp": 0.8, "cnp": 0.9}
    models = {name: {"PLL": score} for name, score in scores.items()}
    (tmp_path / "peer.json").write_text(json.dumps({"seconds": 240, "models": models}))
    demo = {"what": "demo", "seconds": 95.0, "processor_seconds": 90.0}
    demo["scores"] = {name: {"expected_log": each} for name, each in (("LL", 0.9), ("RLL", 1.2), ("PLL", 0.81))}
    demo["expected_log_of_functions"] = {"LL": -1.0, "RLL": 1.3, "PLL": 0.9}
    starts = [{"what": what, "seconds": each} for what, each in (("nvdp --help", 0.31), ("nvdp serve", 2.0))]
    (tmp_path / "start.json").write_text(json.dumps({"rows": [demo, *starts]}))
    (tmp_path / "step.json").unlink()
    assert goals_table(tmp_path).startswith("4 of 9 are met.")
    assert list(outcomes(tmp_path).values()) == [
        "**missed**", "met", "met", "**missed**",  # neuralprocesses: a lead of 0.049 is not enough
        "**missed**", "**missed**", "met",  # the demo's PLL is only equal to the paper's; LL of functions; seconds
        "**missed**", "met",
    ]  # fmt: skip


def test_the_earlier_version_of_a_step_is_named(step_result):
    assert {row["before_commit"] for row in step_result["rows"]} == {source_commit()}
    rows = [row | {"before_commit": "0123456"} for row in step_result["rows"]]
    assert "*before: commit 0123456.*\n" in report._page_table(step_result | {"rows": rows})


def test_the_page_begins_with_the_goals(page, committed):
    goals = page.split("\n## Goals\n")[1].split("\n## ")[0]
    assert page.index("\n## Goals\n") < page.index("\n## Training step\n")
    lead = max(row["PLL"] for name, row in committed("peer")["models"].items() if name[0].islower())
    assert f"| {lead - committed('peer')['models']['ConvGNP']['PLL']:+.3f} (" in goals
    assert goals.count("| met |") + goals.count("| **missed** |") == goals.count("\n| ") - 2
    assert f"{goals.count('| met |')} of {goals.count(chr(10) + '| ') - 2} are met." in goals
    for row in committed("step")["rows"]:
        if row["model"] == "nvdp-conv":
            assert f"| {row['ours_over_floor']:.2f} × |" in goals
