"""`nvdp predict`: files of contexts and queries, good ones and those that do not fit the model."""

import io
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from growth import FEW, fitted, growth, run

from nvdp.errors import FarNote, InputError
from nvdp.loading import load
from nvdp.tables import NVDPRegressor


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


def test_predictions_have_the_format_that_their_name_says(model, tmp_path):
    new = tmp_path / "new.parquet"
    growth(3, seed=1).to_parquet(new)
    arguments = ["predict", model, "--context", new, "--at", new, "--out"]
    for name in ("p.csv", "p.parquet"):
        assert run(*arguments, tmp_path / name).exit_code == 0
    ours, theirs = pd.read_csv(tmp_path / "p.csv"), pd.read_parquet(tmp_path / "p.parquet")
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(ours["mean"], theirs["mean"], rtol=1e-6)
    refused = run(*arguments, tmp_path / "p.xlsx")
    assert "predictions are written as CSV, or as Parquet" in str(refused.exception)
    assert not (tmp_path / "p.xlsx").exists()


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

    dated = context.assign(day=[f"2024-03-{1 + place:02d}" for place in range(len(context))])
    dated.to_csv(tmp_path / "dated.csv", index=False)
    run("predict", "general", "--context", tmp_path / "dated.csv", *named, "--out", tmp_path / "dates.csv")
    assert pd.read_csv(tmp_path / "dates.csv")["day"].iloc[0] == "2024-03-01"

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


def asked(model, context, folder, at=None, *more):
    """`nvdp predict` with tables as files: the result, and what was written."""
    context.to_csv(folder / "context.csv", index=False)
    options = []
    if at is not None:
        at.to_csv(folder / "at.csv", index=False)
        options = ["--at", folder / "at.csv"]
    result = run(
        *("predict", model, "--context", folder / "context.csv", "--out", folder / "out.csv", "--force"),
        *options,
        *more,
    )
    return result, pd.read_csv(folder / "out.csv") if result.exit_code == 0 else None


@pytest.mark.parametrize(
    ("context", "at", "words"),
    [
        ({"day": "2024-03-01"}, {}, "holds '2024-03-01' in line 2; expected a number, as in the fitted table"),
        ({"day": 1e4}, {}, "column 'day' holds 10000 in line 2; the fitted table has 0.0273"),
        ({}, {"day": 1e9}, "at.csv: column 'day' holds 1e+09 in line 2"),
        ({"size": np.nan}, {}, "column 'size' is empty"),
    ],
    ids=["dates", "far context", "far query", "no outputs"],
)  # fmt: skip
def test_cells_that_do_not_fit_the_model_are_one_line(model, tmp_path, context, at, words):
    new = growth(2, seed=1)
    result, _ = asked(model, new.assign(**context), tmp_path, new.assign(**at))
    assert isinstance(result.exception, InputError)
    assert words in str(result.exception)


def test_what_is_odd_about_a_context_is_told_and_columns_may_have_any_order(model, tmp_path):
    new = growth(2, seed=1)
    _, plain = asked(model, new, tmp_path, new)
    result, other = asked(model, new[["size", "day", "tree"]], tmp_path, new[["day", "tree"]])
    np.testing.assert_array_equal(plain["mean"], other["mean"])
    assert result.output.count("note") == 0
    for context, at, words in (
        (new.assign(size=new["size"] / 1000), new, "in the fitted table around 24.2421"),
        (new.assign(size=new["size"] * 1000), new, "size goes from"),
        (new.rename(columns={"tree": "plant"}), new, "has no column 'tree': its 12 rows are of one task"),
        (new.assign(tree=new["tree"].astype(float)), new, "the first is '0' ("),
    ):
        assert words in asked(model, context, tmp_path, at)[0].output
    one = new[new["tree"] == 1]
    _, alone = asked(model, one, tmp_path, one[["day"]])  # the grid of the one task
    np.testing.assert_allclose(alone["mean"], plain["mean"][6:], rtol=1e-5)


