"""Random changes of training images."""

import torch

from nvdp.training.pretraining_images import shifted, warped


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
