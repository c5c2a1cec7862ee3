"""From a table to predictions: `nvdp fit` and `nvdp predict` on good tables and on every kind of bad one."""

import io
import json
import os
import signal
import warnings

import numpy as np
import pandas as pd
import pytest
from command_line import nvdp
from typer.testing import CliRunner

from nvdp.cli import app, data, evaluate, fit, predict, runs, score, store  # noqa: F401  (they add their commands)
from nvdp.errors import FarNote, InputError
from nvdp.tables import NVDPRegressor

COLUMNS = ["--task", "tree", "--x", "day", "--y", "size"]
FEW = ["--steps", "6", "--quiet"]
RIVALS = ["hierarchical GP", "mixed model", "GP on the context alone", "mean curve of all tasks", "last value"]


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def growth(tasks=12, rows=6, seed=0):
    random = np.random.default_rng(seed)
    day = random.uniform(0, 10, (tasks, rows))
    size = random.normal(5, 1, (tasks, 1)) * day + random.normal(0, 0.1, day.shape)
    return pd.DataFrame({"tree": np.repeat(np.arange(tasks), rows), "day": day.ravel(), "size": size.ravel()})


def fitted(frame, folder, *more):
    frame.to_csv(folder / "table.csv", index=False)
    return run("fit", folder / "table.csv", *COLUMNS, "--out", folder / "model", *FEW, *more)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    result = fitted(growth(), folder)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return folder / "model"


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
    growth().to_csv(tmp_path / "table.csv", index=False)
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
    "place", ["nvdp.tables.scores.score_cases", "nvdp.loading.save_model", "nvdp.loading.write_text"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fit_that_is_stopped_while_it_scores_or_saves_leaves_nothing(tmp_path, monkeypatch, place, number):
    growth().to_csv(tmp_path / "table.csv", index=False)
    monkeypatch.setattr(place, lambda *given: os.kill(os.getpid(), number))
    outcome = nvdp("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "model", *FEW)
    assert outcome.returncode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_killed_fit_leaves_no_model_and_is_in_nobodys_way(tmp_path):
    (tmp_path / ".model.99999999.part").mkdir()  # of a process that is no more
    (tmp_path / ".model.99999999.part" / "config.json").write_text("{}")
    assert fitted(growth(), tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "model"}
    (tmp_path / ".other.1.part").mkdir()  # of one that is at work
    busy = run("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "other", *FEW)
    assert "is being written by another process" in str(busy.exception)


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


def test_cross_validation_scores_every_task_and_keeps_none_back(tmp_path):
    result = fitted(growth(8), tmp_path, "--folds", "2")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "2-fold" in result.output
    report = json.loads((tmp_path / "model" / "fit.json").read_text())["report"]
    assert report["tasks"]["training"] + report["tasks"]["ending"] == report["tasks"]["scored"] == 8
    assert len(report["recipes_of_folds"]) == 2
    too_many = run("fit", tmp_path / "table.csv", *COLUMNS, "--out", tmp_path / "other", *FEW, "--folds", "5")
    assert "--folds is 5; expected 2 to 4" in str(too_many.exception)


def test_the_settings_that_were_chosen_are_those_that_are_saved(model):
    from nvdp.tables.recipes import RECIPES
    from nvdp.training.config import RunConfig

    recipe = RECIPES[json.loads((model / "fit.json").read_text())["report"]["recipe"].split(", ", 1)[1]]
    saved = RunConfig.load(model / "config.json").model
    assert all(saved.flat()[name] == value for name, value in recipe.model.items())


def test_parquet_is_read_as_csv_is(model, tmp_path):
    new = growth(3, seed=1)
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_parquet(tmp_path / "new.parquet")
    outs = []
    for name in ("new.csv", "new.parquet"):
        result = run(
            "predict",
            model,
            "--context",
            tmp_path / name,
            "--at",
            tmp_path / name,
            "--out",
            tmp_path / "p.csv",
            "--force",
        )
        assert result.exit_code == 0, result.output + repr(result.exception)
        outs.append((tmp_path / "p.csv").read_text())
    ours, theirs = (pd.read_csv(io.StringIO(text)) for text in outs)
    np.testing.assert_allclose(ours["mean"], theirs["mean"], rtol=1e-5)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing more")
    broken = run("predict", model, "--context", tmp_path / "broken.parquet", "--out", tmp_path / "q.csv")
    assert isinstance(broken.exception, InputError)
    assert "\n" not in str(broken.exception)


def test_several_new_tasks_are_predicted_at_the_rows_that_are_asked_for(model, tmp_path):
    growth(3, seed=1).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "at.csv").write_text("remark,tree,day\nx,1,5\ny,0,2\nz,9,3\n")
    out = tmp_path / "pred.csv"
    arguments = ["predict", model, "--context", tmp_path / "new.csv", "--at", tmp_path / "at.csv", "--out", out]
    result = run(*arguments, "--plot", tmp_path / "pred.png")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "no context, the first is '9'" in result.output
    written = pd.read_csv(out)
    assert list(written) == ["remark", "tree", "day", "mean", "std", "q05", "q50", "q95"]
    assert written["remark"].tolist() == ["x", "y", "z"]
    assert (written["q05"] < written["q50"]).all()
    assert (written["q50"] < written["q95"]).all()
    assert (tmp_path / "pred.png").stat().st_size > 5_000


def test_a_grid_is_made_for_each_task_and_a_file_without_tasks_is_one(model, tmp_path):
    new = growth(2, seed=1)
    new.to_csv(tmp_path / "two.csv", index=False)
    new[new["tree"] == 0].drop(columns="tree").to_csv(tmp_path / "one.csv", index=False)
    for name, tasks in (("two.csv", 2), ("one.csv", 1)):
        out = tmp_path / f"{tasks}.out"
        result = run("predict", model, "--context", tmp_path / name, "--at", "auto", "--out", out)
        assert result.exit_code == 0, result.output + repr(result.exception)
        assert len(pd.read_csv(out)) == 200 * tasks


def test_nothing_that_exists_is_overwritten_and_inputs_never_are(model, tmp_path):
    new, out, figure = tmp_path / "new.csv", tmp_path / "out.csv", tmp_path / "p.png"
    growth(2, seed=1).to_csv(new, index=False)
    before = new.read_text()
    (tmp_path / "link.csv").symlink_to(new)
    for at, taken in ((new, new), ("auto", new), (new, tmp_path / "link.csv")):
        result = run("predict", model, "--context", new, "--at", at, "--out", taken, "--force")
        assert "is an input of this command" in str(result.exception)
    assert new.read_text() == before
    for kept, more in ((out, []), (figure.with_suffix(".pdf"), ["--plot", figure])):
        kept.write_text("mine")
        result = run("predict", model, "--context", new, "--out", out, *more)
        assert f"{kept} exists; add --force" in str(result.exception)
        assert kept.read_text() == "mine"
        assert run("predict", model, "--context", new, "--out", out, *more, "--force").exit_code == 0
        assert kept.read_bytes() != b"mine"
        out.unlink()


def test_columns_with_the_names_of_predictions_are_kept(tmp_path):
    names = ["--task", "std", "--x", "mean", "--y", "size"]
    table = growth().rename(columns={"tree": "std", "day": "mean"})
    table.to_csv(tmp_path / "table.csv", index=False)
    assert run("fit", tmp_path / "table.csv", *names, "--out", tmp_path / "model", *FEW).exit_code == 0
    new = tmp_path / "table.csv"
    result = run("predict", tmp_path / "model", "--context", new, "--at", new, "--out", tmp_path / "p.csv")
    assert "has a column 'mean' already" in result.output
    written = pd.read_csv(tmp_path / "p.csv")
    pd.testing.assert_frame_equal(written[["std", "mean", "size"]], table)
    assert list(written)[3:] == [f"predicted_{name}" for name in ("mean", "std", "q05", "q50", "q95")]


def test_a_prediction_in_parts_is_that_of_all_rows_together(model, tmp_path, monkeypatch):
    new = tmp_path / "new.csv"
    growth(2, rows=9, seed=1).to_csv(new, index=False)
    texts = []
    for rows in (4, 8_192):
        monkeypatch.setattr("nvdp.tables.predict.ROWS_AT_ONCE", rows)
        assert run("predict", model, "--context", new, "--at", new, "--out", tmp_path / f"{rows}.csv").exit_code == 0
        texts.append(pd.read_csv(tmp_path / f"{rows}.csv"))
    pd.testing.assert_frame_equal(*texts, rtol=1e-5)


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
        (changed(day=3.0), ""),
        (pd.concat([growth(), growth()]), ""),
        (changed(size=7.0), "'size' is constant"),
        (growth(2), "few tasks: the 1 held-out task"),
        (changed(size=growth()["size"] * 1e12), ""),
        (changed(day=growth()["day"] * 1e-9 + 5), ""),
    ],
    ids=["same x", "every row twice", "constant y", "two tasks", "huge outputs", "narrow inputs"],
)
def test_an_odd_table_has_a_finite_answer(frame, words, tmp_path):
    result = fitted(frame, tmp_path)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert words in result.output
    scores = json.loads((tmp_path / "model" / "fit.json").read_text())["report"]["scores"]
    assert all(np.isfinite(list(row.values())).all() for row in scores.values())


