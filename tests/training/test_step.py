"""Engines compute the same run, optimisers resume with their state, and neither takes a name it does not know."""

import csv
from dataclasses import replace

import pytest
import torch

from nvdp.errors import InputError
from nvdp.experiments.plan import paper_architecture
from nvdp.models.config import ModelConfig
from nvdp.objectives import KLScale
from nvdp.training import loop as trainer
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import load_run


@pytest.fixture
def config(small_config):
    return RunConfig(
        model=small_config("nvdp", {"encoder.task_norm": True}),
        kl=KLScale("elbo", 0.1),
        steps=8,
        tasks_per_step=4,
        learning_rate=1e-2,
        checkpoint_every=4,
        log_every=2,
    )


def weights(config, folder, engine="compiled", precision="32-true", **options):
    train(config, folder, machine=Machine("cpu", precision=precision, threads=1, engine=engine), **options)
    return load_run(folder)[1].state_dict()


def test_autograd_and_hand_derived_gradients_train_alike(tmp_path, config):
    bounds = []
    for engine in ("compiled", "fused", "autograd"):
        weights(config, tmp_path / engine, engine)
        with (tmp_path / engine / "log.csv").open() as file:
            bounds.append([float(row["bound"]) for row in csv.DictReader(file)])
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-4)
    assert len(set(bounds[0])) == 4  # it moves


def test_an_unknown_engine_is_refused_before_a_folder_is_made(tmp_path, config):
    with pytest.raises(InputError, match="unknown engine 'fusde'; did you mean 'fused'"):
        train(config, tmp_path / "run", machine=Machine("cpu", engine="fusde"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize("optimizer", ["adam", "nadam", "muon"])
def test_every_optimizer_resumes_bit_for_bit(tmp_path, config, monkeypatch, optimizer, precision):
    config = replace(config, optimizer=optimizer)
    whole = weights(config, tmp_path / "whole", precision=precision)
    take = trainer.Prefetch.take

    def broken(self, step):
        if step == 6:
            raise KeyboardInterrupt
        return take(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Prefetch, "take", broken)
        with pytest.raises(KeyboardInterrupt):
            weights(config, tmp_path / "cut", precision=precision)
    resumed = weights(config, tmp_path / "cut", precision=precision, resume=True)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(InputError, match="unknown optimizer 'sgd'"):
        preset_config("gp", "nvdp", "quick", optimizer="sgd")


def test_presets_of_a_cpu_scale_pictures_and_normalise_nvdp_alone():
    mnist, cnp = (preset_config("mnist", name, "cpu").model for name in ("nvdp", "cnp"))
    assert (
        mnist.inputs.x_centre,
        mnist.inputs.x_scale,
        mnist.encoder.task_norm,
        cnp.inputs.x_scale,
        cnp.encoder.task_norm,
    ) == (0.5, 4.0, True, 4.0, False)
    printed = preset_config("celeba", "nvdp", "paper").model
    assert (printed.inputs.x_scale, printed.encoder.task_norm, printed.encoder.width, printed.encoder.size) == (
        1.0,
        False,
        None,
        1_024,
    )


@pytest.mark.parametrize("name", ["nvdp-attentive", "nvdp-conv", "convgnp"])
def test_presets_of_models_that_read_give_each_point_of_a_gp_function_a_std(name):
    quick, cpu, printed = (preset_config("gp", name, preset).model for preset in ("quick", "cpu", "paper"))
    for model in (quick, cpu):
        assert (model.likelihood.shared_std, model.likelihood.joint_share) == (False, 1.0)
        assert not model.encoder.task_norm
    assert printed.likelihood.shared_std
    if name != "convgnp":
        assert (quick.decoder.layers, quick.rates.per, quick.rates.floor) == (1, "target", 1e-3)
        assert (printed.decoder.layers, printed.rates.per) == (2, "task")
        assert preset_config("mnist", name, "quick").model.encoder.task_norm


def test_presets_of_a_cpu_give_models_of_one_representation_fourier_features():
    for name in ("nvdp", "cnp", "np+cnp+vp"):
        shipped, printed = (preset_config("gp", name, preset) for preset in ("cpu", "tuned"))
        assert (shipped.model.inputs.fourier, shipped.model.encoder.aggregation, shipped.optimizer) == (
            8,
            "bayesian",
            "muon",
        )
        assert (shipped.muon_rows, shipped.learning_rate) == (128, 1.2e-2 if name == "nvdp" else 6e-3)
        assert paper_architecture(shipped).model == printed.model
        assert (printed.model, printed.optimizer) == (ModelConfig(name), "adam")
        digits = preset_config("mnist", name, "cpu")
        assert (digits.model.inputs.fourier, digits.model.encoder.residual) == (8, True)
        assert (digits.optimizer, digits.learning_rate) == ("nadam", 4e-3)
        assert not preset_config("celeba", name, "cpu").model.encoder.residual
        assert preset_config("mnist", name, "paper").model.inputs.fourier == 0
    for task, name in (("gp", "nvdp-attentive"), ("mnist", "nvdp-conv"), ("trig", "nvdp")):
        other = preset_config(task, name, "quick")
        assert (other.model.inputs.fourier, other.model.encoder.aggregation) == (0, "mean")
