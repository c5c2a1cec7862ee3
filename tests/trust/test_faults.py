"""Short versions of what ``python -m faults`` does at length: whatever happens to a run, nothing is lost or wrong."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from faults import hostile, interruptions, numbers, processes, threads
from faults.runs import TINY, run, state_of
from nvdp.errors import InputError
from nvdp.training.checkpoint import checkpoint_paths
from nvdp.training.distributed import Machine, check_shares, launch
from nvdp.training.loop import TrainingStep
from nvdp.training.run import train
from nvdp.training.run_folder import load_run

RUN_0_1, RUN_0_2 = (Path(__file__).parent / f"run_0_{minor}" for minor in (1, 2))


def assert_right(tally, least=1):
    assert tally.wrong == []
    assert tally.tried >= least


def test_a_run_that_is_killed_at_any_moment_ends_as_if_undisturbed(tmp_path):
    for tally in interruptions.kills(tmp_path, 2):
        assert_right(tally)


def test_a_full_disk_is_told_and_costs_nothing_once_there_is_room(tmp_path):
    tally = interruptions.full_disk(tmp_path, (0, 10), mount=False)
    assert_right(tally, 2)
    assert "had room" not in tally.outcomes


def test_damage_to_a_checkpoint_never_goes_unnoticed(tmp_path):
    for tally in interruptions.damaged_checkpoints(tmp_path, flips=40, resumed=1):
        assert_right(tally)


def test_weights_from_strangers_are_refused_and_never_executed(tmp_path):
    for tally in hostile.weights_from_strangers(tmp_path):
        assert_right(tally, 40)
    assert_right(hostile.odd_places(tmp_path), 5)


def test_configurations_from_strangers_are_refused_or_harmless(tmp_path):
    assert_right(hostile.configurations_from_strangers(tmp_path, every=5), 150)


@pytest.mark.parametrize("precision", [*numbers.PRECISIONS, numbers.MIXED])
def test_extreme_inputs_give_finite_losses_gradients_and_predictions(precision):
    assert_right(numbers.extreme_inputs(precision, every=8), 20)


def test_eight_threads_get_the_answers_of_one():
    assert_right(threads.library(48), 48)
    assert_right(threads.service(24), 24)


def test_processes_that_share_a_run_come_to_the_weights_of_one(tmp_path):
    assert_right(processes.shared_runs(tmp_path, ["nvdp"]))


def die_unless_first(processes):
    if processes.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    processes.fabric.barrier()


def complain_unless_first(processes):
    if processes.rank:
        raise InputError("the disk of the second is full")
    processes.fabric.barrier()


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (die_unless_first, "and the run with it; --resume goes on"),
        (complain_unless_first, "disk of the second is full"),
    ],
)
def test_a_process_that_dies_or_complains_ends_the_run_with_its_reason(work, words):
    port = os.environ.get("MASTER_PORT")
    with pytest.raises(InputError, match=words):
        launch(Machine("cpu", devices=2), lambda: None, work)
    assert os.environ.get("MASTER_PORT") == port


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (0, "--devices is 0"),
        (3, "4 tasks a step cannot be shared equally by 3"),
        (4, "at least 2 tasks a step and process; got 4 for 4"),
    ],
)
def test_tasks_that_cannot_be_shared_are_refused_before_a_folder_is_made(tmp_path, devices, words):
    with pytest.raises(InputError, match=words):
        train(TINY, tmp_path / "run", machine=Machine("cpu", devices))
    assert not (tmp_path / "run").exists()


def test_tasks_without_normalisation_may_be_shared_one_by_one():
    check_shares(4, 4, normalised=False)


def test_what_a_killed_process_has_left_half_written_is_removed_and_in_nobodys_way(tmp_path):
    (tmp_path / ".config.json.1.part").write_text("{")
    run(replace(TINY, steps=2), tmp_path)
    (tmp_path / "checkpoint" / ".step-000000009.safetensors.1.part").write_text("half")
    run(replace(TINY, steps=2), tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_of_version_0_1_is_refused_in_one_line(tmp_path):
    shutil.copytree(RUN_0_1, tmp_path / "run")
    for use in (load_run, lambda folder: run(TINY, folder)):
        with pytest.raises(InputError, match=r"config\.json was written by version 0\.1, .*; train again$"):
            use(tmp_path / "run")


def test_a_run_of_version_0_2_loads_and_resumes(tmp_path):
    shutil.copytree(RUN_0_2, tmp_path / "run")
    config, model, step = load_run(tmp_path / "run")
    assert step == config.steps == 12
    stored = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert torch.isfinite(model.adapt([0.0, 1.0], [0.5, -0.5]).predict([0.3]).std).all()
    (tmp_path / "run" / "model.safetensors").unlink()
    assert run(config, tmp_path / "run").step == 12
    # Other processors round otherwise, and Adam takes whole steps along rounding errors: a bias before a normalisation
    # has no gradient but them. From scratch the weights would be 0.04 off.
    for name, tensor in load_run(tmp_path / "run")[1].state_dict().items():
        torch.testing.assert_close(tensor, stored[name], rtol=1e-4, atol=config.learning_rate)


def test_a_checkpoint_whose_optimiser_does_not_fit_is_refused(tmp_path):
    from nvdp.training.checkpoint import load_tensors, save_tensors

    config = replace(TINY, steps=2)
    run(config, tmp_path)
    path = checkpoint_paths(tmp_path / "checkpoint")[-1]
    tensors, saved = load_tensors(path)
    for key in ("optimizer/0/exp_avg", "optimizer/9999/exp_avg", "optimizer/first/exp_avg"):
        save_tensors(path, tensors | {key: torch.zeros(3, 3, 3)}, saved)
        with pytest.raises(InputError, match="does not fit its configuration"):
            run(config, tmp_path)
    assert state_of(tmp_path)


def test_a_skipped_step_is_reported_at_the_end(tmp_path, monkeypatch):
    forward, steps = TrainingStep.forward, iter(range(100))

    def spoiled(self, *points):
        own = forward(self, *points)
        return own | {"bound": own["bound"] * float("nan")} if next(steps) in (1, 3) else own

    monkeypatch.setattr(TrainingStep, "forward", spoiled)
    outcome = run(replace(TINY, steps=6), tmp_path)
    assert outcome.notes == ("2 of 6 steps were skipped: their bound or gradient was not finite",)
    assert all(torch.isfinite(tensor).all() for tensor in state_of(tmp_path).values())
