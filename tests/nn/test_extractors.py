import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.extractors import EXTRACTORS, ConvBlock, ConvExtractor, convolved, extractor_shape, pooled
from nvdp.nn.views import image_views

IMAGES = {"conv4": (1, 28), "conv4-wide": (1, 28), "conv5": (3, 84), "conv5-patches": (3, 84), "conv5-wide": (3, 84)}


@pytest.fixture
def trained(generator):
    """An extractor whose running averages are not those it began with."""
    extractor = ConvExtractor("conv4", 1)
    for _ in range(3):
        extractor(torch.rand(6, 1, 28, 28, generator=generator))
    for block in extractor.blocks:
        nn.init.normal_(block.scale, 1.0, 0.5, generator=generator)
        nn.init.normal_(block.shift, 0.0, 0.5, generator=generator)
    return extractor.eval().requires_grad_(False)


@pytest.mark.parametrize("name", EXTRACTORS)
def test_extractors_give_256_features_and_the_wide_ones_four_or_five_times_as_many(name):
    channels, size = IMAGES[name]
    features = {"conv4-wide": 1024, "conv5-wide": 1280}.get(name, 256)
    assert ConvExtractor(name, channels).eval()(torch.zeros(2, channels, size, size)).shape == (2, features)
    assert extractor_shape(name).features(size) == features


def test_features_are_means_over_views_outside_training(generator):
    images = torch.rand(2, 3, 84, 84, generator=generator)
    *moved, mirrored = image_views(images, "mirrored")
    assert torch.equal(mirrored, images.flip(-1))
    assert torch.equal(moved[1][..., 4:, 4:], images[..., :-4, :-4])  # down and to the right by a twentieth
    assert torch.equal(moved[4][..., :-4, :-4], images[..., 4:, 4:])
    one, six = ConvExtractor("conv5-patches", 3).eval(), ConvExtractor("conv5-patches", 3, views="mirrored").eval()
    six.load_state_dict(one.state_dict())
    expected = torch.stack([one(view) for view in (*moved, mirrored)]).mean(0)
    torch.testing.assert_close(six(images), expected)
    torch.testing.assert_close(six.train()(images), one.train()(images))
    with pytest.raises(InputError, match="unknown views of an image 'turned'"):
        ConvExtractor("conv4", 1, views="turned")


def test_maximum_before_relu_is_maximum_after_relu(generator):
    maps = torch.randn(2, 4, 7, 7, generator=generator)
    for keep_odd in (True, False):
        assert torch.equal(pooled(maps, keep_odd), F.max_pool2d(F.relu(maps), 2, ceil_mode=keep_odd))


def plain(extractor, images, training):
    """The same blocks by PyTorch's own layers."""
    for block in extractor.blocks:
        norm = nn.BatchNorm2d(64).train(training)
        norm.weight.data, norm.bias.data = block.scale.clone(), block.shift.clone()
        norm.running_mean, norm.running_var = block.running_mean.clone(), block.running_var.clone()
        images = F.max_pool2d(F.relu(norm(F.conv2d(images, block.weight, padding=1))), 2, ceil_mode=True)
        yield norm, images.flatten(1)


def test_batch_norm_folded_into_the_weights_is_batch_norm(trained, generator):
    images = torch.rand(5, 1, 28, 28, generator=generator)
    expected = list(plain(trained, images, training=False))[-1][1]
    torch.testing.assert_close(trained(images), expected, atol=1e-4, rtol=1e-4)