def visits():
    """Two outputs of patients on dates, one of them sometimes missing; sex is a word."""
    random = np.random.default_rng(0)
    day = random.integers(0, 90, (14, 6))
    dates = (pd.Timestamp("2024-03-01") + pd.to_timedelta(day.ravel(), unit="D")).strftime("%d/%m/%Y")
    weight = 40 + random.normal(0.3, 0.1, (14, 1)) * day + random.normal(0, 1, day.shape)
    pressure = np.where(random.random(84) < 0.2, np.nan, random.normal(120, 5, 84))
    sex = np.where(np.arange(14) % 2, "f", "m")
    columns = {"patient": np.repeat(np.arange(14), 6), "visit": dates, "sex": np.repeat(sex, 6)}
    return pd.DataFrame(columns | {"weight (kg, net)": weight.ravel(), "pressure": pressure})


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinic")
    visits().to_csv(folder / "visits.csv", index=False, encoding="utf-8-sig")
    names = ["--task", "patient", "--x", "visit", "--y", '"weight (kg, net)",pressure', "--given", "sex"]
    result = run("fit", folder / "visits.csv", *names, "--out", folder / "model", *FEW)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "column 'visit' is read as dates with the day first" in result.output
    return folder / "model"


def test_a_report_has_errors_by_output_and_a_curve_of_each(clinic):
    report = json.loads((clinic / "fit.json").read_text())["report"]
    outputs = report["by_output"]["random"]
    assert list(outputs) == ["weight (kg, net)", "pressure"]
    for name, row in report["scores"].items():
        apart = [outputs[output][name]["RMSE"] for output in outputs]
        assert min(apart) <= row["RMSE"] <= max(apart)
    assert "of weight (kg, net)" in report["verdict"]
    text = (clinic / "report.md").read_text()
    assert "All outputs:\n\n|  | LL | inside 90 % |" in text  # no error over different units
    assert text.count("pressure:\n\n|  | LL | RMSE |") == 2
    assert "visit (input) is from 2024-03-" in text
    told = json.loads(run("score", clinic, clinic.parent / "visits.csv", "--json").stdout)
    assert list(told["by_output"]) == list(outputs)
    assert ", RMSE " not in run("info", clinic).output


def test_rows_of_the_fitted_table_are_understood_with_dates_and_words(clinic, tmp_path):
    predictor, own = load(clinic), visits().iloc[:6]
    x, y = predictor.rows(own)
    assert x[:, 1].tolist() == [1.0] * 6  # m comes after f
    assert y.shape == (6, 2)
    assert predictor.explain(own.iloc[:3]).change.shape == (3, 2)
    files = predictor.plot(own.iloc[:3], path=tmp_path / "task.png", others=own.iloc[3:])
    assert [file.name for file in files] == ["task.png", "task.pdf"]
    with pytest.raises(InputError, match="the frame holds 2 tasks; expected the rows of one"):
        predictor.rows(visits().iloc[:9])
    with pytest.raises(InputError, match="x is not an array of numbers"):
        predictor.explain(own[["visit"]], own[["pressure"]])


def test_dates_and_given_words_of_a_prediction_are_those_of_the_fitted_table(clinic, tmp_path):
    own = visits().iloc[:6]
    at = pd.DataFrame({"patient": [0, 99], "visit": ["02/03/2024", "2024-03-02"]})
    result, _ = asked(clinic, own, tmp_path, at)
    assert "expected a date" in str(result.exception)  # two forms in one column
    result, rows = asked(clinic, own, tmp_path, at.assign(visit="02/03/2024"), "--explain", tmp_path / "why.json")
    assert "predicted without one, with the mean of sex" in result.output
    _, same = asked(clinic, own, tmp_path, at.assign(visit="2024-03-02"))
    np.testing.assert_array_equal(rows["pressure_mean"], same["pressure_mean"])
    (why,) = json.loads((tmp_path / "why.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert why["without"][0]["x"][0].startswith("2024-")
    for context, words in (
        (own.assign(visit=19800), "column 'visit' holds '19800' in line 2; expected a date"),
        (own.assign(sex="x"), "column 'sex' holds 'x' in line 2; expected one of f, m"),
        (own.drop(columns="sex"), "unknown column 'sex'"),
    ):
        assert words in str(asked(clinic, context, tmp_path, at)[0].exception)
    other = at.assign(visit="02/03/2024", sex="f")
    assert "column 'sex' of task '0' in line 2 is not as in its context" in str(
        asked(clinic, own, tmp_path, other)[0].exception
    )
