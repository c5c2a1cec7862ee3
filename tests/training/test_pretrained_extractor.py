"""Classifiers of images with the convolutions of a pretrained extractor: trained further, or joined as they are."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from nvdp.data.episodes import class_source
from nvdp.data.source import DataConfig
from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.training.distributed import Machine
from nvdp.training.loop import initial_model
from nvdp.training.presets import preset_config
from nvdp.training.pretrain import pretrain, pretrain_config
from nvdp.training.pretrained_extractor import EXTRACTOR, join_extractor, load_extractor
from nvdp.training.run import train
from nvdp.training.run_folder import load_any_run, save_model, start_run

TASK = "folder-of-classes"
QUIET = {"threads": 1, "device": "cpu", "said": lambda line: None}
METHODS = ("nvdp", "cnp", "versa", "protonet", "matching", "maml", "meta-sgd", "meta-dropout")


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch):
    monkeypatch.setattr("nvdp.training.pretrain.VALIDATION_EPISODES", 4)


@pytest.fixture(scope="module")
def data(class_folder):
    return DataConfig(str(class_folder), 16)


@pytest.fixture(scope="module")
def extractor(data, tmp_path_factory):
    """A pretrained extractor without views."""
    out = tmp_path_factory.mktemp("extractors") / "one"
    config = pretrain_config(TASK, data, steps=4, batch=32, views="image", learning_rate=0.05)
    pretrain(config, out, **QUIET)
    return str(out)


def fine_tuned(model, extractor, data, **changes):
    return preset_config(TASK, model, "quick", data=data, extractor=extractor, **changes)


@pytest.mark.parametrize("model", METHODS)
def test_every_method_begins_with_the_convolutions_of_the_extractor(model, extractor, data, generator):
    config = fine_tuned(model, extractor, data)
    assert (config.start, config.episodes.regime) == (extractor, "fine-tuned")
    built = initial_model(config).eval()
    if model in ("maml", "meta-sgd", "meta-dropout"):
        weights = load_file(Path(extractor) / EXTRACTOR)
        for index in range(4):
            for own, theirs in (("weight", "weight"), ("scale", "scale"), ("bias", "shift")):
                assert torch.equal(built.network.initial[f"conv{index}_{own}"], weights[f"blocks.{index}.{theirs}"])
    else:
        images = torch.rand(2, 3, 256, generator=generator)
        features = load_extractor(Path(extractor), "cpu")[0](images.flatten(0, 1)).unflatten(0, (2, 3))
        torch.testing.assert_close(built.embed(images), F.layer_norm(features, features.shape[-1:]))


@pytest.mark.parametrize("model", ["nvdp", "maml"])
def test_training_changes_the_convolutions_and_the_run_needs_no_other_folder(model, extractor, data, tmp_path):
    config = fine_tuned(model, extractor, data, steps=2, warmup_steps=0, learning_rate=1e-3)
    train(config, tmp_path / "run", machine=Machine("cpu", threads=1))
    saved, trained, _ = load_any_run(tmp_path / "run")
    assert RunConfig.load(tmp_path / "run" / "config.json") == saved == config
    first = load_file(Path(extractor) / EXTRACTOR)["blocks.0.weight"]
    own = trained.network.initial["conv0_weight"] if model == "maml" else trained.extractor.blocks[0].weight
    assert not torch.equal(own, first)
    assert torch.allclose(own, first, atol=0.1)  # by small steps


@pytest.mark.parametrize("every", [10, 1])  # killed before and after the first checkpoint
def test_a_fine_tuned_run_goes_on_without_its_extractor(extractor, data, tmp_path, every):
    copy = shutil.copytree(extractor, tmp_path / "extractor")
    config = fine_tuned("protonet", str(copy), data, steps=2, warmup_steps=0, checkpoint_every=every)
    for name in ("whole", "killed"):
        train(config, tmp_path / name, machine=Machine("cpu", threads=1))
    max((tmp_path / "killed" / "checkpoint").iterdir()).unlink()
    (tmp_path / "killed" / "model.safetensors").unlink()
    shutil.rmtree(copy)
    train(config, tmp_path / "killed", resume=True, machine=Machine("cpu", threads=1))
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_an_extractor_for_other_images_is_refused(extractor, data, tmp_path):
    with pytest.raises(InputError, match="pretrained on images of 16×16×1; those of folder-of-classes are 20×20×1"):
        fine_tuned("cnp", extractor, replace(data, size=20))
    with pytest.raises(InputError, match="exclude each other"):
        fine_tuned("cnp", extractor, data, features=extractor)
    config = fine_tuned("cnp", extractor, data, architecture={"extractor.channels": 3})
    with pytest.raises(InputError, match="holds a conv4 for 1 channels; the model has a conv4 for 3"):
        initial_model(config)
    with pytest.raises(InputError, match="the regime fine-tuned is given no start; expected a pretrained extractor"):
        replace(fine_tuned("cnp", extractor, data), start=None)
    with pytest.raises(InputError, match="absent"):
        fine_tuned("cnp", str(tmp_path / "absent"), data)


@pytest.mark.parametrize(("model", "components"), [("nvdp", None), ("nvdp", 7), ("versa", None), ("cnp", 5)])
def test_a_joined_run_answers_for_images_as_the_run_on_features_does_for_features(data, tmp_path, model, components):
    made = pretrain_config(TASK, data, steps=6, batch=32, components=components)
    pretrain(made, tmp_path / "extractor", **QUIET)
    features = str(tmp_path / "extractor")
    on_features = preset_config(
        made.task, model, "quick", way=3, shot=2, queries=4, data=made.data, features=features, steps=2, warmup_steps=0
    )
    start_run(tmp_path / "run", on_features, resume=False)
    head = build_model(on_features.model).eval()
    save_model(tmp_path / "run", head, 2)
    join_extractor(tmp_path / "run", tmp_path / "whole")
    joined, whole, step = load_any_run(tmp_path / "whole")
    assert (joined.episodes.regime, joined.episodes.features, step) == ("joined", None, 2)
    extract, _ = load_extractor(tmp_path / "extractor", "cpu")
    vectors = (
        class_source(made.task, made.data).split("test").vectors(np.arange(3), np.arange(6).repeat(3).reshape(6, 3).T)
    )
    support, labels, queries = (
        vectors[:, :2].flatten(0, 1),
        torch.arange(3).repeat_interleave(2),
        vectors[:, 2:].flatten(0, 1),
    )
    by_features = head.adapt(extract(support), labels).predict(extract(queries))
    by_images = whole.adapt(support, labels).predict(queries)
    assert torch.allclose(by_features.probabilities, by_images.probabilities, atol=1e-5)
    with pytest.raises(InputError, match="already holds a run"):
        join_extractor(tmp_path / "run", tmp_path / "whole")
    with pytest.raises(InputError, match="was trained on images, so it has its extractor already"):
        join_extractor(tmp_path / "whole", tmp_path / "again")
    with pytest.raises(InputError, match="holds a model and no checkpoint to resume from"):
        start_run(tmp_path / "whole", joined, resume=True)