def test_training_normalises_by_the_batch_and_averages_as_pytorch_does(trained, generator):
    images = torch.rand(5, 1, 28, 28, generator=generator)
    norms, expected = zip(*plain(trained, images, training=True), strict=True)
    assert torch.allclose(trained(images, "batch"), expected[-1].detach(), atol=1e-4)
    torch.testing.assert_close(trained.train()(images), expected[-1].detach(), atol=1e-4, rtol=1e-4)
    for block, norm in zip(trained.blocks, norms, strict=True):
        torch.testing.assert_close(block.running_mean, norm.running_mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(block.running_var, norm.running_var, atol=1e-4, rtol=1e-4)


def test_with_running_statistics_an_image_stands_alone_with_those_of_the_batch_it_does_not(trained, generator):
    images = torch.rand(5, 1, 28, 28, generator=generator)
    torch.testing.assert_close(trained(images)[:2], trained(images[:2]), atol=1e-5, rtol=1e-5)
    assert (trained(images, "batch")[:2] - trained(images[:2], "batch")).abs().max() > 0.01


def test_statistics_of_a_batch_leave_the_averages_alone_outside_training(trained):
    before = trained.blocks[0].running_mean.clone()
    trained(torch.rand(4, 1, 28, 28), "batch")
    assert torch.equal(trained.blocks[0].running_mean, before)


def test_unknown_names_are_refused(trained):
    with pytest.raises(InputError, match="'conv6'; did you mean 'conv"):
        ConvExtractor("conv6", 1)
    with pytest.raises(InputError, match="'all'; expected running or batch"):
        trained(torch.zeros(1, 1, 28, 28), "all")


def test_patches_are_a_first_convolution_of_six_by_six_pixels_and_stride_two(generator):
    extractor = ConvExtractor("conv5-patches", 3).eval()
    images = torch.rand(2, 3, 84, 84, generator=generator)
    first = extractor.blocks[0].weight  # (64, 12, 3, 3): channel by row and column in the square
    wide = first.view(64, 3, 2, 2, 3, 3).permute(0, 1, 4, 2, 5, 3).reshape(64, 3, 6, 6)
    expected = F.conv2d(images, wide, stride=2, padding=2)
    torch.testing.assert_close(convolved(extractor.shape.patched(images), first), expected, atol=1e-5, rtol=1e-5)
    assert extractor.shape.patched(torch.rand(1, 3, 85, 85)).shape == (1, 12, 42, 42)  # the last row is left out


def test_without_the_last_relu_features_have_both_signs_and_agree_with_it_elsewhere(generator):
    images = torch.rand(6, 1, 28, 28, generator=generator)
    both, positive = ConvExtractor("conv4", 1, last_relu=False), ConvExtractor("conv4", 1)
    positive.load_state_dict(both.state_dict())
    for training in (True, False):
        features = both.train(training)(images)
        assert features.min() < 0
        torch.testing.assert_close(F.relu(features), positive.train(training)(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "keep_odd"), [(1, 64, 7, True), (3, 5, 7, False), (2, 96, 6, True)]
)
@pytest.mark.parametrize(("relu", "window"), [(True, 2), (False, 2), (False, 1)])
def test_a_block_has_the_outputs_and_gradients_of_pytorchs_own_layers(
    channels, outputs, size, keep_odd, relu, window, generator
):
    block = ConvBlock(channels, outputs, relu=relu).double()
    nn.init.normal_(block.scale, 0.0, 1.0, generator=generator)  # of either sign
    nn.init.normal_(block.shift, 0.0, 1.0, generator=generator)
    images = torch.rand(4, channels, size, size, generator=generator, dtype=torch.float64)
    images[:, :, :4, :4] = 0.0  # ties, as on the background of a character
    images.requires_grad_()
    ours = block(images, "running", keep_odd, window)
    maps = F.conv2d(images, block.weight, padding=1)
    maps = F.batch_norm(maps, None, None, block.scale, block.shift, True)
    expected = pooled(maps, keep_odd, window, relu)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    inputs = (images, block.weight, block.scale, block.shift)
    gradients = (torch.autograd.grad((result * weights).sum(), inputs) for result in (ours, expected))
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)
    for own, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(own, reference, atol=1e-5, rtol=1e-5)


def test_maps_of_grey_images_have_their_channels_last():
    maps = convolved(torch.rand(2, 1, 6, 6), torch.rand(64, 1, 3, 3))
    assert maps.is_contiguous(memory_format=torch.channels_last)
