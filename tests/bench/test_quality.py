"""Suite quality: rows of equal seconds, kept row by row in a file that can be resumed."""

import fcntl
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import nvdp as command
from command_line import refusal

from nvdp.bench import SUITES, quality, suite_result
from nvdp.bench.draw import draw
from nvdp.bench.files import only_writer
from nvdp.bench.quality import RECIPES, SECONDS, quality_rows
from nvdp.bench.report import other_machines
from nvdp.bench.timing import machine
from nvdp.errors import InputError
from nvdp.experiments.entries import checked
from nvdp.experiments.schemas import BENCH
from nvdp.training.presets import preset_config

ROW = {"model": "cnp", "recipe": "quick", "budget": 1.0, "seconds": 1.0, "steps": 7}
ROW |= dict.fromkeys(("LL", "LL_expected_log", "ceiling_LL", "attainable_LL"), 0.5)


def test_quality_rows_follow_both_recipes_and_keep_what_is_done(tmp_path, contract):
    recipes, saved, said = (("nvdp", "paper"), ("cnp", "quick")), [], []
    first = quality_rows([0.3], 4, recipes[1:])
    rows = quality_rows([0.6, 0.3], 4, recipes, first, lambda rows: saved.append(len(rows)), said.append)
    assert [(row["model"], row["recipe"]) for row in rows] == list(recipes) * 2
    assert rows[1] is first[0]
    assert saved == [2, 3, 4]
    assert said == [
        f"{row['model']}, {row['recipe']}, {row['budget']:g} s: LL {row['LL']:.3f} ({count} of 4)"
        for count, row in enumerate((row for row in rows if row is not first[0]), 2)
    ]
    for row in rows:
        assert set(row) >= contract | {"LL", "seconds", "steps"}
        assert row["steps"] > 0
        assert row["seconds"] >= row["budget"]
        assert row["attainable_LL"] <= row["ceiling_LL"] + 0.05
        assert (row["tasks"], row["LL_stderr"] > 0) == (4, True)
    with pytest.raises(
        InputError, match=r"cnp after 0\.3 s was scored on 4 tasks with 4 samples; expected 8 and 4: choose"
    ):
        quality_rows([0.3], 8, recipes, done=first)
    written = {"suite": "quality", "commit": None, "machine": {"threads": 1, "load_average": None}, "rows": rows}
    assert checked(json.loads(json.dumps(written)), BENCH["quality"], tmp_path / "quality.json") == written
    figures = []
    for shift in (0.0, 0.1):
        other = written | {"rows": [row | {"LL": row["LL"] + shift} for row in rows]}
        figures.append(draw(written, tmp_path / f"{shift}.png", [other])[0].read_bytes())
    assert figures[0] != figures[1]  # rows of other machines are drawn


def test_a_schedule_ends_with_the_seconds_however_many_steps_they_allow():
    config = replace(preset_config("gp", "cnp", "quick"), steps=3, warmup_steps=0)
    recipe = quality.Recipe(config, 1.0)
    recipe.train_until(0.5)
    half = recipe.trainer.optimizer.param_groups[0]["lr"]
    recipe.train_until(1.0)
    assert recipe.trainer.step > 6
    assert 0.2 * config.learning_rate < half < 0.8 * config.learning_rate
    assert recipe.trainer.optimizer.param_groups[0]["lr"] < 0.1 * config.learning_rate


def test_models_train_side_by_side():
    rows = quality_rows([0.3], 4, RECIPES[-2:], jobs=2)
    assert [(row["model"], row["jobs"]) for row in rows] == [("np", 2), ("cnp", 2)]
    assert all(row["seconds"] >= 0.3 and row["commit"] for row in rows)


def test_chosen_models_and_jobs_reach_the_suite(monkeypatch):
    given = []
    monkeypatch.setattr(quality, "quality_rows", lambda *arguments: given.append(arguments) or [])
    assert command("bench", "--suite", "quality", "--model", "np", "--model", "nvdp", "--jobs", 3).returncode == 0
    (_, _, recipes, *_, jobs) = given[0]
    assert (recipes, jobs) == ([("nvdp", "quick"), ("nvdp", "paper"), ("np", "quick")], 3)


def test_options_of_the_suite_are_checked():
    said = refusal("bench", "--suite", "quality", "--quick", "--model", "cnpp")
    assert said.startswith("nvdp: unknown model of the suite quality 'cnpp'")
    assert "--jobs and --model are for --suite quality, not step" in refusal("bench", "--jobs", 2)


