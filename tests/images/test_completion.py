"""Facts about completing pictures, choosing pixels, and the grids that show it."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from nvdp.data.images import whole_images
from nvdp.errors import InputError
from nvdp.experiments import figure4, table2
from nvdp.experiments.figure4 import context_sizes, grid_from_json, grid_to_json, pixel_choice
from nvdp.images.completion import (
    PixelChoice,
    add_explaining,
    complete,
    drawn_in_blocks,
    psnr,
    random_contexts,
    random_shown,
)
from nvdp.models.registry import build_model
from nvdp.plots import PictureGrid, PictureRow, completion_grid, context_grid, figure_pictures
from nvdp.plots.images import HIDDEN, HIDDEN_COLOUR

SIZES = [5, 12, 40, 64]


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.fixture
def models(small_config):
    return {name: build_model(small_config(name, x_dim=2, y_dim=3)) for name in ("cnp", "np+cnp", "nvdp")}


def test_a_completed_picture_keeps_the_kept_pixels_and_only_them(models, picture):
    done = complete(models["nvdp"], picture, random_shown(8, 0.25, seed=3))
    assert done.is_shown.sum() == 16
    kept = done.is_shown
    assert np.array_equal(np.rint(done.completed[kept] * 255), picture[kept])
    assert np.array_equal(done.completed[~kept], done.mean[~kept].clip(0, 1))
    assert done.functions.shape == (16, 8, 8, 3)
    assert done.spread > 0


def test_a_completion_does_not_look_at_hidden_pixels(models, picture):
    shown = random_shown(8, 0.25)
    other = np.where(shown[..., None], picture, 255 - picture)
    first, second = (complete(models["nvdp"], each, shown) for each in (picture, other))
    assert np.array_equal(first.mean, second.mean)
    assert not np.array_equal(first.truth, second.truth)


def test_a_completion_is_what_the_posterior_predicts(models, picture):
    shown = random_shown(8, 0.25)
    tasks = whole_images(picture[None], torch.from_numpy(shown).reshape(1, -1))
    prediction = models["nvdp"].adapt(tasks.context).predict(tasks.x)
    done = complete(models["nvdp"], picture, shown, samples=2)
    np.testing.assert_allclose(done.mean.reshape(1, 64, 3), prediction.mean, atol=1e-6)
    np.testing.assert_allclose(done.std.reshape(1, 64, 3), prediction.std, atol=1e-6)


def test_a_seed_names_the_pixels_kept():
    assert np.array_equal(random_shown(28, 0.1, 1), random_shown(28, 0.1, 1))
    assert not np.array_equal(random_shown(28, 0.1, 1), random_shown(28, 0.1, 2))
    assert random_shown(28, 1e-9).sum() == 1
    assert random_shown(28, 1.0).all()


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_of_pixels_out_of_range_is_refused(keep):
    with pytest.raises(InputError, match="expected a number above 0 and up to 1"):
        random_shown(28, keep)


def test_a_picture_of_the_wrong_kind_is_refused(models, small_config, picture):
    with pytest.raises(InputError, match="is grey but the model was trained on colour"):
        complete(models["nvdp"], picture[..., :1], random_shown(8, 0.5))
    with pytest.raises(InputError, match="the model takes x of 1 values"):
        complete(build_model(small_config("cnp")), picture[..., :1], random_shown(8, 0.5))


def test_contexts_grow_from_the_same_start_and_hold_the_smaller_ones(models, picture):
    images = np.stack([picture, picture[::-1], 255 - picture])
    random, own = (
        random_contexts(images, SIZES, 1),
        PixelChoice(models["nvdp"], images, seed=1).uncertain_contexts(SIZES),
    )
    assert torch.equal(random[0], own[0])
    assert not torch.equal(random[2], own[2])
    for contexts in (random, own):
        assert [context.sum(-1).tolist() for context in contexts] == [[size] * 3 for size in SIZES]
        for small, large in pairwise(contexts):
            assert not (small & ~large).any()


def test_the_next_pixel_is_the_one_that_explains_most_of_what_the_model_is_unsure_of(models, picture):
    choice = PixelChoice(models["nvdp"], picture[None], samples=4, seed=2)
    first, second = choice.uncertain_contexts([5, 6])
    tasks = whole_images(picture[None], first)
    std = models["nvdp"].adapt(tasks.context).predict(tasks.x, samples=4, generator=2).std
    doubt = std.square().mean(-1).masked_fill(first, 0)[0]
    place = torch.tensor([(row, column) for row in range(8) for column in range(8)], dtype=torch.float)
    share = torch.exp(-torch.cdist(place, place).square() * 9 * 5 / 64)  # of a length scale of a third of √(64 / 5)
    explained = (share @ doubt).masked_fill(first[0], -1)
    assert (second & ~first).nonzero()[0, 1] == explained.argmax()


def test_without_a_length_scale_pixels_are_those_of_largest_variance(generator):
    variance, shown = torch.rand(3, 64, generator=generator), torch.zeros(3, 64, dtype=torch.bool)
    shown[:, 5] = True
    chosen = add_explaining(variance, shown, 4, 8, length_scale=0.0) & ~shown
    largest = variance.masked_fill(shown, -1).topk(4).indices
    assert torch.equal(chosen, torch.zeros_like(shown).scatter(1, largest, True))


def test_pixels_of_one_round_do_not_lie_side_by_side():
    variance = torch.ones(1, 256)
    shown = torch.zeros(1, 256, dtype=torch.bool)
    shown[0, :5] = True
    new = (add_explaining(variance, shown, 6, 16) & ~shown).nonzero()[:, 1]
    places = torch.stack([new // 16, new % 16], -1).float()
    distances = torch.cdist(places, places) + 99 * torch.eye(6)
    assert distances.min() >= 3


def test_scores_agree_with_the_completion(models, picture):
    shown = random_contexts(picture[None], [20])[0]
    choice = PixelChoice(models["nvdp"], picture[None], samples=8)
    scores = choice.scores(shown)
    done = complete(models["nvdp"], picture, shown.reshape(8, 8).numpy(), samples=8)
    completed = np.where(done.is_shown[..., None], done.truth, done.functions.mean(0).clip(0, 1))
    assert scores["PSNR"] == pytest.approx(float(psnr(done.truth, completed)), abs=1e-4)
    assert scores["spread"] == pytest.approx(done.spread, rel=1e-4)
    every = choice.scores(torch.ones(1, 64, dtype=torch.bool))
    assert every["PSNR"] > 90, "with all pixels shown there is nothing left to get wrong"


def test_a_grid_comes_back_from_json_and_is_drawn(models, picture, tmp_path):
    grid = context_grid(models, picture, {"5": 5, "half": 32, "all": 64}, "noise")
    assert [row.label for row in grid.rows][:3] == ["context", "cnp sample 1", "cnp sample 2"]
    assert np.array_equal(grid.rows[0].cells[-1], picture / 255)
    assert (grid.rows[0].cells[0] == HIDDEN).all(-1).sum() == 64 - 5
    back = grid_from_json(json.loads(json.dumps(grid_to_json(grid))))
    for ours, theirs in zip(grid.rows, back.rows, strict=True):
        assert ours.label == theirs.label
        assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(ours.cells, theirs.cells, strict=True))
    paths = figure_pictures([grid, back], tmp_path / "grid.png")
    assert [path.suffix for path in paths] == [".png", ".pdf"]


def test_hidden_pixels_have_their_own_colour_and_shown_ones_theirs(models, picture, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr("nvdp.plots.images.save_figure", lambda figure, path: figures.append(figure) or [])
    done = complete(models["nvdp"], picture, random_shown(8, 0.3))
    figure_pictures([completion_grid(done, "picture")], tmp_path / "p.png")
    drawn = np.asarray(figures[0].axes[0].images[0].get_array())[:8, :8]
    assert np.allclose(drawn[done.is_shown], picture[done.is_shown] / 255)
    assert np.allclose(drawn[~done.is_shown], HIDDEN_COLOUR)


def test_a_grid_of_uneven_pictures_is_refused():
    small, large = np.zeros((4, 4, 1)), np.zeros((5, 5, 1))
    with pytest.raises(InputError, match="expected one size"):
        PictureGrid("g", ("a", "b"), (PictureRow("r", (small, large)),))
    with pytest.raises(InputError, match="row 'r' has 1 images for 2 columns"):
        PictureGrid("g", ("a", "b"), (PictureRow("r", (small,)),))


def test_pixel_choice_reports_both_ways_for_every_size(models, picture):
    numbers = pixel_choice(models["nvdp"], picture[None], {"5": 5, "half": 32, "all": 64})
    assert set(numbers) == {"random", "uncertainty"}
    assert numbers["random"]["5"] == numbers["uncertainty"]["5"]
    assert numbers["random"]["half"]["PSNR"] > numbers["random"]["5"]["PSNR"]
    json.dumps(numbers)


def test_the_plans_are_the_papers_and_share_their_runs(tmp_path):
    table = table2.plan("cpu")
    papers, beyond = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp"), ("nvdp-conv", "nvdp-attentive")
    both = {f"{model}-{task}" for model in (*papers, *beyond) for task in ("mnist", "celeba")}
    mixtures = {f"{model}-mixture-{task}" for model in ("nvdp-conv", "convcnp") for task in ("mnist", "celeba")}
    mixtures |= {"nvdp-mixture-mnist", "cnp-mixture-mnist"}
    mixtures |= {f"nvdp-conv-mixture-long-{task}" for task in ("mnist", "celeba")}
    assert {run.name for run in table} == {*both, *mixtures, "nvdp-conv-long-mnist"}
    for task, different in (("mnist", 4), ("celeba", 3)):
        ours = [run for run in table if run.config.task == task and run.name not in mixtures]
        assert len({run.config.steps for run in ours if run.config.model.name in papers}) == 1
        assert len({run.config.steps for run in ours}) == different  # most others take as long, so fewer
    assert {run.also_on for run in table if run.config.task == "mnist"} == {("omniglot",)}
    assert {run.split for run in table} == {"test"}
    folders = {run.folder(tmp_path) for run in table}
    assert len(folders) == len(table)
    assert {run.folder(tmp_path) for run in figure4.plan("cpu")} < folders
    assert context_sizes(1024)["half"] == 512


def test_faces_stay_out_of_the_results(monkeypatch, models, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    monkeypatch.setattr(figure4, "shown_test_images", lambda name: images)
    monkeypatch.setattr(figure4, "_models", lambda folders, name: models)
    data = figure4.collect({})
    assert [grid["title"].split()[0] for grid in data["grids"]] == ["mnist", "omniglot"]
    assert set(data["pixels"]) == {"mnist", "omniglot", "celeba"}
    (tmp_path / "run").mkdir()
    paths = figure4.draw_private({"nvdp-celeba": tmp_path / "run"})
    assert {path.parent for path in paths} == {tmp_path / "run"}


def test_pictures_drawn_in_blocks_keep_what_is_shown_and_differ(models):
    images = np.random.default_rng(2).integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    shown = torch.zeros(2, 144, dtype=torch.bool)
    shown[0, :9] = shown[1, 100:109] = True
    with torch.no_grad():  # grey in the mean, so that nothing is clipped away
        list(models["nvdp"].network.dropout_layers())[-1].bias.fill_(0.5)
    one, again, other = (drawn_in_blocks(models["nvdp"], images, shown, seed) for seed in (0, 0, 1))
    kept = shown.reshape(2, 12, 12).numpy()
    np.testing.assert_allclose(one[kept], images[kept] / 255, atol=1e-6)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert 0 <= one.min() <= one.max() <= 1
