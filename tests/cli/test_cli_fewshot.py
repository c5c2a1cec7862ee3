"""Few-shot classification on the command line: pretrain, train, eval, classify; one clear line for bad input."""

import json
import os
import shutil
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from command_line import nvdp, refusal
from PIL import Image

from nvdp.data import class_pools as fewshot_folder
from nvdp.data import features as feature_cache
from nvdp.data.class_pools import split_classes
from nvdp.data.registry import task_source
from nvdp.data.source import DataConfig, validation_tasks
from nvdp.evaluation.run import VALIDATION_SEED
from nvdp.training.config import RunConfig
from nvdp.training.nearest_mean import nearest_mean_hits

TASK = "folder-of-classes"
QUICK = ["--way", "3", "--shot", "2", "--queries", "3", "--preset", "quick", "--quiet"]


def ok(*arguments):
    result = nvdp(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def stripes(c, random):
    """A picture of class c: stripes of its own direction and width, under noise."""
    row, column = np.mgrid[:16, :16]
    angle, width = np.pi * c / 30, 0.6 + 0.5 * (c % 3)
    wave = np.sin(width * (np.cos(angle) * row + np.sin(angle) * column) + random.uniform(0, 2 * np.pi))
    return Image.fromarray((128 + 90 * wave + random.normal(0, 15, wave.shape)).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder of classes, an extractor, and a run of either regime."""
    root, random = tmp_path_factory.mktemp("fewshot"), np.random.default_rng(0)
    for c in range(30):
        (root / "classes" / f"c{c:02d}").mkdir(parents=True)
        for k in range(16):
            stripes(c, random).save(root / "classes" / f"c{c:02d}" / f"{k:02d}.png")
    folder = ["--folder", root / "classes", "--size", "16"]
    with mock.patch.dict(os.environ, {"NVDP_CACHE": str(root / "cache")}):
        fewshot_folder._split.cache_clear()
        feature_cache._pool.cache_clear()
        with mock.patch("nvdp.training.pretrain.VALIDATION_EPISODES", 4):
            pretraining = ["--steps", "40", "--batch", "32", "--precision", "32-true", "--quiet"]
            said = ok("pretrain", TASK, *folder, *pretraining, "--out", root / "extractor", "--learning-rate", "0.1")
        assert "--features" in said
        ok("train", TASK, *folder, *QUICK, "--model", "protonet", "--steps", "40", "--out", root / "images")
        features = ["--features", root / "extractor"]
        ok("train", TASK, *folder, *QUICK, *features, "--model", "versa", "--steps", "60", "--out", root / "features")
        yield root


@pytest.fixture(scope="module")
def own_pictures(places):
    """Pictures of three test classes: one folder with labels, one with queries in class folders, one without."""
    names = split_classes(sorted(path.name for path in (places / "classes").iterdir()))["test"][:3]
    for name in names:
        files = sorted((places / "classes" / name).iterdir())
        for part, chosen in (("support", files[:3]), ("query", files[3:9])):
            (places / part / name).mkdir(parents=True)
            for file in chosen:
                shutil.copy(file, places / part / name)
    (places / "flat").mkdir()
    shutil.copy(places / "query" / names[0] / "05.png", places / "flat" / "which.png")
    return names


@pytest.mark.parametrize("run", ["images", "features"])
def test_a_run_is_scored_on_test_classes_above_chance_and_alike_each_time(places, run):
    command = ["eval", places / run, "--tasks", "40", "--json"]
    scores = json.loads(ok(*command))
    assert scores == json.loads(ok(*command))
    assert {"accuracy", "interval95", "nll", "ece"} <= set(scores)
    shape = (scores["tasks"], scores["way"], scores["shot"], scores["queries"], scores["split"], scores["samples"])
    assert shape == (40, 3, 2, 3, "test", 10)
    assert scores["regime"] == {"images": "end-to-end", "features": "features"}[run]
    assert scores["accuracy"] > 0.5
    assert scores["nll"] != json.loads(ok(*command, "--split", "validation"))["nll"]
    assert json.loads(ok(*command, "--way", "4", "--shot", "1"))["way"] == 4
    assert "3-way 2-shot" in " ".join(ok("eval", places / run, "--tasks", "8").split())


def test_a_run_scored_on_one_episode_has_no_interval(places):
    command = ["eval", places / "features", "--tasks", "1"]
    scores = json.loads(ok(*command, "--json"), parse_constant=pytest.fail)  # NaN is no JSON
    for each in (scores, scores["without_sampling"], scores["nearest_mean"]):
        assert each["interval95"] is None
    shown = [line for line in ok(*command).splitlines() if "%" in line and "interval" not in line]
    assert len(shown) == 3
    assert all("–" in line and "±" not in line for line in shown)


def test_transductive_scores_are_another_named_number(places):
    plain, other = (
        json.loads(ok("eval", places / "images", "--tasks", "40", "--json", *more)) for more in ([], ["--transductive"])
    )
    assert (plain["transductive"], other["transductive"]) == (False, True)
    assert plain["nll"] != other["nll"]
    assert "nothing is transductive" in refusal("eval", places / "features", "--transductive")


@pytest.mark.parametrize("run", ["images", "features"])
def test_own_pictures_are_named_with_probabilities(places, own_pictures, run):
    command = ["classify", places / run, "--support", places / "support"]
    answer = json.loads(ok(*command, "--query", places / "query", "--json"))
    assert answer["classes"] == own_pictures
    assert len(answer["queries"]) == 18
    assert answer["accuracy"] > 0.5
    for row in answer["queries"]:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert row["class"] == max(row["probabilities"], key=row["probabilities"].get)
        assert row["file"].startswith(row["true"])
    with mock.patch.dict(os.environ, COLUMNS="36"):
        lines = ok(*command, "--query", places / "query").splitlines()
    cells = "".join(line.split("│")[1].strip() for line in lines if "│" in line)
    assert all(row["file"] in cells for row in answer["queries"])  # folded, not cut
    flat = json.loads(ok(*command, "--query", places / "flat", "--json"))
    assert flat["accuracy"] is None
    same = next(row for row in answer["queries"] if row["file"] == f"{own_pictures[0]}/05.png")
    assert flat["queries"][0]["probabilities"] == pytest.approx(same["probabilities"], abs=0.35)
    assert "which.png" in ok(*command, "--query", places / "flat")
    inverted = json.loads(ok(*command, "--query", places / "flat", "--json", "--invert"))
    assert inverted["queries"][0]["probabilities"] != flat["queries"][0]["probabilities"]


def test_features_of_two_extractors_are_trained_on_and_their_views_may_change(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nvdp.training.pretrain.VALIDATION_EPISODES", 4)
    folder = ["--folder", places / "classes", "--size", "16"]
    pretraining = ["--steps", "3", "--batch", "32", "--precision", "32-true", "--quiet"]
    for seed in ("1", "2"):
        ok("pretrain", TASK, *folder, *pretraining, "--seed", seed, "--out", f"e{seed}")
    command = ["train", TASK, *folder, *QUICK, "--model", "cnp", "--steps", "2"]
    ok(*command, "--features", "e1, e2", "--out", "both")
    config = json.loads((tmp_path / "both" / "config.json").read_text())
    assert config["episodes"]["features"] == f"{tmp_path / 'e1'},{tmp_path / 'e2'}"
    assert config["model"]["extractor"]["features"] == 128
    scores = json.loads(ok("eval", "both", "--tasks", "8", "--json"))
    assert [each["steps"] for each in scores["extractors"]] == [3, 3]
    assert 0 < scores["nearest_mean_accuracy"] <= 1
    episodes = replace(RunConfig.load(tmp_path / "both" / "config.json").episodes, queries=scores["queries"])
    source = task_source(TASK, DataConfig(folder=str(places / "classes"), size=16), "test", episodes)
    hits = [nearest_mean_hits(batch, batch.x) for batch in validation_tasks(source, VALIDATION_SEED, 8)]
    assert scores["nearest_mean"]["accuracy"] == pytest.approx(torch.cat(hits).mean().item())
    assert "joining takes one" in refusal("join", "both", "--out", "joined")
    assert "expected folders of different extractors" in refusal(*command, "--features", "e1,e1", "--out", "twice")
    before = (tmp_path / "e2" / "features" / "test.npy").read_bytes()
    ok("pretrain", TASK, "--out", "e2", "--resume", "--views", "image", "--quiet")
    assert (tmp_path / "e2" / "features" / "test.npy").read_bytes() != before
    assert "put the earlier one back there, or train again" in refusal("eval", "both", "--tasks", "8")
    (tmp_path / "a,b").mkdir()
    (tmp_path / "e1").rename(tmp_path / "a,b" / "e1")
    monkeypatch.chdir(tmp_path / "a,b")
    assert "a,b/e1 has a comma in its path" in refusal(*command, "--features", "../e2,e1", "--out", "c")


def test_pretraining_that_is_stopped_at_its_features_keeps_the_extractor(places, tmp_path):
    command = ["pretrain", TASK, "--folder", places / "classes", "--size", "16", "--out", tmp_path / "out", "--quiet"]
    with mock.patch("nvdp.training.pretrain.write_features", side_effect=KeyboardInterrupt):
        stopped = nvdp(*command, "--steps", "2", "--batch", "16", "--precision", "32-true")
    assert (stopped.returncode, (tmp_path / "out" / "extractor.safetensors").exists()) == (130, True)
    assert "the extractor is saved, and --resume writes its features" in stopped.stderr
    line = refusal("train", TASK, "--features", tmp_path / "out", *QUICK, "--out", tmp_path / "run")
    assert f"nvdp pretrain {TASK} --resume --out {tmp_path / 'out'}" in line
    ok("pretrain", TASK, "--out", tmp_path / "out", "--resume", "--quiet")
    few = ["--steps", "1", "--precision", "32-true"]
    new = nvdp(*command[:-3], "--out", tmp_path / "new", "--quiet", "--resume", *few)
    assert f"nothing to resume in {tmp_path / 'new'}; a new run begins" in new.stderr


def test_pretraining_goes_on_with_the_images_it_began_with_alone(places, tmp_path):
    shutil.copytree(places / "classes", tmp_path / "classes")
    folder = ["--folder", tmp_path / "classes", "--size", "16", "--quiet"]
    few = ["--steps", "2", "--batch", "16", "--precision", "32-true", "--views", "image"]
    ok("pretrain", TASK, *folder, *few, "--out", tmp_path / "out")
    name = split_classes(sorted(path.name for path in (tmp_path / "classes").iterdir()))["test"][0]
    first = sorted((tmp_path / "classes" / name).iterdir())[0]
    before = first.read_bytes()
    Image.fromarray(255 - np.array(Image.open(first))).save(first)
    fewshot_folder._split.cache_clear()
    line = refusal("pretrain", TASK, "--out", tmp_path / "out", "--resume", "--quiet")
    assert "was begun with other test images or classes; put them back" in line
    first.write_bytes(before)
    fewshot_folder._split.cache_clear()
    assert json.loads(ok("info", tmp_path / "out", "--json"))["features_problem"] is None
    (tmp_path / "out" / "features" / "test.npy").unlink()
    feature_cache._pool.cache_clear()
    assert "test.npy is missing" in ok("info", tmp_path / "out")
    ok("pretrain", TASK, "--out", tmp_path / "out", "--resume", "--quiet")
    inside = refusal("pretrain", TASK, *folder, *few, "--out", tmp_path / "classes" / "out")
    assert "where it would be taken for a class" in inside


def test_names_are_shown_as_they_are(places, own_pictures, tmp_path):
    for old, new in zip(own_pictures, ("[red]x", "[green]x", ":smile:"), strict=True):
        shutil.copytree(places / "support" / old, tmp_path / "support" / new)
    with mock.patch.dict(os.environ, COLUMNS="100"):
        shown = ok("classify", places / "images", "--support", tmp_path / "support", "--query", places / "flat")
        assert all(name in shown.splitlines()[1] for name in ("[red]x", "[green]x", ":smile:"))
    with mock.patch.dict(os.environ, COLUMNS="40"):
        shown = ok("classify", places / "images", "--support", tmp_path / "support", "--query", places / "flat")
    assert "probability" in shown  # of the most probable class alone


def test_a_stopped_run_is_resumed_by_the_same_command(places, tmp_path):
    command = ["train", TASK, "--folder", places / "classes", "--size", "16", *QUICK, "--model", "cnp", "--steps", "3"]
    ok(*command, "--out", tmp_path / "run")
    assert "already holds a run" in refusal(*command, "--out", tmp_path / "run")
    ok(*command, "--out", tmp_path / "run", "--resume")
    line = refusal(*command, "--shot", "1", "--out", tmp_path / "run", "--resume")
    assert "other settings: episodes.shot was 2, now 1" in line
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["episodes"] == {"way": 3, "shot": 2, "queries": 3, "regime": "end-to-end", "features": None}


def test_the_sets_of_classes_are_among_the_data_sets(tmp_path):
    assert "miniimagenet: 84×84×3; 38,400 train" in ok("data", "list")
    line = refusal("data", "fetch", "miniimagenet")
    assert "cannot be downloaded by a program: name a folder with miniimagenet_train.npz" in line
    empty = ["--data-dir", tmp_path]
    with mock.patch.dict(os.environ, {"NVDP_CACHE": str(tmp_path)}):
        assert "miniimagenet is not on this machine" in refusal("data", "path", "miniimagenet", *empty)
        new = ["--quiet", "--out", tmp_path / "new"]
        assert "miniimagenet is not on this machine" in refusal("train", "miniimagenet", *empty, *new)
        assert "omniglot is not on this machine" in refusal("train", "omniglot-fewshot", *empty, *new)


def test_more_ways_than_classes_to_score_on_are_told_before_training(places, tmp_path):
    folder = ["--folder", places / "classes", "--size", "16", "--model", "protonet", "--queries", "1"]
    told = nvdp("train", TASK, *folder, "--way", 5, "--steps", "1", "--quiet", "--out", tmp_path / "wide")
    assert told.returncode == 0, told.stderr
    assert "the validation split has 4 classes" in told.stderr
    assert "score this 5-way run by nvdp eval --way 4" in told.stderr


def test_bad_input_is_one_line(places, own_pictures, tmp_path):
    folder = ["--folder", places / "classes", "--size", "16"]
    new = ["--preset", "quick", "--steps", "2", "--quiet", "--out", tmp_path / "new"]
    train = ["train", TASK, *folder, "--way", 3, *new]
    assert "has 16 images; 5-shot with 15 queries needs 20" in refusal(*train, "--shot", "5", "--queries", "15")
    line = refusal(*train, "--way", 23, "--queries", "1")
    assert f"the train split of {TASK} has 22 classes; 23-way needs 23: choose a smaller" in line
    assert "needs a folder with a sub-folder for each class" in refusal("train", TASK, *new)
    assert "--way is for omniglot-fewshot, miniimagenet, folder-of-classes" in refusal("train", "gp", "--way", 5, *new)
    assert "--variance is for models of regression" in refusal(*train, "--variance", "fixed")
    assert "--fourier is for models of regression; nvdp on folder-of-classes" in refusal(*train, "--fourier", "3")
    assert "--aggregation is for models of regression" in refusal(*train, "--aggregation", "mean")
    assert "holds no features; make them with `nvdp pretrain" in refusal(*train, "--features", tmp_path)
    assert "unknown model 'protonett'; did you mean 'protonet'" in refusal(*train, "--model", "protonett")
    assert not (tmp_path / "new").exists()
    assert "the test split of folder-of-classes has 4 classes" in refusal("eval", places / "images", "--way", "9")
    assert "--way, --shot, --queries and --transductive are for classifiers" in refusal("eval", "gp", "--way", "3")
    assert "scored on its own task" in refusal("eval", places / "images", "--on", "mnist")
    classify = ["classify", places / "images", "--support", places / "support", "--query"]
    assert "is not a folder" in refusal(*classify, places / "absent")
    assert "holds 0 pictures" in refusal(*classify, tmp_path)
    assert "needs a few-shot classifier" in refusal("classify", "gp", *classify[2:], places / "query")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.png").write_bytes(b"no picture")
    assert "broken.png is no image, or a damaged one" in refusal(*classify, tmp_path / "bad")
    (tmp_path / "support" / "only").mkdir(parents=True)
    shutil.copy(places / "flat" / "which.png", tmp_path / "support" / "only")
    few = ["classify", places / "images", "--support", tmp_path / "support", "--query", places / "flat"]
    assert "has 1 class; classification needs at least 2" in refusal(*few)
    (tmp_path / "support" / "void").mkdir()
    assert "class 'void' has 0 support images" in refusal(*few)
    shutil.copytree(places / "classes", tmp_path / "gap")
    (tmp_path / "gap" / "none").mkdir()
    gap = ["--folder", tmp_path / "gap", "--size", "16", "--out", tmp_path / "gone"]
    for command in (["pretrain", TASK, "--steps", "2"], ["train", TASK, *QUICK]):
        assert f"class 'none' of {tmp_path / 'gap'} has 0 pictures" in refusal(*command, *gap)
    assert not (tmp_path / "gone").exists()
    assert "exclude each other" in refusal("pretrain", TASK, *folder, "--steps", 2, "--minutes", 1, "--out", tmp_path)
    pretrain = ["pretrain", TASK, *folder, "--quiet", "--precision", "32-true", "--out", tmp_path / "new"]
    assert "--minutes is inf; expected a positive, finite" in refusal(*pretrain, "--minutes", "inf")
    assert "'batch' is 1; expected at least 2" in refusal(*pretrain, "--steps", 2, "--batch", 1)
    assert "--per-class is -7, but it is for --objective" in refusal(*pretrain, "--steps", 2, "--per-class", -7)
    assert "cannot use the device none" in refusal(*pretrain, "--steps", 2, "--device", "none")
    assert "'components' is 999" in refusal(*pretrain, "--steps", 2, "--components", 999)
    assert not (tmp_path / "new").exists()
    diverging = [*pretrain, "--batch", 8, "--steps", 3, "--learning-rate", 1e8]
    assert "training has diverged: 'blocks." in nvdp(*diverging).stderr
    assert not (tmp_path / "new" / "extractor.safetensors").exists()
    others = ["train", TASK, *new, "--features", places / "extractor"]
    assert "--size is 8; the features of" in refusal(*others, "--folder", places / "classes", "--size", 8)
    assert f"--folder is {tmp_path}; the features of" in refusal(*others, "--folder", tmp_path)
    assert "holds a run, not an extractor" in refusal(*train, "--extractor", places / "images")
    assert "holds an extractor of `nvdp pretrain`, not a model" in refusal("eval", places / "extractor")
    again = ["--out", places / "extractor", "--resume", "--quiet"]
    assert "holds an extractor of folder-of-classes; got omni" in refusal("pretrain", "omniglot-fewshot", *again)
    assert "other settings: seed was 0, now 7" in refusal("pretrain", TASK, *folder, "--seed", 7, *again)
    assert "32×32×1 numbers; the extractor is for 16×16×1" in refusal("pretrain", TASK, "--size", 32, *again)


def test_a_classifier_of_images_begins_with_a_pretrained_extractor(places, tmp_path):
    begin = ["--extractor", places / "extractor", "--model", "protonet", "--out", tmp_path / "run"]
    folder = ["--folder", places / "classes", "--size", "16"]
    ok("train", TASK, *folder, *QUICK, *begin, "--steps", "2")
    scores = json.loads(ok("eval", tmp_path / "run", "--tasks", "40", "--json"))
    assert scores["regime"] == "fine-tuned"
    assert scores["accuracy"] > 0.5  # after two steps
    for more, words in (
        (["--features", places / "extractor"], "--extractor and --features exclude each other"),
        (["--start", "gp"], "--extractor and --start exclude each other"),
    ):
        assert words in refusal("train", TASK, *folder, *begin, *more)
    said = refusal("train", "gp", "--extractor", places / "extractor", "--out", tmp_path / "other")
    assert "--extractor is for omniglot-fewshot, miniimagenet, folder-of-classes; gp has no classes" in said


def test_an_extractor_for_larger_images_is_refused_before_training(places, tmp_path):
    folder = ["--folder", places / "classes", "--size", "16"]
    said = refusal("pretrain", TASK, *folder, "--extractor", "conv5-wide", "--steps", "1", "--out", tmp_path / "out")
    assert "'conv5-wide', which has no features of images of 16×16" in said
    assert not (tmp_path / "out").exists()
