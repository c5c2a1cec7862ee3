"""Columns taken by their logarithm, outputs that are missing in some rows, and repeated rows."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from nvdp.cli import app, fit, predict, score  # noqa: F401  (they add their commands)
from nvdp.data.tables import Columns, split_tasks
from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.posteriors.logarithm import LogPrediction
from nvdp.posteriors.prediction import Prediction
from nvdp.tables import NVDPRegressor
from nvdp.tables.notes import wide_columns
from nvdp.units import Units

FEW = ["--steps", "6", "--quiet"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result, result.output + repr(result.exception)


def curves(tasks=16, rows=7):
    """Costs that fall as a power of a size over four decades; a second output is known in half of the rows."""
    random = np.random.default_rng(0)
    size = 10 ** random.uniform(1, 5, (tasks, rows))
    cost = random.lognormal(3, 1, (tasks, 1)) * size**-0.5 * random.lognormal(0, 0.1, size.shape)
    level = np.where(random.random(size.shape) < 0.5, np.nan, np.log10(size) + random.normal(0, 0.2, (tasks, 1)))
    columns = {"curve": np.repeat(np.arange(tasks), rows), "size": size.ravel(), "cost": cost.ravel()}
    return pd.DataFrame(columns | {"level": level.ravel()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("columns")
    curves().to_csv(place / "table.csv", index=False)
    columns = ["--task", "curve", "--x", "size", "--y", "cost,level", "--log", "size,cost"]
    result, output = run("fit", place / "table.csv", *columns, "--out", place / "model", *FEW)
    assert result.exit_code == 0, output
    assert "some outputs are missing in " in output
    return place


def test_rows_with_one_of_two_outputs_are_learned_from_and_scored(folder):
    report = json.loads((folder / "model" / "fit.json").read_text())["report"]
    assert report["rows"]["left_out"] == 0
    assert report["rows"]["partial"] == int(curves()["level"].isna().sum())
    assert all(np.isfinite(list(row.values())).all() for row in report["scores"].values())
    result, output = run("score", folder / "model", folder / "table.csv", "--json")
    assert result.exit_code == 0, output
    assert np.isfinite(json.loads(result.stdout)["scores"]["LL"])


def test_a_context_without_the_second_output_says_something_about_it(folder):
    posterior = load(folder / "model")
    full, part = np.array([[100.0], [1e4]]), np.array([[1.0, np.nan], [0.1, 4.0]])
    prediction = posterior.adapt(full, part).predict([[1e3]])
    assert prediction.mean.isfinite().all()
    assert (prediction.mean[:, 0] > 0).all()


def test_logarithms_make_predictions_positive_and_follow_powers_of_the_unit(folder, tmp_path):
    query = pd.DataFrame({"curve": 0, "size": [10.0, 1e3, 1e5]})
    query.to_csv(tmp_path / "at.csv", index=False)
    result, output = run(
        *("predict", folder / "model", "--context", folder / "table.csv"),
        *("--at", tmp_path / "at.csv", "--out", tmp_path / "out.csv"),
    )
    assert result.exit_code == 0, output
    answers = pd.read_csv(tmp_path / "out.csv")
    assert (answers["cost_q05"] > 0).all()
    assert (answers["cost_q05"] < answers["cost_q50"]).all()
    assert answers["cost_q50"].is_monotonic_decreasing
    predictor = load(folder / "model")
    assert predictor.units.x_log == (True,)
    assert predictor.units.y_log == (True, False)


def test_numbers_without_a_logarithm_are_refused_with_their_line(tmp_path):
    curves().assign(size=lambda frame: frame["size"].where(frame.index != 4, 0.0)).to_csv(tmp_path / "t.csv")
    columns = ["--task", "curve", "--x", "size", "--y", "cost", "--out", tmp_path / "model", *FEW]
    assert (
        "column 'size' holds 0 in line 6; --log size needs positive numbers"
        in run("fit", tmp_path / "t.csv", *columns, "--log", "size")[1]
    )
    assert (
        "--log names 'curve'; expected inputs or outputs"
        in run("fit", tmp_path / "t.csv", *columns, "--log", "curve")[1]
    )


def test_a_logarithm_is_proposed_for_a_column_over_decades():
    frame = curves()
    columns = Columns("curve", ("size",), ("cost",), log=("cost",))
    tasks = [(task.x, task.y) for task in split_tasks(frame, columns).tasks]
    assert wide_columns(tasks, columns) == {"size": [frame["size"].min(), frame["size"].max()]}


def test_a_log_prediction_is_log_normal():
    generator = torch.Generator().manual_seed(0)
    inner = Prediction(torch.tensor([[[0.3]], [[1.0]]]), torch.tensor([[[0.5]], [[0.2]]]))
    prediction = LogPrediction.of(inner, torch.tensor([True]))
    many = Prediction(inner.functions.repeat_interleave(200_000, 1), inner.stds.repeat_interleave(200_000, 1))
    drawn = LogPrediction.of(many, torch.tensor([True])).sample(generator)
    assert torch.allclose(drawn.mean(), prediction.mean, rtol=0.01)
    assert torch.allclose(drawn.std(), prediction.std, rtol=0.02)
    assert torch.allclose((drawn < 2).double().mean(), prediction.cdf(torch.tensor([[2.0]])).double(), atol=0.01)
    assert prediction.log_prob(torch.tensor([[-1.0]])).item() == -np.inf


def test_units_of_logarithms_are_kept_as_plain_numbers():
    units = Units.of([np.array([[1.0], [100.0]])], [np.array([[1.0], [4.0]])], (True,), (False,))
    assert Units.from_dict(json.loads(json.dumps(units.to_dict()))) == units
    assert units.x_in([[10.0]]).item() == pytest.approx(0.0)


def test_a_repeated_row_counts_as_a_further_observation():
    random = np.random.default_rng(0)
    tasks = [(x, random.normal(0, 1) + random.normal(0, 0.5, (8, 1))) for x in random.uniform(0, 1, (30, 8, 1))]
    regressor = NVDPRegressor("nvdp", steps=6).meta_fit(tasks)
    once, thrice = (regressor.fit([[0.5]] * n, [1.0] * n).predict([[0.5]], return_std=True) for n in (1, 3))
    assert thrice[1].item() < once[1].item()
    assert regressor.predictor_.adjustment.process is not None


def test_an_explanation_finds_the_task_itself_and_the_point_that_says_most(folder, tmp_path):
    predictor, table = load(folder / "model"), curves()
    name = predictor.neighbours.names[3]
    own = table[table["curve"] == int(name)]
    found = predictor.explain(own[["size"]], own[["cost", "level"]])
    assert next(iter(found.nearest)) == name
    assert found.nearest[name] < 1e-5
    assert found.change.shape == (len(own), 2)
    one = own.iloc[[0, 1, 2]].assign(cost=[1.0, 1.0, 50.0])
    odd = predictor.explain(one[["size"]], one[["cost", "level"]])
    assert odd.change[:, 0].argmax() == 2
    one.to_csv(tmp_path / "context.csv", index=False)
    result, output = run(
        *("predict", folder / "model", "--context", tmp_path / "context.csv"),
        *("--out", tmp_path / "out.csv", "--explain", tmp_path / "why.json"),
    )
    assert result.exit_code == 0, output
    (why,) = json.loads((tmp_path / "why.json").read_text())
    assert len(why["without"]) == 3
    assert np.allclose(list(why["nearest"].values()), list(odd.nearest.values()))


def test_a_task_is_drawn_and_the_report_shows_calibration(folder, tmp_path):
    own = curves().iloc[:7]
    rows = (own[["size"]][:3], own[["cost", "level"]][:3], tmp_path / "task.png")
    files = load(folder / "model").plot(*rows)
    assert [file.name for file in files] == ["task.png", "task.pdf"]
    files[0].unlink()
    with pytest.raises(InputError, match=r"task\.pdf exists"):
        load(folder / "model").plot(*rows)
    assert (folder / "model" / "calibration.png").exists()
    assert (folder / "model" / "report.html").read_text().count("data:image/png;base64,") == 2
    numbers = json.loads((folder / "model" / "fit.json").read_text())["report"]["calibration"]
    assert np.all(np.diff(numbers["shares"]["after"]) >= 0)
