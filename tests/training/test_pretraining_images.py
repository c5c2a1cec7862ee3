"""Random changes of training images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nvdp.data.class_pools import ClassPool
from nvdp.errors import InputError
from nvdp.randomness import derived_generator
from nvdp.training.config import PretrainConfig
from nvdp.training.pretraining_images import TrainingImages, cropped, recoloured, shifted, warped


def test_a_warp_keeps_the_middle_near_and_is_none_at_zero(generator):
    image = torch.zeros(1, 2, 21, 21)
    image[:, 0, 10, 10] = image[:, 1, 10, 16] = 1.0  # one place in the middle, one beside it
    assert torch.allclose(warped(image, 0.0, generator), image, atol=1e-5)
    mass = warped(image.expand(400, 2, 21, 21), 0.2, generator)
    count = mass.sum((2, 3)).clamp_min(1e-6)
    rows = (mass.sum(3) * torch.arange(21)).sum(-1) / count
    columns = (mass.sum(2) * torch.arange(21)).sum(-1) / count
    assert 0.3 < rows[:, 0].std() < 2  # moved
    assert (rows[:, 0] - 10).abs().max() < 4
    seen = (count > 0.3).all(1)
    across, down = (columns[:, 1] - columns[:, 0])[seen], (rows[:, 1] - rows[:, 0])[seen]
    assert 0.4 < across.std() < 2  # scaled
    assert 0.4 < down.std() < 3  # turned or sheared
    assert (across > 0).all()  # not mirrored


def test_a_shift_moves_an_image_and_repeats_its_edge(generator):
    image = torch.arange(25.0).view(1, 1, 5, 5)
    moved = shifted(image.expand(64, 1, 5, 5), 1, generator)
    assert set(moved[:, 0, 2, 2].tolist()) == {6.0, 7.0, 8.0, 11.0, 12.0, 13.0, 16.0, 17.0, 18.0}
    up_left = moved[moved[:, 0, 2, 2] == 18.0][0, 0]  # the content moved up and to the left: the far edges repeat
    assert torch.equal(up_left[:4, :4], image[0, 0, 1:, 1:])
    assert torch.equal(up_left[4], up_left[3])
    assert torch.equal(up_left[:, 4], up_left[:, 3])


def test_a_crop_enlarges_a_part_within_the_image(generator):
    rows = torch.linspace(0, 1, 21).view(1, 1, 21, 1).expand(200, 1, 21, 21)  # a ramp: its slope tells the side
    assert torch.allclose(cropped(rows, 0.0, generator), rows, atol=1e-5)
    parts = cropped(rows, 0.4, generator)[:, 0, 1:-1, 10]
    sides = (parts[:, -1] - parts[:, 0]) / (rows[0, 0, -2, 0] - rows[0, 0, 1, 0])
    assert 0.599 < sides.min() < 0.65
    assert 0.95 < sides.max() < 1.001
    assert parts[:, 9].std() > 0.05  # at different places
    assert torch.allclose(cropped(torch.ones_like(rows), 0.4, generator), torch.ones_like(rows))  # none from outside


def test_colours_change_by_factors_and_stay_in_range(generator):
    images = torch.rand(300, 3, 4, 4, generator=generator) * 0.4 + 0.3
    assert torch.allclose(recoloured(images, 0.0, generator), images, atol=1e-6)
    changed = recoloured(images, 0.4, generator)
    brightness = changed.mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert 0.58 < brightness.min() < 0.7
    assert 1.3 < brightness.max() < 1.42
    assert (changed >= 0).all()
    assert (changed <= 1).all()
    grey = images[:, :1]
    contrast = recoloured(grey, 0.4, generator)
    contrast = contrast.std((1, 2, 3)) / contrast.mean((1, 2, 3)) / (grey.std((1, 2, 3)) / grey.mean((1, 2, 3)))
    assert 0.59 < contrast.min() < 0.65
    assert 1.3 < contrast.max() < 1.41
    flat = torch.tensor([0.5, 0.4, 0.45]).view(1, 3, 1, 1).expand(300, 3, 4, 4)  # each of its means is of one colour
    vivid = recoloured(flat, 0.4, generator)
    assert torch.allclose(vivid.std((2, 3)), torch.zeros(300, 3), atol=1e-6)
    of_colour = (vivid[:, 0] - vivid[:, 1]) / vivid.mean(1) / (0.1 / 0.45)
    assert of_colour.min() < 0.5  # saturation and contrast together: less than contrast alone reaches
    assert of_colour.max() > 1.6


def test_a_batch_has_the_changes_that_its_configuration_names(generator):
    pool = ClassPool(np.random.default_rng(0).integers(0, 255, (40, 28, 28, 1), np.uint8), np.array([40]), ("a",))
    plain = PretrainConfig("miniimagenet", "conv4", 1, 28, batch=40)
    before = TrainingImages(pool, plain).batch(3)[0].view(40, 1, 28, 28)
    for setting, change in (("crops", cropped), ("colours", recoloured)):
        after = TrainingImages(pool, replace(plain, **{setting: 0.3})).batch(3)[0].view(40, 1, 28, 28)
        assert torch.equal(after, change(before, 0.3, derived_generator(0, setting, 3)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"crops": float("nan")}, "'crops' is nan; expected from 0 to less than 1"),
        ({"colours": 1.0}, "'colours' is 1.0"),
        ({"turns": -0.1}, "'turns' is -0.1"),
        ({"turns": 0.5, "objective": "episodes"}, "'turns' is 0.5, but only the objective classes takes turns"),
        ({"muon_rows": 0}, "'muon_rows' is 0"),
    ],
)
def test_changes_that_cannot_be_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        PretrainConfig("miniimagenet", "conv4", 1, 28, **settings)


def test_turned_images_are_classes_of_their_own():
    pixels = np.zeros((400, 28, 28, 1), np.uint8)
    pixels[:, 0, 0, 0] = 255  # one bright corner tells the turn
    pool = ClassPool(pixels, np.array([150, 250]), ("a", "b"))
    images = TrainingImages(pool, PretrainConfig("miniimagenet", "conv4", 1, 28, turns=0.4, batch=400))
    vectors, classes = images.batch(0)
    corners = vectors.view(400, 28, 28)[:, [0, 27, 27, 0], [0, 0, 27, 27]]  # where it is after 0, 1, 2, 3 turns
    assert images.labelled_pool.classes == 8
    assert torch.equal(corners.argmax(1), classes // 2)
    assert (classes % 2).sum() == 250  # every image once
    assert 120 < (classes >= 2).sum() < 200
    assert set(classes.tolist()) == set(range(8))
    assert (TrainingImages(pool, replace(images.config, turns=0.0)).batch(0)[1] < 2).all()


def test_a_mirrored_image_keeps_the_direction_that_its_class_tells():
    pixels = np.random.default_rng(0).integers(0, 255, (60, 28, 28, 1), np.uint8)
    pool = ClassPool(pixels, np.array([60]), ("a",))
    config = PretrainConfig("miniimagenet", "conv4", 1, 28, turns=0.8, flips=True, batch=60)
    vectors, turns = TrainingImages(pool, config).batch(0)
    upright = torch.stack([image.rot90(-turn) for image, turn in zip(vectors.view(60, 28, 28), turns, strict=True)])
    given = torch.from_numpy(pixels[..., 0] / np.float32(255))
    whole, mirrored = ((upright[:, None] == each).all((2, 3)).any(1) for each in (given, given.flip(-1)))
    assert (whole ^ mirrored).all()
    assert mirrored[turns % 2 == 1].any()
    assert whole[turns % 2 == 1].any()