def test_a_file_of_rows_can_be_resumed_or_replaced(tmp_path):
    kept, other = tmp_path / "q.json", tmp_path / "step.json"
    kept.write_text(json.dumps(suite_result("quality", [])))
    other.write_text(json.dumps(suite_result("step", [])))
    said = refusal("bench", "--suite", "quality", "--quick", "--json", kept)
    assert "q.json exists; add --resume to keep its rows and go on, or --force to replace it" in said
    said = refusal("bench", "--suite", "quality", "--quick", "--json", other, "--resume")
    assert 'step.json: entry \'suite\' is "step"; expected "quality"' in said


def test_an_interrupted_suite_says_what_is_saved_and_resumes(monkeypatch, tmp_path):
    file = tmp_path / "q.json"
    row, seen = ROW, []

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
    resume = ("bench", "--suite", "quality", "--json", file, "--resume")
    assert "was measured with processor 'another'" in refusal(*resume)
    here = elsewhere | {"machine": machine(False) | {"threads": 1}}
    for rows, entry in (
        ([1], "'rows.0' is 1"),
        ([{"model": "cnp"}], "no entry 'rows.0."),
        (None, "'rows' is null"),
        ([row | {"LL": None}], "'rows.0.LL' is null"),
        ([row | {"budget": "a"}], "'rows.0.budget' is"),
    ):
        file.write_text(json.dumps(here | {"rows": rows}))
        assert entry in refusal(*resume)
    file.write_text(json.dumps(here | {"rows": [row, row]}))
    assert "q.json has two rows of cnp, quick, 1 s" in refusal(*resume)
    assert "was measured with threads '1', here it is '2'" in refusal(*resume, "--threads", 2)


def test_a_second_call_on_a_file_in_use_ends_and_no_row_is_lost(monkeypatch, tmp_path):
    file, said = tmp_path / "q.json", []
    arguments = ("bench", "--suite", "quality", "--quick", "--json", str(file))
    rows = [ROW | {"model": name} for name in ("cnp", "np", "nvdp")]

    def measured(settings):
        """Adds two rows; the command is started again before and after each is saved."""
        found = list(settings.done)
        for row in rows[len(found) : len(found) + 2]:
            said.append(refusal(*arguments, "--resume"))
            found.append(row)
            settings.save(found)
            said.append(refusal(*arguments, "--force"))
        return found

    monkeypatch.setitem(SUITES, "quality", replace(SUITES["quality"], rows=measured))
    for saved in (2, 3):
        assert command(*arguments, "--resume").returncode == 0
        assert json.loads(file.read_text())["rows"] == rows[:saved]
    expected = f"nvdp: {file} is in use by another nvdp bench; wait until it ends, or choose another file\n"
    assert said == [expected] * 6
    assert [path.name for path in tmp_path.iterdir()] == ["q.json"]

    with only_writer(file):
        other = subprocess.run([sys.executable, "-m", "nvdp", *arguments], capture_output=True, text=True, check=False)
    assert (other.returncode, other.stdout, other.stderr) == (2, "", expected)


def test_a_lock_whose_file_was_removed_by_the_process_before_is_none(tmp_path, monkeypatch):
    file, flock = tmp_path / "q.json", fcntl.flock

    def late(*arguments):
        """The process before ends between opening and locking."""
        (tmp_path / ".q.json.lock").unlink()
        flock(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        with pytest.raises(InputError, match="in use by another nvdp bench"), only_writer(file):
            pass
    with only_writer(file):
        assert (tmp_path / ".q.json.lock").exists()


def test_the_page_names_trainings_that_were_not_run(committed, section):
    rows = [{"model": m, "recipe": r, "budget": s} for s in SECONDS for m, r in RECIPES]
    assert quality.not_run(rows) == ""
    gaps = [
        row for row in rows if row["budget"] < 300 or (row["budget"] == 300 and row["model"] not in ("anp", "nvdp"))
    ]
    assert quality.not_run(gaps) == "Not run: 300 s of anp, nvdp, nvdp (paper); 1,200 s of all models."
    others = other_machines(Path(__file__).parents[2] / "results" / "bench", "quality")
    results = [committed("quality"), *(json.loads(path.read_text()) for path in others)]
    said = quality.not_run([row for result in results for row in result["rows"]])
    assert not said or said in section("## Log-likelihood against seconds of training")
