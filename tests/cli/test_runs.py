"""`nvdp runs` and `nvdp info`: what a folder holds, in every state."""

import json
import shutil
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from command_line import nvdp

from nvdp.cli.runs import _settings
from nvdp.data.tables import Columns
from nvdp.loading import Predictor, save_fit
from nvdp.models import config as model_config
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.tasks import PointSet, TaskBatch
from nvdp.training.checkpoint import Checkpoint, save_checkpoint, save_tensors
from nvdp.training.config import RunConfig, config_digest
from nvdp.training.presets import preset_config
from nvdp.training.pretrain import pretrain_config
from nvdp.training.pretraining_model import build_classifier
from nvdp.training.run_folder import only_process, save_model, start_run
from nvdp.units import Units

CONFIG = RunConfig(model=ModelConfig("cnp"), objective="likelihood", steps=40)
DIGEST = config_digest(CONFIG)
CONFIGS = (ModelConfig.__name__, ClassifierConfig.__name__)
LOG = "step,bound,LL,KL,rate,learning_rate,skipped,seconds\n10,1,-0.5,0,0,1e-3,0,1\n20,1,0.25,0,0,1e-3,0,2\n"


@pytest.fixture(scope="module")
def model():
    return build_model(CONFIG.model)


@pytest.fixture
def make_run(tmp_path, model):
    """A function (name, steps of the weights, steps of a checkpoint) -> the folder of a run with a log."""

    def make(name="run", weights=None, checkpoint=None):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(CONFIG.to_json())
        (folder / "log.csv").write_text(LOG)
        if weights is not None:
            save_model(folder, model, weights)
        if checkpoint is not None:
            save_checkpoint(folder / "checkpoint", Checkpoint(checkpoint, dict(model.state_dict()), {}), DIGEST)
        return folder

    return make


