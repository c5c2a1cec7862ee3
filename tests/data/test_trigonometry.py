import math

import pytest
import torch

from nvdp.data.registry import SOURCES, task_source
from nvdp.data.source import validation_tasks
from nvdp.data.trigonometry import FUNCTIONS, TrigonometryTasks
from nvdp.errors import InputError
from nvdp.evaluation.metrics import evaluate
from nvdp.models.registry import build_model

SOURCE = TrigonometryTasks()
KINDS = list(FUNCTIONS)


@pytest.fixture(scope="module")
def chunk():
    return SOURCE.validation_chunk(0, 0)


def amplitude_and_shift(kind, x, y):
    """a and b of y = a f(2x − bπ), solved for in closed form, and the largest error of the fit."""
    if kind == "tanh":
        amplitude = y.abs().max()
        steep = y.abs() < 0.7 * amplitude
        shift = ((2 * x - torch.atanh(y / amplitude))[steep] / math.pi).mean()
    else:
        basis = torch.stack([torch.sin(2 * x), torch.cos(2 * x)], -1)
        s, c = torch.linalg.lstsq(basis, y[:, None]).solution[:, 0]
        amplitude = torch.hypot(s, c)
        shift = torch.atan2(*((-c, s) if kind == "sine" else (s, c))) / math.pi
    fit = amplitude * FUNCTIONS[kind](2 * x - shift * math.pi)
    return amplitude.item(), shift.item(), (fit - y).abs().max().item()


def test_every_function_is_a_scaled_and_shifted_copy_of_its_kind(chunk):
    for x, y, kind in zip(chunk.x[..., 0].double(), chunk.y[..., 0].double(), chunk.kind, strict=True):
        amplitude, shift, error = amplitude_and_shift(KINDS[kind], x, y)
        assert error < 1e-3
        assert 1.499 < amplitude < 2.001
        assert abs(shift) < 0.101


def test_all_three_kinds_occur(chunk):
    assert set(chunk.kind.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "batch", [SOURCE.training_batch(0, 0, 16), SOURCE.validation_chunk(0, 1)], ids=["train", "val"]
)
def test_four_points_are_the_context_and_x_lies_within_pi(batch):
    assert (batch.context.count == 4).all()
    assert batch.x.abs().max() <= math.pi + 1e-6
    assert batch.mask.all()


def test_a_seed_names_its_tasks():
    first, again, other = (SOURCE.training_batch(seed, 0, 8) for seed in (0, 0, 1))
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)


def test_kind_stays_an_index_in_another_precision(chunk):
    assert chunk.to(torch.float64).kind.dtype == torch.int64


def test_a_model_can_be_evaluated_on_it(small_config):
    result = evaluate(build_model(small_config("cnp")), validation_tasks(SOURCE, 0, 5), samples=2)
    assert result["tasks"] == 5
    assert math.isfinite(result["scores"]["PLL"]["mean_parameters"])


def test_sources_are_found_by_the_name_they_carry():
    for name in SOURCES:
        assert task_source(name).name == name
    with pytest.raises(InputError, match="did you mean 'trig'"):
        task_source("trigg")