def test_two_hundred_thousand_rows_are_no_trouble(tmp_path):
    result = fitted(growth(20, rows=10_000), tmp_path)
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


def test_columns_that_are_given_of_a_task_are_inputs_of_its_prediction(tmp_path):
    frame = growth(rows=5)
    frame["diet"] = np.where(frame["tree"] % 2, "oats", "barley")
    frame["size"] += np.where(frame["tree"] % 2, 40.0, 0.0)
    result = fitted(frame, tmp_path, "--given", "diet")
    assert result.exit_code == 0, result.output + repr(result.exception)
    rows = ["tree,day,size,diet", "a,2,50,oats", "b,2,10,barley"]
    (tmp_path / "new.csv").write_text("\n".join(rows))
    (tmp_path / "at.csv").write_text("tree,day\na,0\nb,0\n")
    arguments = ["predict", tmp_path / "model", "--context", tmp_path / "new.csv", "--out", tmp_path / "out.csv"]
    result = run(*arguments, "--at", tmp_path / "at.csv")
    assert result.exit_code == 0, result.output + repr(result.exception)
    oats, barley = pd.read_csv(tmp_path / "out.csv")["mean"]
    assert oats > barley + 20
    (tmp_path / "new.csv").write_text("\n".join([*rows, "b,3,15,rye"]))
    result = run(*arguments, "--force")
    assert "column 'diet' holds 'rye' in line 4; expected one of barley, oats" in str(result.exception)


