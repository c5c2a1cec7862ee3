"""A short run, and pictures of classes that an extractor can learn to tell apart."""

import numpy as np
import pytest
from PIL import Image

from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig


@pytest.fixture
def config(small_config):
    """60 steps whose log rows and checkpoints never fall together until the last."""
    return RunConfig(
        model=small_config("nvdp", {"decoder.width": 16}),
        kl=KLScale("elbo", 0.1),
        steps=60,
        tasks_per_step=4,
        learning_rate=1e-2,
        warmup_steps=5,
        gradient_clip=1.0,
        log_every=7,
        checkpoint_every=20,
    )


@pytest.fixture(scope="session")
def class_folder(tmp_path_factory):
    """Forty classes of 18 pictures: a class is a direction of stripes and their width, under noise."""
    root, random = tmp_path_factory.mktemp("classes"), np.random.default_rng(0)
    row, column = np.mgrid[:16, :16]
    for c in range(40):
        (root / f"c{c:02d}").mkdir()
        angle, width = np.pi * c / 40, 0.6 + 0.5 * (c % 3)
        for k in range(18):
            phase = random.uniform(0, 2 * np.pi)
            wave = np.sin(width * (np.cos(angle) * row + np.sin(angle) * column) + phase)
            pixels = 128 + 90 * wave + random.normal(0, 15, wave.shape)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"c{c:02d}" / f"{k:02d}.png")
    return root
