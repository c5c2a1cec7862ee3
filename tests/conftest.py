"""Shapes are checked while testing: the hook must be in place before anything imports nvdp."""

from jaxtyping import install_import_hook

install_import_hook("nvdp", "shape_checker.check")

import signal  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402

from nvdp.models.config import ModelConfig  # noqa: E402
from nvdp.system import avoid_broken_amx  # noqa: E402
from nvdp.tasks import Task, TaskBatch  # noqa: E402

torch.set_num_threads(1)
avoid_broken_amx()  # before the first product; the processes of pytest-xdist inherit what it found
signal.signal(signal.SIGINT, signal.default_int_handler)  # which the processes of pytest-xdist ignore


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def small_config():
    """A function (name, changes, x_dim, y_dim) -> ModelConfig of a model that is quick to run."""

    def make(name="nvdp", changes=(), x_dim=1, y_dim=1):
        small = {
            "decoder.width": 8,
            "decoder.layers": 2,
            "encoder.size": 8,
            "encoder.layers": 2,
            "rates.width": 8,
            "rates.layers": 2,
            "decoder.latent": 4,
            "attention.width": 8,
            "attention.blocks": 2,
            "attention.heads": 2,
            "convolution.cells": 11,
            "convolution.channels": 4,
            "convolution.blocks": 1,
            "convolution.kernel": 3,
        }
        return ModelConfig(name, x_dim, y_dim).updated(small | dict(changes))

    return make


@pytest.fixture
def make_task(generator):
    """A function (context, target, x_dim, y_dim, dtype) -> Task with random points."""

    def make(context, target, x_dim=1, y_dim=1, dtype=torch.float32):
        x = torch.randn(context + target, x_dim, generator=generator, dtype=dtype)
        y = torch.randn(context + target, y_dim, generator=generator, dtype=dtype)
        return Task(x[:context], y[:context], x[context:], y[context:])

    return make


@pytest.fixture
def ragged_batch(make_task):
    """A function (x_dim, y_dim, dtype) -> TaskBatch of tasks of four sizes, one of them with no context."""

    def make(x_dim=1, y_dim=1, dtype=torch.float32):
        sizes = [(5, 3), (0, 4), (9, 1), (2, 6)]
        return TaskBatch.collate([make_task(c, t, x_dim, y_dim, dtype) for c, t in sizes])

    return make
