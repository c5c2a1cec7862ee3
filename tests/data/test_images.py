"""Facts about pixel tasks: where a pixel is found again, how many are drawn, and which images are scored."""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nvdp.data.images import PUBLIC_SETS, ImageTasks, PublicImages, pixel_coordinates, whole_images
from nvdp.data.registry import task_source
from nvdp.data.source import validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.metrics import evaluate
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import load_run

real = pytest.mark.skipif(not os.environ.get("NVDP_DATA"), reason="NVDP_DATA names no folder of data sets")


@dataclass(frozen=True)
class Numbered:
    """Images whose every value tells its own split, image, pixel and channel apart from its neighbours'."""

    size: int = 28
    channels: int = 1
    count: int = 90
    name: str = "numbered"

    def split(self, name):
        seed = ("train", "validation", "test").index(name)
        shape = (self.count, self.size, self.size, self.channels)
        return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def tensors(batch):
    return [batch.x, batch.y, batch.is_context, batch.mask]


def test_a_coloured_pixel_is_found_again_at_its_coordinates_and_channel():
    image = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    image[0, 5, 20, 1] = 255
    tasks = whole_images(image, torch.zeros(1, 1024, dtype=torch.bool))
    task, pixel, channel = tasks.y.nonzero()[0].tolist()
    assert len(tasks.y.nonzero()) == 1
    assert (task, channel) == (0, 1)
    torch.testing.assert_close(tasks.x[0, pixel], torch.tensor([5 / 31, 20 / 31]))


@pytest.mark.parametrize("channels", [1, 3])
def test_every_training_pixel_has_the_value_of_its_image_there(channels):
    source = Numbered(size=16, channels=channels)
    batch = ImageTasks(source).training_batch(seed=0, step=3, tasks=16)
    train = source.split("train")
    for x, y, mask in zip(batch.x, batch.y, batch.mask, strict=True):
        row, column = (x[mask] * 15).round().long().unbind(-1)
        same = (train[:, row.numpy(), column.numpy()] == (y[mask] * 255).round().numpy()).all((1, 2))
        assert same.sum() == 1, "all pixels of a task come from one training image"


def test_coordinates_span_the_unit_square_row_by_row():
    x = pixel_coordinates(28, 28)
    assert x.shape == (784, 2)
    assert (x.min(), x.max()) == (0, 1)
    assert x[:28, 0].eq(0).all()
    torch.testing.assert_close(x[29], torch.tensor([1 / 27, 1 / 27]))


def test_training_sizes_fill_their_ranges_and_differ_within_a_batch():
    tasks = ImageTasks(Numbered())
    contexts, totals = [], []
    for step in range(150):
        batch = tasks.training_batch(0, step, 16)
        size, points = batch.is_context.sum(-1), batch.mask.sum(-1)
        assert len(set(size.tolist())) > 1
        assert batch.x.shape[1] == points.max()
        assert (batch.is_context & ~batch.mask).sum() == 0
        assert not batch.x[~batch.mask].any()
        assert not batch.y[~batch.mask].any()
        contexts.append(size)
        totals.append(points)
    contexts, totals = torch.cat(contexts), torch.cat(totals)
    assert (contexts.min(), contexts.max()) == (3, 197)
    assert totals.max() == 200
    assert (totals > contexts).all()
    assert (totals == contexts + 1).any()
    assert contexts.float().mean().item() == pytest.approx(100, abs=4)
    middle = ((totals - contexts - 1) / (199 - contexts).clamp(min=1))[contexts < 190]
    assert middle.mean().item() == pytest.approx(0.5, abs=0.03), "N is uniform between S + 1 and 200"


def test_a_share_of_the_steps_has_contexts_of_up_to_all_pixels():
    tasks = ImageTasks(Numbered(), any_context=0.25)
    most = [int(tasks.training_batch(0, step, 16).is_context.sum(1).max()) for step in range(40)]
    assert 4 <= sum(size > 197 for size in most) <= 18
    assert max(most) > 700
    validation = next(iter(validation_tasks(tasks, 0, 64)))
    assert validation.is_context.sum(1).max() <= 197


def test_no_pixel_comes_twice_and_every_image_has_its_own():
    batch = ImageTasks(Numbered()).training_batch(0, 0, 16)
    for x, mask in zip(batch.x, batch.mask, strict=True):
        assert len(x[mask].unique(dim=0)) == mask.sum()
    few = batch.mask.all(0)
    assert not torch.equal(batch.x[0, few], batch.x[1, few])


def test_validation_shows_all_pixels_with_a_context_drawn_as_in_training():
    for batch in validation_tasks(ImageTasks(Numbered()), seed=0, tasks=128):
        assert batch.x.shape == (64, 784, 2)
        assert batch.mask.all()
        assert (batch.context.count >= 3).all()
        assert (batch.context.count <= 197).all()
        assert (batch.context.count + batch.target.count == 784).all()
        assert len({tuple(row) for row in batch.is_context.tolist()}) == 64