def told(folder, command="runs"):
    result = nvdp(command, folder, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def state(folder):
    """The state that both commands tell."""
    (row,) = told(folder)
    about = told(folder, "info")
    assert (about["state"], about["steps"], about["problem"]) == (row["state"], row["steps"], row["problem"])
    return row["state"], row["steps"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def test_runs_are_listed_by_name_with_their_last_log_likelihood(make_run, tmp_path):
    make_run("b/late", weights=40)
    make_run("a", checkpoint=20)
    rows = told(tmp_path / "runs")
    assert [(row["name"], row["state"], row["steps"], row["planned_steps"]) for row in rows] == [
        ("a", "stopped", 20, 40),
        ("b/late", "finished", 40, 40),
    ]
    assert all((row["model"], row["task"], row["LL"]) == ("cnp", "gp", 0.25) for row in rows)
    text = nvdp("runs", tmp_path / "runs").stdout
    assert "20 of 40" in text
    assert "0.250" in text


def test_a_run_that_saved_nothing_has_not_begun(make_run):
    assert state(make_run()) == ("not begun", 0)


def test_weights_of_fewer_steps_than_planned_are_not_finished(make_run):
    assert state(make_run(weights=30)) == ("stopped", 30)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="locks are listed on Linux alone")
def test_a_run_that_a_process_trains_is_running(make_run):
    folder = make_run(checkpoint=20)
    with only_process(folder):
        assert state(folder) == ("running", 20)
    assert state(folder) == ("stopped", 20)


def test_damaged_weights_are_damaged_and_not_finished(make_run):
    folder = make_run(weights=40)
    cut(folder / "model.safetensors")
    assert state(folder) == ("damaged", 0)
    assert "model.safetensors is damaged or cut short" in nvdp("info", folder).stdout
    assert "finished" not in nvdp("info", folder).stdout


def test_weights_of_another_model_are_damaged(make_run):
    folder = make_run(weights=40)
    (folder / "config.json").write_text(
        replace(CONFIG, model=ModelConfig("np+cnp"), objective="neural-process").to_json()
    )
    assert state(folder) == ("damaged", 0)


def test_a_run_whose_checkpoints_are_all_damaged_is_damaged(make_run):
    folder = make_run(checkpoint=20)
    cut(next((folder / "checkpoint").iterdir()))
    assert state(folder) == ("damaged", 0)


def test_a_run_whose_configuration_was_changed_is_damaged(make_run):
    folder = make_run(checkpoint=20)
    (folder / "config.json").write_text(replace(CONFIG, seed=5).to_json())
    assert state(folder) == ("damaged", 0)


def test_a_damaged_configuration_is_listed_and_refused_in_detail(make_run):
    folder = make_run(weights=40)
    (folder / "config.json").write_text("{")
    assert told(folder)[0]["state"] == "damaged"
    result = nvdp("info", folder)
    assert (result.returncode, result.stdout) == (2, "")


def test_an_extractor_is_listed_too(tmp_path):
    (tmp_path / "config.json").write_text(pretrain_config("omniglot-fewshot", steps=7).to_json())
    (row,) = told(tmp_path)
    assert (row["model"], row["task"], row["state"], row["planned_steps"]) == (
        "conv4",
        "omniglot-fewshot",
        "not begun",
        7,
    )


def test_an_extractor_is_told_with_its_accuracy_and_whether_its_features_are_there(tmp_path):
    (tmp_path / "config.json").write_text(pretrain_config("omniglot-fewshot", steps=7).to_json())
    begun = nvdp("info", tmp_path).stdout
    assert "extractor conv4 on omniglot-fewshot, 256 features of an image\nnot begun: 0 of 7 steps" in begun
    numbers = {"steps": 7, "seconds": 2.0, "nearest_mean_accuracy": 0.625}
    weights = dict(build_classifier(pretrain_config("omniglot-fewshot"), 1).extractor.state_dict())
    save_tensors(tmp_path / "extractor.safetensors", weights, numbers)
    text = nvdp("info", tmp_path).stdout
    assert "nearest class mean, all features, at most 5 validation classes, 1-shot: 62.5%" in text
    assert f"its features cannot be used: {tmp_path} holds no features; make them with `nvdp pretrain" in text
    about = told(tmp_path, "info")
    assert (about["state"], about["seconds"], about["settings"]["batch"]) == ("finished", 2.0, 256)


def test_a_run_whose_extractor_was_changed_or_is_missing_is_not_damaged(tmp_path):
    extractor, run = tmp_path / "extractor", tmp_path / "runs" / "on-features"
    described = {"task": "omniglot-fewshot", "features": 8, "origin": "first", "splits": {}}
    (extractor / "features").mkdir(parents=True)
    (extractor / "features" / "classes.json").write_text(json.dumps(described))
    config = preset_config("omniglot-fewshot", "cnp", "quick", features=str(extractor), steps=40)
    start_run(run, config, resume=False)
    assert state(run) == ("not begun", 0)
    save_model(run, build_model(config.model), 40)
    assert state(run) == ("finished", 40)
    (extractor / "features" / "classes.json").write_text(json.dumps(described | {"origin": "second"}))
    assert state(run) == ("extractor changed", 40)
    assert f"on-features: its extractor {extractor} was changed: it had features" in nvdp("runs", run.parent).stdout
    (extractor / "features" / "classes.json").write_text("{")
    assert state(run) == ("extractor damaged", 40)
    assert f"{extractor / 'features' / 'classes.json'} is damaged" in nvdp("info", run).stdout
    (extractor / "features" / "classes.json").write_text(json.dumps(described | {"task": "other", "origin": "third"}))
    assert state(run) == ("extractor changed", 40)
    shutil.rmtree(extractor / "features")
    assert f"its extractor {extractor} holds no features" in nvdp("info", run).stdout
    extractor.rmdir()
    assert state(run) == ("extractor missing", 40)
    assert f"its extractor {extractor} is missing" in nvdp("runs", run.parent).stdout
    cut(run / "model.safetensors")
    assert state(run) == ("damaged", 0)
    (run / "features.json").write_text('["first", "second"]')
    assert "features.json tells of 2 extractors, config.json of 1" in nvdp("info", run).stdout


def test_a_folder_without_runs_is_said_and_a_missing_one_refused(tmp_path):
    assert nvdp("runs", tmp_path).stdout == f"no runs below {tmp_path}\n"
    assert nvdp("runs", tmp_path / "none").returncode == 2


def test_a_pretrained_name_is_told_with_its_scores():
    about = told("gp-nvdp", "info")
    assert (about["name"], about["model"], about["state"], about["LL"]) == ("gp-nvdp", "nvdp", "finished", None)
    assert about["parameters"] > 100_000
    assert about["scores"].keys() == {"LL", "RLL", "PLL"}
    assert f"LL: {about['scores']['LL']:.4g}" in nvdp("info", "gp-nvdp").stdout


def test_a_fitted_model_is_told_with_its_scores_and_may_have_ended_early(tmp_path, model):
    config = replace(CONFIG, task="csv")
    fitted = Predictor(model, Units.identity(1, 1), config, Columns("tree", ("day",), ("size",)))
    save_fit(tmp_path / "trees", fitted, 30, {"steps": 30, "scores": {"cnp": {"LL": 0.5, "RMSE": 0.25}}})
    assert state(tmp_path / "trees") == ("finished", 30)
    told = nvdp("info", tmp_path / "trees").stdout
    assert "cnp: LL 0.5, RMSE 0.25" in told
    assert "finished: 30 steps\n" in told


@pytest.fixture
def read(monkeypatch):
    """The settings that are read by code outside of nvdp.models.config and its checks, as (class, name)."""
    found = set()

    def watch(kind):
        names, get = {field.name for field in fields(kind)}, kind.__getattribute__

        def watched(self, name):
            caller = sys._getframe(1).f_code.co_filename
            if name in names and not caller.endswith(("dataclasses.py", "config.py", "settings.py")):
                found.add((kind.__name__, name))
            return get(self, name)

        monkeypatch.setattr(kind, "__getattribute__", watched)

    for kind in vars(model_config).values():
        if isinstance(kind, type) and is_dataclass(kind):
            watch(kind)
    return found


KINDS = [(name, kind) for name, spec in MODELS.items() for kind in spec.tasks]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_only_settings_that_a_model_reads_are_told(name, kind, read):
    """Part by part: those told are read. Within a part of regression, those not told are not read."""
    if kind == "regression":
        config = RunConfig(model=ModelConfig(name))
        points = PointSet(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1), torch.ones(2, 3, dtype=torch.bool))
        model = build_model(config.model)
        tasks = TaskBatch.first_points_as_context(points.x, points.y, 2)
        model.adapt(points).expected_log_likelihood(model.scored(tasks))
    else:
        config = preset_config("omniglot-fewshot", name, "quick")
        images = torch.rand(5, 784)
        build_model(config.model).adapt(images, torch.arange(5)).predict(images)
    used = set(read)
    told = _settings(config)["model"]
    parts = {field.name for field in fields(config.model) if is_dataclass(getattr(config.model, field.name))}
    assert {part for part in parts if part in told} == {n for c, n in used if c in CONFIGS and n in parts}
    if kind == "regression":
        for part in (parts & set(told)) - {"inputs"}:  # which is read through its own properties, by all models
            assert set(told[part]) == {n for c, n in used if c == type(getattr(config.model, part)).__name__}
