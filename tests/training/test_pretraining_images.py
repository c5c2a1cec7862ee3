"""Random changes of training images."""

from dataclasses import replace

import numpy as np
import torch

from nvdp.data.class_pools import ClassPool
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
    assert (parts > 0).all()  # nothing comes in from outside
    assert parts[:, 9].std() > 0.05  # at different places


def test_colours_change_by_factors_and_stay_in_range(generator):
    images = torch.rand(300, 3, 4, 4, generator=generator) * 0.4 + 0.3
    assert torch.allclose(recoloured(images, 0.0, generator), images, atol=1e-6)
    changed = recoloured(images, 0.4, generator)
    brightness = changed.mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert 0.58 < brightness.min() < 0.7
    assert 1.3 < brightness.max() < 1.42
    assert (changed >= 0).all()
    assert (changed <= 1).all()
    spread = changed.std((2, 3)).mean(1) / images.std((2, 3)).mean(1) / brightness
    assert spread.min() < 0.75
    assert spread.max() > 1.25  # contrast
    grey = images.mean(1, keepdim=True).expand_as(images)
    assert torch.allclose(recoloured(grey, 0.4, generator).std(1), torch.zeros(300, 4, 4), atol=1e-6)
    assert recoloured(images[:, :1], 0.4, generator).shape == (300, 1, 4, 4)


def test_turned_images_are_classes_of_their_own():
    pixels = np.zeros((400, 28, 28, 1), np.uint8)
    pixels[:, 0, 0, 0] = 255  # one bright corner tells the turn
    pool = ClassPool(pixels, np.array([150, 250]), ("a", "b"))
    images = TrainingImages(pool, PretrainConfig("miniimagenet", "conv4", 1, 28, turns=0.4, batch=400))
    vectors, classes = images.batch(0)
    corners = vectors.view(400, 28, 28)[:, [0, 27, 27, 0], [0, 0, 27, 27]]  # where it is after 0, 1, 2, 3 turns
    assert images.told_apart.classes == 8
    assert torch.equal(corners.argmax(1), classes // 2)
    assert (classes % 2).sum() == 250  # every image once
    assert 120 < (classes >= 2).sum() < 200
    assert set(classes.tolist()) == set(range(8))
    assert (TrainingImages(pool, replace(images.config, turns=0.0)).batch(0)[1] < 2).all()