def test_validation_is_fixed_by_its_seed_and_a_longer_set_begins_with_a_shorter():
    tasks = ImageTasks(Numbered())
    assert all(map(torch.equal, tensors(tasks.validation_chunk(5, 1)), tensors(tasks.validation_chunk(5, 1))))
    assert not torch.equal(tasks.validation_chunk(5, 1).y, tasks.validation_chunk(6, 1).y)
    short, long = ([*validation_tasks(tasks, 0, count)] for count in (70, 128))
    assert torch.equal(short[1].y, long[1].y[:6])
    assert all(map(torch.equal, tensors(tasks.training_batch(1, 2, 4)), tensors(tasks.training_batch(1, 2, 4))))
    assert not torch.equal(tasks.training_batch(1, 2, 4).x, tasks.training_batch(1, 3, 4).x)


def test_scored_images_come_from_their_split_and_no_image_twice_before_all_came():
    source = Numbered(count=90)
    for split in ("validation", "test"):
        known = {image.tobytes() for image in source.split(split)}
        batches = list(validation_tasks(ImageTasks(source, split), 0, 90))
        seen = [(image * 255).round().byte().numpy().tobytes() for batch in batches for image in batch.y]
        assert len(set(seen)) == 90
        assert set(seen) == known


def test_small_images_keep_some_pixels_as_targets():
    batch = ImageTasks(Numbered(size=4)).training_batch(0, 0, 64)
    assert batch.mask.sum(-1).max() <= 16
    assert (batch.is_context.sum(-1).min(), batch.is_context.sum(-1).max()) == (3, 13)


def test_three_channels_are_scored_per_value(small_config):
    model = build_model(small_config("nvdp", x_dim=2, y_dim=3))
    tasks = ImageTasks(Numbered(size=8, channels=3))
    coloured = evaluate(model, validation_tasks(tasks, 0, 8), samples=2)
    batch = next(iter(validation_tasks(tasks, 0, 8)))
    prediction = model.adapt(batch.context).at_mean_parameters(batch.x)
    by_hand = torch.distributions.Normal(prediction.mean, prediction.std).log_prob(batch.y).mean()
    assert coloured["scores"]["LL"]["mean_parameters"] == pytest.approx(by_hand.item(), abs=1e-5)


@pytest.mark.parametrize(("task", "channels", "representation"), [("mnist", 1, 128), ("celeba", 3, 1024)])
def test_presets_have_the_papers_sizes_without_any_data(task, channels, representation, monkeypatch):
    monkeypatch.delenv("NVDP_DATA", raising=False)
    config = preset_config(task, "nvdp", "paper")
    assert (config.model.x_dim, config.model.y_dim, config.model.encoder.size) == (2, channels, representation)
    assert (config.learning_rate, config.tasks_per_step, config.schedule) == (4e-4, 16, "constant")
    assert preset_config(task, "nvdp", "cpu").schedule == "cosine"
    assert (preset_config(task, "nvdp", "released").kl.weight) == 0.5
    assert RunConfig.from_dict({**__import__("json").loads(config.to_json())}) == config


def test_a_split_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="unknown split 'tset'; did you mean 'test'"):
        task_source("mnist", split="tset")
    with pytest.raises(InputError, match="gp tasks are drawn at random and have no split 'test'"):
        task_source("gp", split="test")


@real
@pytest.mark.parametrize("name", ["mnist", "omniglot"])
def test_the_real_sets_are_complete_with_ink_on_black(name):
    images = PublicImages(name)
    for split, count in PUBLIC_SETS[name].counts.items():
        assert images.split(split).shape == (count, 28, 28, 1)
    test = images.split("test")
    assert test[:, 0, 0].mean() < 10
    assert test.max() == 255


@real
def test_the_real_faces_are_in_colour_and_upright():
    images = PublicImages("celeba")
    assert {split: len(images.split(split)) for split in ("train", "validation", "test")} == {
        "train": 12_000,
        "validation": 2_000,
        "test": 2_640,
    }
    face = images.split("train").mean(0)
    assert face.shape == (32, 32, 3)
    assert (face[10:22, 10:22, 0] > face[10:22, 10:22, 2] + 20).all(), "skin is redder than blue, on average"
    assert np.abs(face - face[:, ::-1]).mean() < np.abs(face - face[::-1]).mean(), "left mirrors right, not top bottom"


@real
def test_a_short_training_on_digits_beats_no_training(tmp_path, small_config):
    small = small_config("cnp", x_dim=2, changes={"decoder.width": 32, "encoder.size": 32})
    base = preset_config("mnist", "cnp", "quick", steps=200)
    config = RunConfig(task="mnist", model=small, steps=200, learning_rate=3e-3, objective=base.objective)
    train(config, tmp_path / "run", machine=Machine(device="cpu", threads=1))
    scores = [
        evaluate(model, validation_tasks(task_source("mnist"), 0, 64), samples=1)["scores"]["PLL"]
        for model in (build_model(small, config.seed), load_run(tmp_path / "run")[1])
    ]
    untrained, trained = (score["mean_parameters"] for score in scores)
    assert trained > untrained + 0.5
