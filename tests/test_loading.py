"""Models that come with the package, and models of run folders."""

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from command_line import nvdp as nvdp_command

import nvdp
from nvdp.cards import card_lines, card_of
from nvdp.data.gp import GPTasks
from nvdp.data.images import pixel_coordinates
from nvdp.errors import NameNote
from nvdp.evaluation.metrics import evaluate
from nvdp.loading import find_run, pretrained_names
from nvdp.units import Units

WEIGHTS = Path(nvdp.__file__).parent / "weights"


def test_pretrained_models_are_small():
    assert {"gp", "gp-nvdp", "mnist", "omniglot"} <= set(pretrained_names())
    for name in pretrained_names():
        assert (WEIGHTS / name / "model.safetensors").stat().st_size < 6_500_000


def test_the_card_of_a_grown_model_has_all_its_steps():
    record = json.loads((WEIGHTS / "gp-nvdp" / "scores.json").read_text())
    assert nvdp.load("gp-nvdp").config.steps < record["steps"]  # those of its last training alone
    lines = card_lines(card_of(find_run("gp-nvdp")))
    assert any(f"{record['steps']:,} steps" in line and record["note"] in line for line in lines)


@pytest.mark.parametrize("name", ["gp", "gp-nvdp"])
def test_a_pretrained_model_scores_what_its_file_says(name):
    folder = WEIGHTS / name
    stated = json.loads((folder / "scores.json").read_text())["evaluation"]
    validation = stated["validation"]
    chunks = [GPTasks().validation_chunk(validation["seed"], chunk) for chunk in range(4)]
    scores = evaluate(nvdp.load(name).model, chunks, samples=2)["scores"]["LL"]
    error = stated["scores"]["LL"]["std"] / (4 * len(chunks[0])) ** 0.5
    assert scores["mean_parameters"] == pytest.approx(stated["scores"]["LL"]["mean_parameters"], abs=4 * error)


def test_a_pretrained_model_is_surer_near_its_context_than_far_from_it():
    posterior = nvdp.load("gp").adapt([-0.1, 0.0, 0.1], [0.5, 0.5, 0.5])
    near, far = posterior.predict([0.0, 1.9], samples=50).std.flatten()
    assert near < 0.5 * far


def test_functions_of_the_pretrained_model_differ_where_the_exact_posterior_is_wide():
    tasks = GPTasks().validation_chunk(20_220, 0)
    posterior = nvdp.load("gp").adapt(tasks.context)
    spread = posterior.predict(tasks.x, samples=32).spread.flatten().double()
    exact = tasks.oracle().std.flatten()
    assert torch.corrcoef(torch.stack([spread, exact]))[0, 1] > 0.8
    assert posterior.mean_rates()[:, -1].mean() > 0.1


@pytest.mark.parametrize("share", [0.7, 0.9, 1.0])
def test_the_pretrained_model_of_digits_is_sensible_however_many_pixels_it_sees(share):
    x = pixel_coordinates(28, 28)
    ring = ((x - 0.5).norm(dim=-1) - 0.25).abs() < 0.06  # a nought
    seen = torch.rand(len(x), generator=torch.Generator().manual_seed(0)) < share
    prediction = nvdp.load("mnist").adapt(x[seen], ring[seen, None].float()).predict(x)
    assert (prediction.mean[:, 0] - ring.float()).abs().mean() < 0.1
    assert prediction.std.max() < 0.6


def test_the_pretrained_model_of_digits_knows_what_is_beside_a_stroke():
    model, x = nvdp.load("mnist"), pixel_coordinates(28, 28).view(28, 28, 2)
    shown, ink = x[6:22:2, 10:18:2].reshape(-1, 2), torch.zeros(8, 4, 1)
    ink[:, 2] = 1.0  # a vertical stroke, every other row and column
    prediction = model.adapt(shown, ink.reshape(-1, 1)).predict(x.reshape(-1, 2), samples=16)
    picture = prediction.mean.view(28, 28)
    assert picture[9:20, 14].min() > 0.5  # rows between those shown
    assert picture[:3].abs().max() < 0.3  # digits do not reach the edge
    assert picture[9:20, 10].max() < 0.4


