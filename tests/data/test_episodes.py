"""Episodes: what is drawn is distinct, disjoint, the same for the same seed; turned classes are turned images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nvdp.data.class_pools import ClassPool, image_vectors
from nvdp.data.episodes import EpisodeConfig, EpisodeTasks, check_pool, draw_episodes
from nvdp.errors import InputError


def numbered_pool(counts=(20, 17, 30, 18, 25, 16), turned=False):
    """Images of 1 × 2 pixels: the first is the class's number, the second the image's place in the class."""
    points = [[[[c], [k]], [[0], [0]]] for c, count in enumerate(counts) for k in range(count)]
    return ClassPool(np.array(points, np.uint8), np.array(counts), [f"c{c}" for c in range(len(counts))], turned)


def drawn(batch):
    """Class and place of every point, read from its pixels."""
    pixels = (batch.x * 255).round().long()
    return pixels[..., 0], pixels[..., 1]


@pytest.mark.parametrize(("way", "shot", "queries"), [(5, 1, 15), (6, 2, 3), (2, 5, 11)])
def test_classes_are_distinct_and_support_and_queries_share_no_image(generator, way, shot, queries):
    batch = draw_episodes(numbered_pool(), EpisodeConfig(way, shot, queries), 50, generator)
    classes, places = drawn(batch)
    assert batch.x.shape == (50, way * (shot + queries), 4)
    assert batch.mask.all()
    assert (batch.is_context == (torch.arange(batch.x.shape[1]) < way * shot)).all()
    for task in range(50):
        of_label = [classes[task][batch.y[task, :, label] == 1] for label in range(way)]
        assert all((same == same[0]).all() and len(same) == shot + queries for same in of_label)
        assert len({int(same[0]) for same in of_label}) == way
        assert len(set(zip(classes[task].tolist(), places[task].tolist(), strict=True))) == batch.x.shape[1]
    support = batch.y * batch.is_context[..., None]
    assert (support.sum(1) == shot).all()


def test_every_class_and_every_image_is_drawn_equally_often(generator):
    counts = (20, 17, 30)
    batch = draw_episodes(numbered_pool(counts), EpisodeConfig(2, 1, 4), 3_000, generator)
    classes, places = drawn(batch)
    shares = torch.bincount(classes.flatten(), minlength=3) / classes.numel()
    assert torch.allclose(shares, torch.full((3,), 1 / 3), atol=0.02)
    for c, count in enumerate(counts):
        share = torch.bincount(places[classes == c], minlength=count) / (classes == c).sum()
        assert len(share) == count
        assert torch.allclose(share, torch.full((count,), 1 / count), atol=0.01)


class Source:
    name, size, channels, features = "numbers", 2, 1, 4

    def split(self, name):
        return numbered_pool(turned=name == "train")


def test_same_arguments_give_the_same_episodes_and_others_do_not():
    source = EpisodeTasks(Source(), EpisodeConfig(3, 1, 5))
    first = source.training_batch(0, 7, 4)
    assert torch.equal(first.x, source.training_batch(0, 7, 4).x)
    assert not torch.equal(first.x, source.training_batch(0, 8, 4).x)
    assert not torch.equal(first.x, source.training_batch(1, 7, 4).x)
    chunk = source.validation_chunk(5, 0)
    assert torch.equal(chunk.x, source.validation_chunk(5, 0).x)
    assert not torch.equal(chunk.x, source.validation_chunk(5, 1).x)
    assert not torch.equal(chunk.x, replace(source, scored="validation").validation_chunk(5, 0).x)
    assert (source.x_dim, source.y_dim, len(chunk)) == (4, 3, 64)


def test_a_turned_class_shows_the_turned_image():
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    pool = ClassPool(images, np.array([2, 4]), ["a", "b"], turned=True)
    assert pool.classes == 8
    assert pool.class_counts.tolist() == [2, 4] * 4
    for turns in range(4):
        (shown,) = pool.vectors(np.array([2 * turns + 1]), np.array([[3]]))
        expected = np.rot90(images[5], turns).transpose(2, 0, 1).reshape(1, -1) / 255
        assert np.allclose(shown, expected, atol=1e-6)
    # Four quarter turns of an image are the image.
    turned = images
    for _ in range(4):
        rows = image_vectors(turned, np.ones(6, int)).reshape(6, 3, 5, 5).permute(0, 2, 3, 1)
        turned = (rows * 255).round().numpy().astype(np.uint8)
    assert (turned == images).all()


def test_bad_shapes_are_told_in_one_line():
    pool = numbered_pool((20, 3, 20))
    with pytest.raises(InputError, match=r"^class 'c1' has 3 images; 1-shot with 15 queries needs 16$"):
        check_pool(pool, EpisodeConfig(2, 1, 15), "it")
    with pytest.raises(InputError, match=r"^the folder has 3 classes; 5-way needs 5$"):
        check_pool(pool, EpisodeConfig(5, 1, 1), "the folder")
    with pytest.raises(InputError, match="'way' is 1; expected a whole number of at least 2"):
        EpisodeConfig(way=1)
    with pytest.raises(InputError, match="needs --features"):
        EpisodeConfig(regime="features")
    with pytest.raises(InputError, match="'regime' is 'both'"):
        EpisodeConfig(regime="both")
