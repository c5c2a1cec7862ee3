"""`nvdp fit` on good tables and on every kind of bad one."""

import json
import os
import signal
from itertools import product

import numpy as np
import pandas as pd
import pytest
from command_line import nvdp
from growth import COLUMNS, FEW, fitted, growth, run

from nvdp.errors import InputError

RIVALS = ["hierarchical GP", "mixed model", "GP on the context alone", "mean curve of all tasks", "last value"]
FEW_TASKS = 6  # so few that no hierarchical GP is fitted


@pytest.fixture
def undrawn(monkeypatch):
    """Draw no figures; those of `model` and of the odd tables are drawn."""
    monkeypatch.setattr("nvdp.cli.fit._draw", lambda done, out: {})


@pytest.fixture
def coarse(monkeypatch):
    """Figures are drawn once, with few pixels, instead of a PNG and a PDF."""
    monkeypatch.setattr("nvdp.plots.tables.save_figure", lambda figure, path: [figure.savefig(path, dpi=20), path][1:])


def test_a_fit_leaves_a_model_its_scores_beside_rivals_and_a_figure(model):
    names = {path.name for path in model.iterdir()}
    assert {"config.json", "model.safetensors", "fit.json", "heldout.png", "heldout.pdf"} <= names
    report = json.loads((model / "fit.json").read_text())["report"]
    assert list(report["scores"])[1:] == list(report["forecast_scores"])[1:] == RIVALS
    assert report["recipe"] in report["tried"]
    assert report["model"] in report["verdict"]
    assert "process.safetensors" in names
    assert 0 <= report["network_share"] <= 1
    assert len(report["worst"]) == report["tasks"]["scored"]
    assert {row["task"] for row in report["worst"]} <= set(report["tasks"]["names_held_out"])
    page, text = ((model / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert report["verdict"] in text
    assert "data:image/png;base64," in page
    assert all(rival in text and rival in page for rival in RIVALS)
    tasks = report["tasks"]
    assert tasks["training"] + tasks["ending"] + tasks["held_out"] == 12
    assert tasks["scored"] == tasks["held_out"]
    assert all(np.isfinite(list(row.values())).all() for row in report["scores"].values())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_fit_that_is_stopped_says_so_and_leaves_nothing(tmp_path, monkeypatch, number, code):
    growth(FEW_TASKS).to_csv(tmp_path / "table.csv", index=False)
    once = iter([number])  # a second signal is obeyed at once
    monkeypatch.setattr(
        "nvdp.training.early_stopping.TrainingProgress.advance_to",
        lambda bar, step: [os.kill(os.getpid(), each) for each in once],
    )
    outcome = nvdp("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "model", *FEW)
    assert outcome.returncode == code
    assert "stopped; nothing was fitted" in outcome.stderr
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("place", "number", "tasks"),
    [
        *product(
            ("nvdp.tables.scores.score_cases", "nvdp.loading.save_model", "nvdp.loading.write_text"),
            (signal.SIGINT, signal.SIGTERM),
            (FEW_TASKS,),
        ),
        ("nvdp.loading.load", signal.SIGTERM, 12),  # all is written, process.safetensors too
    ],
)
def test_a_fit_that_is_stopped_while_it_scores_or_saves_leaves_nothing(tmp_path, monkeypatch, place, number, tasks):
    growth(tasks).to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.setattr(place, lambda *given: os.kill(os.getpid(), number))
    outcome = nvdp("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "model", *FEW)
    assert outcome.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.usefixtures("undrawn")
def test_a_killed_fit_leaves_no_model_and_is_in_nobodys_way(tmp_path):
    left = tmp_path / ".model.99999999.part"  # by a process that is no more
    left.mkdir()
    for name in ("config.json", "process.safetensors"):
        (left / name).write_text("{}")
    assert fitted(growth(FEW_TASKS), tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "model"}
    assert not (tmp_path / "model" / "process.safetensors").exists()  # so few tasks have none
    (tmp_path / ".other.1.part").mkdir()  # of one that is at work
    busy = run("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "other", *FEW)
    assert "is being written by another process" in str(busy.exception)


@pytest.mark.usefixtures("undrawn")
def test_a_fit_tells_which_tasks_it_left_out_and_how_many_it_scored(tmp_path, monkeypatch):
    monkeypatch.setattr("nvdp.tables.rivals.SCORED_CASES", 2)
    for module in ("fit", "scores"):
        monkeypatch.setattr(f"nvdp.tables.{module}.SCORED_CASES", 2)
    monkeypatch.setattr("nvdp.tables.fit.MOST_ROWS", 8)
    short = pd.DataFrame({"tree": ["p", "q", "r"], "day": [1.0, 2.0, 3.0], "size": [1.0, 2.0, 3.0]})
    result = fitted(pd.concat([growth(20), growth(1, rows=9).assign(tree="long"), short]), tmp_path)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "left out 3 tasks with fewer than 2 whole rows" in result.output
    assert "of 1 task with more than 8 rows a random 8 were kept" in result.output
    assert "2 of 4 held-out tasks" in " ".join(result.output.split())


@pytest.mark.usefixtures("undrawn")
def test_progress_is_in_per_cent_with_the_name_of_the_recipe_and_in_the_users_units(tmp_path):
    table = growth()
    table.assign(size=1000 * table["size"]).to_csv(tmp_path / "table.csv", index=False)
    shown = nvdp("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "model", "--steps", "30").stderr
    lines = [line for line in shown.splitlines() if "LL of held-out tasks" in line]
    assert any(line.startswith("nvdp, around the hierarchical GP (1 of 3), ") for line in lines)
    assert any(line.startswith("nvdp-attentive, drawn and real tasks (3 of 3), 100%") for line in lines)
    assert any("(goes on), 100%" in line for line in lines)
    assert all(float(line.rpartition(" ")[2]) < -5 for line in lines)  # sizes have a noise of 100
    assert "step" not in "".join(lines)


@pytest.mark.usefixtures("coarse")
def test_cross_validation_scores_every_task_and_keeps_none_back(tmp_path):
    result = fitted(growth(8), tmp_path, "--folds", "2")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "2-fold" in result.output
    report = json.loads((tmp_path / "model" / "fit.json").read_text())["report"]
    assert report["tasks"]["training"] + report["tasks"]["ending"] == report["tasks"]["scored"] == 8
    assert len(report["recipes_of_folds"]) == 2
    assert {"heldout.png", "calibration.png"} <= {path.name for path in (tmp_path / "model").iterdir()}
    too_many = run("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "other", *FEW, "--folds", "5")
    assert "--folds is 5; expected 2 to 4" in str(too_many.exception)


def test_the_settings_that_were_chosen_are_those_that_are_saved(model):
    from nvdp.tables.recipes import RECIPES
    from nvdp.training.config import RunConfig

    recipe = RECIPES[json.loads((model / "fit.json").read_text())["report"]["recipe"].split(", ", 1)[1]]
    saved = RunConfig.load(model / "config.json").model
    assert all(saved.flat()[name] == value for name, value in recipe.model.items())


def changed(**columns):
    return growth().assign(**columns)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (growth().drop(columns="size"), "unknown column 'size'"),
        (changed(size=["tall"] + [1.0] * 71), "holds 'tall' in line 2"),
        (growth(1), "1 task, 1 of them with at least 2 whole rows"),
        (growth(12, rows=1), "12 tasks, 0 of them with at least 2"),
        (changed(size=np.inf), "holds inf in line 2"),
        (growth(0), "0 rows"),
        (changed(size=[1e200] + [1.0] * 71), "the largest value is 1e+200"),
    ],
    ids=["column", "text", "one task", "one row", "infinite", "empty", "huge"],
)
def test_a_bad_table_is_one_line_and_leaves_no_folder(frame, words, tmp_path):
    result = fitted(frame, tmp_path)
    assert isinstance(result.exception, InputError)
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (changed(day="2024-03-01", tree=growth()["tree"].map("$\\frac{}$".format)), "column 'day' is constant"),
        (pd.concat([growth(), growth()]), ""),
        (changed(size=7.0), "'size' is constant"),
        (growth(2), "few tasks: the 1 held-out task"),
        (changed(size=growth()["size"] * 1e12), ""),
        (changed(day=growth()["day"] * 1e-9 + 5), ""),
    ],
    ids=["same x", "every row twice", "constant y", "two tasks", "huge outputs", "narrow inputs"],
)
def test_an_odd_table_has_a_finite_answer(frame, words, tmp_path, coarse):
    result = fitted(frame, tmp_path)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert words in result.output
    scores = json.loads((tmp_path / "model" / "fit.json").read_text())["report"]["scores"]
    assert all(np.isfinite(list(row.values())).all() for row in scores.values())


@pytest.mark.usefixtures("undrawn")
def test_two_hundred_thousand_rows_are_no_trouble(tmp_path):
    result = fitted(growth(12, rows=17_000), tmp_path)
    assert result.exit_code == 0, result.output + repr(result.exception)


def test_a_folder_in_use_and_one_that_was_not_fitted_are_one_line(model, tmp_path):
    growth().to_csv(tmp_path / "table.csv", index=False)
    again = run("fit", tmp_path / "table.csv", *COLUMNS, "--out", model, *FEW)
    assert "already holds a run, a fitted model or other files; choose another --out" in str(again.exception)
    other = run("predict", "gp", "--context", tmp_path / "table.csv", "--out", tmp_path / "p.csv")
    assert "was not fitted to a table" in str(other.exception)


def test_a_fitted_model_is_scored_on_new_tasks_and_told_with_its_columns(model, tmp_path):
    new = tmp_path / "new.csv"
    growth(5, rows=9, seed=3).to_csv(new, index=False)
    told = json.loads(run("score", model, new, "--json").stdout)
    assert (told["tasks"], told["forecast"], told["scores"]["cases"]) == (5, False, 5)
    first = json.loads(run("score", model, new, "--json", "--forecast", "--context", "4").stdout)
    assert first["scores"] != told["scores"]
    assert "5 tasks, each from its first points" in run("score", model, new, "--forecast").output
    assert "was not fitted to a table" in str(run("score", "gp", new).exception)
    assert "none with at least 10" in str(run("score", model, new, "--context", "9").exception)
    shown = run("info", model).output
    assert "input day: learned from" in shown
    assert "output size: around" in shown
    assert "task column: tree" in shown
    assert "for: size of a new tree, from a few rows of it, at day from" in shown  # its card, as of a pretrained model
    assert all(words in shown for words in ("trained on: ", "limits: scored on", "not for: ", "tasks, context of"))
    assert f"`nvdp score {model} test.csv`" in str(run("eval", model).exception)
