"""Pretraining: it learns, goes on bit for bit, and what it caches is what its extractor says."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from nvdp.data import class_pools as fewshot_folder
from nvdp.data import features as feature_cache
from nvdp.data.class_pools import ClassPool
from nvdp.data.episodes import EpisodeConfig, class_source
from nvdp.data.features import CachedFeatures, concatenated
from nvdp.data.source import DataConfig
from nvdp.errors import InputError
from nvdp.images.classify import PictureClassifier
from nvdp.models.registry import build_model
from nvdp.training.checkpoint import load_tensors, save_tensors
from nvdp.training.config import PretrainConfig
from nvdp.training.nearest_mean import nearest_mean_accuracy
from nvdp.training.presets import preset_config
from nvdp.training.pretrain import pretrain, pretrain_config, timed
from nvdp.training.pretrained_extractor import EXTRACTOR, extractor_numbers, join_extractor, load_extractor
from nvdp.training.pretraining_images import TrainingImages
from nvdp.training.pretraining_model import ClassificationStep, build_classifier
from nvdp.training.run_folder import load_any_run, only_process, save_model, start_run

QUIET = {"threads": 1, "device": "cpu", "said": lambda line: None}


@pytest.fixture(scope="module")
def folder(class_folder):
    return class_folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NVDP_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("nvdp.training.pretrain.VALIDATION_EPISODES", 4)
    fewshot_folder._split.cache_clear()
    feature_cache._pool.cache_clear()
    feature_cache._joint_pool.cache_clear()


def config(folder, **changes):
    settings = {"steps": 6, "batch": 32, "checkpoint_every": 2, "learning_rate": 0.05}
    return pretrain_config("folder-of-classes", DataConfig(str(folder), 16), **(settings | changes))


def test_cached_features_are_the_extractors_and_are_made_again_when_damaged(folder, tmp_path):
    made = config(folder)
    assert (made.extractor, made.features, made.channels) == ("conv4", 64, 1)
    assert pretrain(made, tmp_path / "out", **QUIET) is None
    extract, _ = load_extractor(tmp_path / "out", "cpu")
    source = class_source(made.task, made.data)
    cached = CachedFeatures(source, str(tmp_path / "out"))
    assert cached.features == 64
    for split in ("train", "validation", "test"):
        images, features = source.split(split), cached.split(split)
        assert list(images.names) == list(features.names)
        for index in (0, images.classes - 1):
            places = np.arange(18)
            expected = extract(images.vectors(np.array(index), places))
            assert torch.allclose(features.vectors(np.array(index), places), expected, atol=1e-5)
    path = tmp_path / "out" / "features" / "test.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    feature_cache._pool.cache_clear()
    with pytest.raises(InputError, match=r"test\.npy is missing, damaged or of other weights"):
        cached.split("test")
    pretrain(made, tmp_path / "out", resume=True, **QUIET)
    assert path.read_bytes() == whole


def test_features_are_means_over_views_and_follow_a_change_of_them(folder, tmp_path):
    pretrain(config(folder, views="image"), tmp_path / "out", **QUIET)
    extract, _ = load_extractor(tmp_path / "out", "cpu")
    with_views = config(folder)
    assert with_views.views == "moved"
    pretrain(with_views, tmp_path / "views", **QUIET)
    one, other = (load_file(tmp_path / name / EXTRACTOR) for name in ("out", "views"))
    assert all(torch.equal(one[name], other[name]) for name in one)  # training does not see them
    (tmp_path / "out" / "config.json").write_text(with_views.to_json())
    pretrain(with_views, tmp_path / "out", resume=True, **QUIET)
    source, places = class_source(with_views.task, with_views.data), np.arange(18)
    vectors = source.split("test").vectors(np.array(0), places)
    images = F.pad(vectors.view(-1, 1, 16, 16), (1, 1, 1, 1), mode="replicate")
    corners = [(1, 1), (0, 0), (0, 2), (2, 0), (2, 2)]
    expected = sum(extract(images[:, :, r : r + 16, c : c + 16].flatten(1)) for r, c in corners) / 5
    made = CachedFeatures(source, str(tmp_path / "out")).split("test").vectors(np.array(0), places)
    assert torch.allclose(made, expected, atol=1e-5)


def test_components_keep_the_largest_part_of_features_and_follow_a_change_of_settings(folder, tmp_path):
    whole, out = config(folder), tmp_path / "out"
    pretrain(whole, out, **QUIET)
    source, places = class_source(whole.task, whole.data), np.arange(18)
    cached, trained = CachedFeatures(source, str(out)), load_file(out / EXTRACTOR)
    before = cached.split("test").vectors(np.array(0), places)
    learned = F.normalize(torch.tensor(cached.split("train").points), dim=-1)
    best = torch.linalg.svdvals(learned).square()
    for components in (63, 5):
        reduced = config(folder, components=components)
        (out / "config.json").write_text(reduced.to_json())
        pretrain(reduced, out, resume=True, **QUIET)
        feature_cache._pool.cache_clear()
        after = cached.split("test").vectors(np.array(0), places)
        projection = load_file(out / EXTRACTOR)["projection"]
        assert torch.allclose(projection.mT @ projection, torch.eye(components), atol=1e-5)
        assert torch.allclose(after, before @ projection, atol=1e-4)
        assert torch.isclose((learned @ projection).square().sum(), best[:components].sum(), rtol=1e-3)
        if components == 63:
            cosines = [F.normalize(each, dim=-1) @ F.normalize(each, dim=-1).mT for each in (before, after)]
            assert torch.allclose(*cosines, atol=0.01)
    other = config(folder, components=5, views="warped")
    (out / "config.json").write_text(other.to_json())
    pretrain(other, out, resume=True, **QUIET)
    pretrain(other, tmp_path / "fresh", **QUIET)
    resumed, fresh = (load_file(place / EXTRACTOR)["projection"] for place in (out, tmp_path / "fresh"))
    assert torch.allclose(resumed, fresh, atol=1e-4)  # of the new views, not of those before
    assert not torch.allclose(resumed, projection, atol=1e-4)
    assert preset_config(whole.task, "cnp", data=whole.data, features=str(out)).model.extractor.features == 5
    (out / "config.json").write_text(whole.to_json())
    pretrain(whole, out, resume=True, **QUIET)
    again = load_file(out / EXTRACTOR)
    assert again.keys() == trained.keys()
    assert all(torch.equal(again[name], trained[name]) for name in trained)
    with pytest.raises(InputError, match="setting 'components' is 64; expected from 1 to 63"):
        config(folder, components=64)
    assert timed(config(folder, components=5, objective="classes"), 0.01, "32-true").components == 5


def test_a_change_of_components_that_was_killed_half_way_is_told(folder, tmp_path):
    pretrain(config(folder, components=5), tmp_path / "out", **QUIET)
    (tmp_path / "out" / "config.json").write_text(config(folder, components=5, views="warped").to_json())
    with pytest.raises(InputError, match="and views of 5, moved; its configuration asks for 5, warped: `nvdp"):
        load_extractor(tmp_path / "out")


def test_an_extractor_for_larger_images_is_refused(folder):
    with pytest.raises(InputError, match="'conv5-wide', which has no features of images of 16×16; expected conv4"):
        config(folder, extractor="conv5-wide")


def test_a_refused_change_of_components_changes_nothing(folder, tmp_path, monkeypatch):
    out, few = tmp_path / "out", 4
    pretrain(config(folder, components=3), out, **QUIET)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(ClassPool, "class_counts", property(lambda pool: np.array([few // 2, few // 2])))
    with pytest.raises(InputError, match=f"'components' is 5; expected at most {few}, the training images"):
        pretrain(config(folder, components=5), out, resume=True, **QUIET)
    monkeypatch.setattr(ClassPool, "class_counts", property(lambda pool: np.array([few])))
    with pytest.raises(InputError, match="there are 1 training classes; expected at least 2"):
        pretrain(config(folder, components=2), out, resume=True, **QUIET)
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.undo()
    with only_process(out), pytest.raises(InputError, match="is being trained by another process"):
        pretrain(config(folder, components=4), out, resume=True, **QUIET)
    assert {path: path.read_bytes() for path in before} == before


def test_features_of_two_extractors_are_concatenated(folder, tmp_path):
    names = [str(tmp_path / name) for name in ("first", "second")]
    for seed, name in enumerate(names):
        pretrain(config(folder, seed=seed), Path(name), **QUIET)
    made = config(folder)
    source, places = class_source(made.task, made.data), np.arange(18)
    both = CachedFeatures(source, ",".join(names))
    assert both.features == both.split("test").features == 128
    unlike = concatenated([torch.ones(1, 2), torch.ones(1, 6)])  # parts of other widths weigh the same
    assert torch.allclose(unlike[:, :2].norm(), unlike[:, 2:].norm())
    given = both.split("validation").vectors(np.array(1), places)
    parts = [CachedFeatures(source, name).split("validation").vectors(np.array(1), places) for name in names]
    assert torch.allclose(given, torch.cat([8 * F.normalize(part, dim=-1) for part in parts], dim=-1), atol=1e-5)
    shape = {"way": 3, "shot": 2, "queries": 4, "data": made.data, "features": ",".join(names)}
    on_both = preset_config(made.task, "nvdp", "quick", steps=2, warmup_steps=0, **shape)
    start_run(tmp_path / "run", on_both, resume=False)
    save_model(tmp_path / "run", build_model(on_both.model).eval(), 2)
    images = source.split("validation").vectors(np.array(1), places)
    assert torch.allclose(PictureClassifier.load(tmp_path / "run").inputs(images), given, atol=1e-4)
    with pytest.raises(InputError, match="features of 2 extractors; joining takes one"):
        join_extractor(tmp_path / "run", tmp_path / "whole")
    described = tmp_path / "second" / "features" / "classes.json"
    values = json.loads(described.read_text())
    values["splits"]["test"]["names"][0] = "another"
    described.write_text(json.dumps(values))
    feature_cache._pool.cache_clear()
    feature_cache._joint_pool.cache_clear()
    with pytest.raises(InputError, match=r"has other test classes than .*; expected features of the same images"):
        both.split("test")
    for wrong in (f"{names[0]},{names[0]}", f"{names[0]},"):
        with pytest.raises(InputError, match="expected folders of different extractors"):
            CachedFeatures(source, wrong).split("test")


def test_a_run_on_features_refuses_another_extractor_in_the_place_of_its_own(folder, tmp_path):
    pretrain(config(folder), tmp_path / "extractor", **QUIET)
    made = config(folder)
    shape = {"way": 3, "shot": 2, "queries": 4, "data": made.data, "features": str(tmp_path / "extractor")}
    on_features = preset_config(made.task, "cnp", "quick", steps=2, warmup_steps=0, **shape)
    start_run(tmp_path / "run", on_features, resume=False)
    save_model(tmp_path / "run", build_model(on_features.model).eval(), 2)
    load_any_run(tmp_path / "run")
    described = tmp_path / "extractor" / "config.json"
    described.write_text(config(folder, views="image").to_json())  # the features are still those of the run
    load_any_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"whose extractor gives .* now"):
        PictureClassifier.load(tmp_path / "run")
    (tmp_path / "extractor").rename(tmp_path / "kept")
    load_any_run(tmp_path / "run")  # its weights are its own
    pretrain(config(folder, seed=1), tmp_path / "extractor", **QUIET)
    for use in (lambda run: load_any_run(run), lambda run: start_run(run, on_features, resume=True)):
        with pytest.raises(InputError, match=r"was changed: it had features .* put the earlier one back"):
            use(tmp_path / "run")
    path = tmp_path / "run" / "features.json"
    for text, said in (("[1", "is damaged"), ("[1]", "is damaged"), ("[]", "tells of 0 extractors, config.json of 1")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            load_any_run(tmp_path / "run")
    path.unlink()
    with pytest.raises(InputError, match=r"does not say which features it was trained on \(no features.json\)"):
        load_any_run(tmp_path / "run")


def test_a_finished_extractor_is_not_trained_again_and_a_damaged_one_is_restored(folder, tmp_path, monkeypatch):
    made = config(folder)
    pretrain(made, tmp_path / "out", **QUIET)
    path = tmp_path / "out" / EXTRACTOR
    before, whole = {name: tensor.clone() for name, tensor in load_file(path).items()}, path.read_bytes()
    path.write_bytes(whole[:-5])
    pretrain(made, tmp_path / "out", resume=True, **QUIET)
    after = load_file(path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    shutil.rmtree(tmp_path / "out" / "checkpoint")
    shutil.rmtree(tmp_path / "out" / "features")
    monkeypatch.setattr("nvdp.training.pretrain._trained", lambda *given: pytest.fail("trained again"))
    pretrain(made, tmp_path / "out", resume=True, **QUIET)
    assert (tmp_path / "out" / "features" / "test.npy").exists()


def test_an_interrupted_training_goes_on_bit_for_bit(folder, tmp_path):
    made = config(folder, flips=True)
    pretrain(made, tmp_path / "whole", **QUIET)
    pretrain(made, tmp_path / "parts", **QUIET)
    (tmp_path / "parts" / EXTRACTOR).unlink()
    (tmp_path / "parts" / "checkpoint" / "step-000000006.safetensors").unlink()  # as if it had died after step 4
    pretrain(made, tmp_path / "parts", resume=True, **QUIET)
    whole, parts = (load_file(tmp_path / name / EXTRACTOR) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_same_seed_gives_the_same_bytes_and_seconds_are_beside_them(folder, tmp_path):
    for name in ("one", "other"):
        pretrain(config(folder, components=5), tmp_path / name, **QUIET)
    for file in (EXTRACTOR, "images.json", *(f"features/{split}.npy" for split in ("train", "validation", "test"))):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    numbers = extractor_numbers(tmp_path / "one")
    assert (numbers["steps"], numbers["seconds"] > 0) == (6, True)
    (tmp_path / "one" / "extractor.json").unlink()
    assert extractor_numbers(tmp_path / "one")["seconds"] is None
    tensors, _ = load_tensors(tmp_path / "one" / EXTRACTOR)
    save_tensors(tmp_path / "one" / EXTRACTOR, tensors, numbers)  # as earlier versions did
    assert extractor_numbers(tmp_path / "one")["seconds"] == numbers["seconds"]


def test_pretrained_features_tell_new_classes_apart_better_than_random_ones(folder, tmp_path):
    made = config(folder, steps=80, learning_rate=0.1, checkpoint_every=1_000)
    pretrain(made, tmp_path / "out", **QUIET)
    validation = class_source(made.task, made.data).split("validation")
    shape = EpisodeConfig(5, 1, 15)
    untrained = build_classifier(made, 2).eval()
    before = nearest_mean_accuracy(validation, untrained.features, shape, 30)
    after = nearest_mean_accuracy(validation, load_extractor(tmp_path / "out", "cpu")[0], shape, 30)
    assert after > before + 0.1
    assert after > 0.6


def test_an_epoch_shows_every_image_once_and_flips_mirror(folder):
    made = config(folder, batch=36)
    images = TrainingImages(class_source(made.task, made.data).split("train"), made)
    classes = torch.cat([images.batch(step)[1] for step in range(14)])
    assert torch.bincount(classes).tolist() == [18] * 28
    plain, flipped = images.batch(0)[0], TrainingImages(images.pool, replace(made, flips=True)).batch(0)[0]
    mirrored = plain.view(36, 16, 16).flip(-1).reshape(36, -1)
    same, turned = (flipped == plain).all(-1), (flipped == mirrored).all(-1)
    assert (same | turned).all()
    assert 8 < turned.sum() < 28


def test_minutes_become_steps_and_bad_settings_are_told(folder, tmp_path):
    assert timed(config(folder), 0.05, "32-true").steps > 1
    with pytest.raises(InputError, match="unknown head 'cosin'; did you mean 'cosine'"):
        config(folder, head="cosin")
    with pytest.raises(InputError, match="holds no extractor"):
        load_extractor(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json was written by version 0\.1"):
        PretrainConfig.load(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"steps had a bound or gradient that is not finite; lower the learning rate"):
        pretrain(config(folder, learning_rate=1e20, steps=20), tmp_path / "wild", **QUIET)


def test_a_step_of_episodes_has_whole_classes_once_each_and_is_the_same_each_time(folder):
    made = config(folder, objective="episodes", per_class=3, batch=32, warps=0.2)
    images = TrainingImages(class_source(made.task, made.data).split("train"), made)
    vectors, classes = images.batch(3)
    assert classes.shape == (30,)
    assert (classes.view(10, 3) == classes.view(10, 3)[:, :1]).all()
    assert len(classes.unique()) == 10
    assert torch.equal(vectors, images.batch(3)[0])
    assert not torch.equal(classes, images.batch(4)[1])
    plain = TrainingImages(images.pool, replace(made, warps=0.0)).batch(3)[0]
    assert len(plain.unique(dim=0)) == 30  # no image twice


def test_queries_of_an_episode_are_classified_by_the_nearest_support_image(folder):
    made = config(folder, objective="episodes", per_class=3)
    model = build_classifier(made, 28).eval()
    model.features = lambda vectors: vectors
    vectors = torch.tensor([[2.0, 0], [1, 0.1], [0, 3], [0, 1], [0.1, 5], [0.2, 1]])
    logits, labels = model(vectors, torch.tensor([7, 7, 7, 3, 3, 3]))
    assert logits.argmax(-1).tolist() == [0, 1, 1, 1]  # the support images are the first and the fourth
    assert labels.tolist() == [0, 0, 1, 1]
    assert logits[0, 0].item() == pytest.approx(10 / 1.01**0.5)
    score = ClassificationStep(model)(vectors, torch.tensor([7, 7, 7, 3, 3, 3]))
    expected = torch.log_softmax(logits, -1)[torch.arange(4), labels].mean()
    assert score["bound"].item() == pytest.approx(expected.item())


def test_episodes_need_images_enough(folder, tmp_path):
    with pytest.raises(InputError, match="'per_class' and 'batch' are 20 and 32; expected from 2 to 16"):
        config(folder, objective="episodes", per_class=20)
    with pytest.raises(InputError, match="'head' is 'linear', but episodes have no head"):
        config(folder, objective="episodes", head="linear")
    with pytest.raises(InputError, match=r"'warps' is 0\.6; expected from 0 to 0\.5"):
        config(folder, warps=0.6)
    with pytest.raises(InputError, match=r"'per_class' is 19, but class '.*' has 18 training images"):
        pretrain(config(folder, objective="episodes", per_class=19, batch=64), tmp_path / "out", **QUIET)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_time_between_versions_are_read_where_they_changed_nothing(folder, tmp_path):
    path = tmp_path / "config.json"
    values = json.loads(config(folder).to_json())
    path.write_text(json.dumps(values | {"mixup": 0.0, "half_share": 0.0}))
    assert PretrainConfig.load(path) == config(folder)
    path.write_text(json.dumps(values | {"mixup": 0.2}))
    with pytest.raises(InputError, match="'mixup' was removed; pretrain the extractor again"):
        PretrainConfig.load(path)
