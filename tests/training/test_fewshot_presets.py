import json

import pytest

from nvdp.errors import InputError
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.training.config import RunConfig
from nvdp.training.preset_rules import FEWSHOT_PRESETS
from nvdp.training.presets import preset_config

NAMES = [name for name, spec in MODELS.items() if "classification" in spec.tasks]


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("preset", FEWSHOT_PRESETS)
@pytest.mark.parametrize(("task", "way", "shot"), [("omniglot-fewshot", 20, 5), ("miniimagenet", 5, 1)])
def test_every_preset_comes_back_from_json_as_it_went_in(tmp_path, task, way, shot, model, preset):
    config = preset_config(task, model, preset, way=way, shot=shot, seed=3)
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    again = RunConfig.load(path)
    assert again == config
    assert again.to_json() == config.to_json()
    assert isinstance(again.model, ClassifierConfig)
    assert (config.model.num_classes, config.episodes.way, config.episodes.shot, config.seed) == (way, way, shot, 3)
    assert config.objective == MODELS[model].objective


@pytest.mark.parametrize(
    ("task", "way", "shot", "expected"),
    [
        ("omniglot-fewshot", 5, 1, (80_000, 16, 1e-4)),
        ("omniglot-fewshot", 20, 1, (100_000, 16, 1e-4)),
        ("miniimagenet", 5, 5, (100_000, 4, 1e-4)),
        ("miniimagenet", 5, 1, (50_000, 8, 2.5e-4)),
    ],
)
def test_the_papers_training_is_versas(task, way, shot, expected):
    config = preset_config(task, "nvdp", "paper", way=way, shot=shot)
    assert (config.steps, config.tasks_per_step, config.learning_rate) == expected
    assert (config.episodes.queries, config.model.extractor.features, config.model.decoder.width) == (15, 256, 512)
    assert (config.model.meta.width, config.model.meta.layers) == (256, 2)


def test_on_cached_features_the_model_has_no_extractor():
    config = preset_config("miniimagenet", "protonet", features="some-extractor")
    assert (config.model.extractor.name, config.model.x_dim, config.episodes.regime) == ("none", 256, "features")


def test_names_that_are_not_there_are_told_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'miniimagenet'"):
        preset_config("miniimagnet", "nvdp")
    with pytest.raises(InputError, match="unknown preset 'released'"):
        preset_config("miniimagenet", "nvdp", "released")
    with pytest.raises(InputError, match="np is not for classification"):
        preset_config("miniimagenet", "np")
    with pytest.raises(InputError, match="versa is not for regression"):
        preset_config("gp", "versa", "quick")


def test_an_unknown_setting_of_a_classifier_is_refused_by_name(tmp_path):
    values = json.loads(preset_config("miniimagenet", "cnp").to_json())
    values["model"]["decodre"] = 3
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="model: unknown key 'decodre'; did you mean 'decoder'"):
        RunConfig.load(path)


def test_building_every_preset_is_possible():
    for name in NAMES:
        model = build_model(preset_config("omniglot-fewshot", name).model)
        assert sum(parameter.numel() for parameter in model.parameters()) > 100_000