def test_a_pretrained_model_predicts_and_is_scored_on_a_table_whose_columns_are_named(tmp_path):
    assert run("data", "sample", tmp_path).exit_code == 0
    assert "growth.csv exists" in str(run("data", "sample", tmp_path).exception)
    new, at, out = (tmp_path / name for name in ("new.csv", "grid.csv", "pred.csv"))
    named = ["--x", "day", "--y", "size"]
    result = run("predict", "general", "--context", new, "--at", at, *named, "--out", out, "--plot", tmp_path / "p.png")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "41 predictions of 1 task\n" in result.output
    rows, context, asked = (pd.read_csv(path) for path in (out, new, at))
    estimator = NVDPRegressor().fit(context[["day"]], context["size"])
    mean, std = estimator.predict(asked[["day"]], return_std=True)
    np.testing.assert_allclose(rows[["mean", "std"]], np.stack([mean, std], 1), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "p.png").exists()

    alone = run("predict", "general", "--context", new, *named, "--out", tmp_path / "auto.csv")
    grid = pd.read_csv(tmp_path / "auto.csv")["day"]
    assert (grid.min(), grid.max()) == (context["day"].min(), context["day"].max())
    assert alone.exit_code == 0

    table = tmp_path / "growth.csv"
    several = run("predict", "general", "--context", table, *named, "--task", "tree", "--out", tmp_path / "all.csv")
    assert "8,000 predictions of 40 tasks" in several.output
    told = json.loads(run("score", "general", table, *named, "--task", "tree", "--json").stdout)
    assert told["tasks"] == 40
    assert 0.8 < told["scores"]["coverage90"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["general"], "general was not fitted to a table; name its columns with --x and --y"),
        (["general", "--x", "day", "--y", "height"], "height"),
        (["general", "--x", "day", "--y", "size", "--task", "plant"], "plant"),
        (["general", "--x", "day,a,b,c", "--y", "size"], "--x names 4 columns; general takes 1 to 3"),
        (["general", "--x", "day", "--y", "size,tree"], "--y names 2 columns; general takes 1"),
        (["omniglot", "--x", "day", "--y", "size"], "omniglot is a classifier"),
    ],
)
def test_columns_that_a_pretrained_model_cannot_take_are_one_line(tmp_path, options, message):
    growth(1).to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", *options, "--context", tmp_path / "new.csv", "--out", tmp_path / "pred.csv")
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not (tmp_path / "pred.csv").exists()


def test_a_fitted_model_knows_its_columns_and_filters_of_warnings_stay_as_they_are(model, tmp_path):
    growth(1).to_csv(tmp_path / "new.csv", index=False)
    asked = ["predict", model, "--context", tmp_path / "new.csv", "--out", tmp_path / "pred.csv"]
    assert "knows its columns; leave out --x" in str(run(*asked, "--x", "day").exception)
    before = list(warnings.filters)
    assert run(*asked).exit_code == 0
    assert warnings.filters == before


def test_queries_far_from_the_context_of_a_pretrained_model_are_told(tmp_path):
    growth(1).to_csv(tmp_path / "new.csv", index=False)
    pd.DataFrame({"day": [5.0, 5000.0]}).to_csv(tmp_path / "at.csv", index=False)
    options = ["--x", "day", "--y", "size", "--at", tmp_path / "at.csv", "--out", tmp_path / "pred.csv"]
    with pytest.warns(FarNote, match="1 of 2 points lie more than 10 standard deviations"):
        run("predict", "general", "--context", tmp_path / "new.csv", *options)
    assert (tmp_path / "pred.csv").exists()
