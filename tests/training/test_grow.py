"""A grown model computes what the smaller one did; a start that does not fit is refused."""

import json
from pathlib import Path

import pytest
import torch
from command_line import refusal

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.training.grow import grown
from nvdp.training.loop import initial_model
from nvdp.training.presets import preset_config
from nvdp.training.run import train

SMALL = {"encoder.size": 16, "rates.width": 16, "decoder.width": 16, "decoder.layers": 2}
LARGER = {"encoder.size": 32, "rates.width": 48, "rates.layers": 4}


def config(**changes: object) -> RunConfig:
    return preset_config("gp", "nvdp", "quick", architecture={**SMALL, **changes}, steps=3, warmup_steps=0)


def test_a_grown_model_predicts_as_the_smaller_one() -> None:
    small, large = (build_model(config(**more).model, seed=1).eval() for more in ({}, LARGER))
    large.load_state_dict(grown(small.state_dict(), large, torch.Generator()))
    tasks = GPTasks().validation_chunk(0, 0).first(4)
    before, after = (model.adapt(tasks.context).predict(tasks.x) for model in (small, large))
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after.std, before.std, rtol=1e-4, atol=1e-5)


def test_copies_learn_different_things() -> None:
    small, large = (build_model(config(**more).model, seed=1) for more in ({}, LARGER))
    weight = grown(small.state_dict(), large, torch.Generator())["encoder.raw_variance.weight"]
    first, second = weight.chunk(2, dim=1)
    assert (first - second).abs().max() > 0.01
    torch.testing.assert_close((first + second)[:16], small.state_dict()["encoder.raw_variance.weight"])


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    train(config(), tmp_path / "small")
    started = preset_config(
        "gp", "nvdp", "quick", architecture={**SMALL, **LARGER}, steps=2, warmup_steps=0, start=str(tmp_path / "small")
    )
    assert RunConfig.from_dict(json.loads(started.to_json())) == started
    assert initial_model(started).state_dict()["encoder.raw_variance.bias"].shape == (32,)
    assert train(started, tmp_path / "large").step == 2


def test_another_decoder_is_refused(tmp_path: Path) -> None:
    small, other = (build_model(config(**more).model) for more in ({}, {"decoder.width": 32}))
    with pytest.raises(InputError, match="'network"):
        grown(small.state_dict(), other, torch.Generator())


def test_a_pretrained_model_is_a_start_by_its_name(tmp_path: Path) -> None:
    options = ("train", "gp", "--model", "nvdp", "--out", tmp_path / "run", "--start")
    assert "unknown folder or pretrained model 'gq'; did you mean 'gp'?" in refusal(*options, "gq")
    assert "cannot begin from" in refusal(*options, "gp")  # an nvdp-attentive
