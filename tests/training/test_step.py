"""Engines compute the same run, optimisers resume with their state, and neither takes a name it does not know."""

import csv
from dataclasses import replace

import pytest
import torch

from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.objectives import KLScale
from nvdp.training import trainer
from nvdp.training.config import RunConfig, preset_config
from nvdp.training.run_folder import load_run
from nvdp.training.trainer import Machine, train


@pytest.fixture
def config(small_config):
    return RunConfig(
        model=small_config("nvdp", task_norm=True),
        kl=KLScale("elbo", 0.1),
        steps=8,
        tasks_per_step=4,
        learning_rate=1e-2,
        checkpoint_every=4,
        log_every=2,
    )


def weights(config, folder, engine="fused", **options):
    train(config, folder, machine=Machine("cpu", threads=1, engine=engine), **options)
    return load_run(folder)[1].state_dict()


def test_autograd_and_hand_derived_gradients_train_alike(tmp_path, config):
    bounds = []
    for engine in ("fused", "autograd"):
        weights(config, tmp_path / engine, engine)
        with (tmp_path / engine / "log.csv").open() as file:
            bounds.append([float(row["bound"]) for row in csv.DictReader(file)])
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-4)
    assert len(set(bounds[0])) == 4  # it moves


def test_an_unknown_engine_is_refused_before_a_folder_is_made(tmp_path, config):
    with pytest.raises(InputError, match="unknown engine 'fusde'; did you mean 'fused'"):
        train(config, tmp_path / "run", machine=Machine("cpu", engine="fusde"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "nadam"])
def test_every_optimizer_resumes_bit_for_bit(tmp_path, config, monkeypatch, optimizer):
    config = replace(config, optimizer=optimizer)
    whole = weights(config, tmp_path / "whole")
    take = trainer.Prefetch.take

    def broken(self, step):
        if step == 6:
            raise KeyboardInterrupt
        return take(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Prefetch, "take", broken)
        with pytest.raises(KeyboardInterrupt):
            weights(config, tmp_path / "cut")
    resumed = weights(config, tmp_path / "cut", resume=True)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InputError, match="unknown optimizer 'sgd'"):
        preset_config("gp", "nvdp", "quick", optimizer="sgd")


def test_presets_of_a_cpu_scale_pictures_and_normalise_nvdp_alone():
    mnist, cnp = (preset_config("mnist", name, "cpu").model for name in ("nvdp", "cnp"))
    assert (mnist.x_centre, mnist.x_scale, mnist.task_norm, cnp.x_scale, cnp.task_norm) == (0.5, 4.0, True, 4.0, False)
    printed = preset_config("celeba", "nvdp", "paper").model
    assert (printed.x_scale, printed.task_norm, printed.encoder_width, printed.representation) == (
        1.0,
        False,
        None,
        1_024,
    )


def test_pytorch_s_initialisation_is_smaller_where_he_s_was_used():
    base = preset_config("gp", "nvdp", "cpu").model
    he, own = build_model(base), build_model(replace(base, initialisation="fan-in"))
    ratio = he.encoder.features[0].linears[1].weight / own.encoder.features[0].linears[1].weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, 6**0.5))
    assert torch.equal(he.network.layers[1].weight, own.network.layers[1].weight)