def test_the_command_lists_what_comes_with_the_package():
    rows = json.loads(nvdp_command("models", "--pretrained", "--json").stdout)
    assert {row["name"] for row in rows} == set(pretrained_names())
    assert all(row["steps"] > 0 and row["scores"] for row in rows)
    assert "gp-nvdp" in nvdp_command("models", "--pretrained").stdout


def test_an_unknown_name_is_told_with_what_there_is():
    with pytest.raises(nvdp.InputError, match="'gpp'; did you mean 'gp'"):
        nvdp.load("gpp")


def test_a_loaded_model_does_not_touch_the_global_random_state():
    before = torch.get_rng_state()
    nvdp.load("gp")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_classifier_is_loaded_by_its_name():
    predictor = nvdp.load("omniglot")
    assert predictor.kind == "classification"
    strokes = torch.zeros(3, 2, 28, 28)  # upright, across and slanting, each at two places
    for place in range(2):
        strokes[0, place, 4:24, 10 + 3 * place : 12 + 3 * place] = 1
        strokes[1, place, 10 + 3 * place : 12 + 3 * place, 4:24] = 1
        strokes[2, place] = torch.eye(28).roll(3 * place, 0) + torch.eye(28).roll(3 * place + 1, 0)
    images = strokes.flatten(2)
    prediction = predictor.adapt(images[:, 0], [0, 1, 2]).predict(images[:, 1])
    assert prediction.top_class.tolist() == [0, 1, 2]
    assert 0 < predictor.card["scores"]["accuracy"] < 1
    with pytest.raises(nvdp.InputError, match="omniglot is a model of classification; NVDPRegressor is for regression"):
        nvdp.NVDPRegressor.from_pretrained("omniglot")


def test_a_folder_hides_a_pretrained_name_only_if_it_holds_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gp").mkdir()
    assert nvdp.load("gp").card["model"] == "nvdp-conv"
    (tmp_path / "gp").rmdir()
    shutil.copytree(WEIGHTS / "gp-nvdp", tmp_path / "gp")
    with pytest.warns(NameNote, match="'gp' is a folder with a run and also a pretrained model; the folder is used"):
        assert nvdp.load("gp").card["model"] == "nvdp"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nvdp.load("./gp").card["model"] == "nvdp"
    command = [sys.executable, "-m", "nvdp", "info", "gp"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0
    assert result.stderr == "note: 'gp' is a folder with a run and also a pretrained model; the folder is used\n"


def test_a_predictor_survives_pickling():
    predictor = nvdp.load("gp-nvdp")
    again = pickle.loads(pickle.dumps(predictor))
    x, y = [-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]
    assert torch.equal(again.adapt(x, y).predict([0.5]).mean, predictor.adapt(x, y).predict([0.5]).mean)
    assert (again.config, again.units, again.card) == (predictor.config, predictor.units, predictor.card)


def test_a_folder_of_another_version_or_a_damaged_one_is_refused(tmp_path):
    shutil.copytree(WEIGHTS / "gp-nvdp", tmp_path / "fit")
    about = {"version": 2, "units": Units.identity(1, 1).to_dict(), "columns": None, "report": {}}
    for changes, words in (
        ({"version": 1}, "written by version 0.1, which this version does not read"),
        ({"version": 3}, "format version 3; this nvdp reads 2"),
        ({"units": {"x_centre": [0.0]}}, "no units"),
        ({"columns": 5}, "is damaged"),
    ):
        (tmp_path / "fit" / "fit.json").write_text(json.dumps(about | changes))
        with pytest.raises(nvdp.InputError, match=words):
            nvdp.load(tmp_path / "fit")
    (tmp_path / "fit" / "fit.json").write_text("{")
    with pytest.raises(nvdp.InputError, match="is damaged"):
        nvdp.load(tmp_path / "fit")


def test_the_estimators_are_names_of_the_package_and_cost_nothing_until_used():
    code = (
        "import sys, nvdp; nvdp.load; print([m for m in ('sklearn', 'pandas') if m in sys.modules], nvdp.NVDPRegressor)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.startswith("[] <class 'nvdp.tables.regressor.NVDPRegressor'>"), result
