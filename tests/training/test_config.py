import dataclasses
import json

import pytest

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.preset_rules import PRESETS
from nvdp.training.presets import preset_config

NAMES = [name for name, spec in MODELS.items() if "regression" in spec.tasks]


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["gp", "trig"])
def test_every_preset_comes_back_from_json_as_it_went_in(tmp_path, task, model, preset):
    config = preset_config(task, model, preset, seed=7, kl=KLScale("text", 0.25))
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    assert RunConfig.load(path) == config
    assert (config.task, config.model.name, config.preset, config.seed) == (task, model, preset, 7)


@pytest.mark.parametrize("model", NAMES)
def test_a_preset_trains_a_model_with_its_own_objective_and_variance(model):
    config = preset_config("gp", model, "paper", "fixed")
    assert config.objective == MODELS[model].objective
    assert config.model.likelihood.variance == "fixed"
    assert (config.steps, config.learning_rate, config.tasks_per_step) == (500_000, 5e-4, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stepz": 3}, "unknown key 'stepz'; did you mean 'steps'"),
        ({"model": {"decodre": 3}}, "model: unknown key 'decodre'; did you mean 'decoder'"),
        ({"kl": {"wait": 3}}, "kl: unknown key 'wait'; did you mean 'weight'"),
        ({"steps": 0}, "'steps' is 0"),
        ({"tasks_per_step": -1}, "'tasks_per_step' is -1"),
        ({"log_every": 0}, "'log_every' is 0"),
        ({"checkpoint_every": 0}, "'checkpoint_every' is 0"),
        ({"learning_rate": 0.0}, "'learning_rate' is 0.0"),
        ({"warmup_steps": -5}, "'warmup_steps' is -5"),
        ({"gradient_clip": 0.0}, "'gradient_clip' is 0.0"),
        ({"schedule": "linear"}, "'linear'"),
        ({"objective": "elbow"}, "'elbow'"),
        ({"task": "gpp"}, "unknown task 'gpp'; did you mean 'gp'"),
        ({"model": {"name": "nvpd"}}, "'nvpd'; did you mean 'nvdp'"),
        ({"model": {"likelihood": {"variance": "free"}}}, "'free'"),
        ({"model": {"decoder": {"widht": 3}}}, "model: decoder: unknown key 'widht'; did you mean 'width'"),
        ({"model": {"decoder": 3}}, "setting 'decoder' is '3'; expected a group of settings"),
        ({"model": {"decoder": {"width": 0}}}, "'decoder.width' is 0"),
        ({"kl": {"reduction": "mean"}}, "'mean'"),
        ({"kl": {"weight": -0.5}}, "-0.5"),
        ({"version": 99}, "version 99"),
        ({"version": 1}, r"config\.json was written by version 0\.1"),
    ],
)
def test_a_bad_setting_is_refused_by_name_when_read(tmp_path, change, words):
    values = dataclasses.asdict(RunConfig())
    for name, value in change.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=words):
        RunConfig.load(path)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        RunConfig.load(path)


def test_a_folder_without_a_run_is_told_apart(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path} holds no run"):
        RunConfig.load(tmp_path / "config.json")


def test_an_unknown_preset_is_told_with_its_nearest():
    with pytest.raises(InputError, match="did you mean 'quick'"):
        preset_config("gp", "nvdp", "quik")


def test_the_default_architecture_is_the_papers():
    config = ModelConfig()
    assert (config.decoder.width, config.decoder.layers, config.encoder.size, config.decoder.latent) == (
        128,
        4,
        128,
        128,
    )
    assert (config.encoder.layers, config.likelihood.min_std, config.rates.floor) == (6, 0.1, 0.01)
