"""A run that is killed, stopped or damaged goes on as if nothing had happened, or says why it cannot."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.evaluation.metrics import evaluate
from nvdp.models.registry import build_model
from nvdp.training import loop as trainer
from nvdp.training.checkpoint import checkpoint_paths, load_newest_checkpoint
from nvdp.training.config import RunConfig
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import RunLog, load_run, only_process, save_model, start_run

MACHINE = Machine(device="cpu", threads=1)

KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from nvdp.data.gp import GPTasks
from nvdp.training.config import RunConfig
from nvdp.training.run import Machine, train

folder, moment = Path(sys.argv[1]), sys.argv[2]
draw, rename = GPTasks.training_batch, Path.replace

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def training_batch(self, seed, step, tasks):
    if moment == "between checkpoints" and step == 37:
        die()
    return draw(self, seed, step, tasks)

def replace(self, target):
    if moment == "while a checkpoint is written" and "step-000000040" in Path(target).name:
        die()
    return rename(self, target)

GPTasks.training_batch, Path.replace = training_batch, replace
train(RunConfig.load(Path(sys.argv[3])), folder, machine=Machine(device="cpu", threads=1))
"""


@pytest.fixture
def short(config):
    return replace(config, steps=6, checkpoint_every=2, log_every=2)


def run(config, folder, **options):
    return train(config, folder, machine=MACHINE, **options)


def log_rows(folder):
    with (folder / "log.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same_run(folder, other):
    assert log_rows(folder) == log_rows(other)
    ours, theirs = (load_newest_checkpoint(f / "checkpoint")[0] for f in (folder, other))
    assert ours.step == theirs.step
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name
    (_, model, step), (_, other_model, other_step) = load_run(folder), load_run(other)
    assert step == other_step
    for a, b in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(a, b)


def signal_at(monkeypatch, step, number):
    take = trainer.Prefetch.take

    def interrupted(self, current):
        if current == step:
            os.kill(os.getpid(), number)
        return take(self, current)

    monkeypatch.setattr(trainer.Prefetch, "take", interrupted)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("moment", ["between checkpoints", "while a checkpoint is written"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, config, moment):
    (tmp_path / "given.json").write_text(config.to_json())
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    child = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, killed, moment, tmp_path / "given.json"], capture_output=True, timeout=120
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert [int(p.stem.removeprefix("step-")) for p in checkpoint_paths(killed / "checkpoint")] == [20]
    assert int(log_rows(killed)[-1]["step"]) == 35
    assert not (killed / "model.safetensors").exists()

    assert run(config, killed, resume=True).step == 60
    run(config, whole)
    assert_same_run(killed, whole)
    assert [int(row["step"]) for row in log_rows(whole)] == [7, 14, 21, 28, 35, 42, 49, 56, 60]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_and_the_run_resumes_bit_for_bit(tmp_path, config, monkeypatch, number):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    config = replace(config, steps=30)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patched:
        signal_at(patched, 16, number)
        outcome = run(config, stopped)
    assert (outcome.stopped_by, outcome.step) == (number, 17)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert load_newest_checkpoint(stopped / "checkpoint")[0].step == 17
    with pytest.raises(InputError, match=r"no model\.safetensors yet"):
        load_run(stopped)

    outcome = run(config, stopped, resume=True)
    assert (outcome.stopped_by, outcome.step) == (None, 30)
    run(config, whole)
    assert_same_run(stopped, whole)


def test_a_run_that_goes_on_by_another_engine_says_so(tmp_path, short, monkeypatch):
    with monkeypatch.context() as patched:
        signal_at(patched, 2, signal.SIGTERM)
        train(short, tmp_path, machine=Machine(engine="autograd"))
    notes = train(short, tmp_path, resume=True, machine=Machine(engine="fused")).notes
    assert notes == (
        "steps up to 3 are by the engine autograd, the others by fused: by rounding, the run differs from one without "
        "the interruption",
    )
    again = train(short, tmp_path, resume=True, machine=Machine(engine="autograd"))  # is finished: no step is taken
    assert (again.notes, again.engines) == ((), "autograd, then fused")


def test_a_run_that_was_killed_before_its_first_checkpoint_says_that_it_begins_again(tmp_path, short):
    train(short, tmp_path)
    for checkpoint in (tmp_path / "checkpoint").iterdir():
        checkpoint.unlink()
    (tmp_path / "model.safetensors").unlink()
    log = (tmp_path / "log.csv").read_text().splitlines()
    (tmp_path / "log.csv").write_text("\n".join(log[:2]) + "\n")
    notes = train(short, tmp_path, resume=True).notes
    assert notes == ("the run was ended before its first checkpoint and begins again at step 0",)


def test_a_signal_during_the_last_step_leaves_a_finished_run(tmp_path, short, monkeypatch):
    signal_at(monkeypatch, 5, signal.SIGTERM)
    outcome = run(short, tmp_path)
    assert (outcome.stopped_by, outcome.step) == (None, 6)
    assert load_run(tmp_path)[2] == 6


def test_resuming_a_finished_run_changes_nothing(tmp_path, short):
    run(short, tmp_path)
    log, weights = (tmp_path / "log.csv").read_bytes(), load_run(tmp_path)[1].state_dict()
    assert run(short, tmp_path, resume=True).step == 6
    assert (tmp_path / "log.csv").read_bytes() == log
    for name, tensor in load_run(tmp_path)[1].state_dict().items():
        assert torch.equal(tensor, weights[name])


def test_a_run_is_reproducible_from_its_seed(tmp_path, short):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(replace(short, seed=seed), tmp_path / name)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert log_rows(tmp_path / "a") != log_rows(tmp_path / "c")


def test_an_existing_run_is_not_overwritten(tmp_path, short):
    run(short, tmp_path)
    with pytest.raises(InputError, match="already holds a run; add --resume"):
        run(short, tmp_path)


def test_a_run_with_other_settings_does_not_resume_and_says_which(tmp_path, short):
    run(short, tmp_path)
    with pytest.raises(InputError, match=r"other settings: learning_rate was 0\.01, now 0\.5"):
        run(replace(short, learning_rate=0.5), tmp_path, resume=True)


def test_an_unknown_key_in_the_folders_configuration_is_refused(tmp_path, short):
    run(short, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    with pytest.raises(InputError, match="unknown key 'colour'"):
        run(short, tmp_path, resume=True)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, short):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="not empty and holds no run"):
        run(short, tmp_path)


@pytest.mark.parametrize(("place", "words"), [("file", "is a file"), ("file/below", "cannot make")])
def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path, short, place, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=words):
        run(short, tmp_path / place)


def test_a_cut_checkpoint_falls_back_to_the_one_before_bit_for_bit_and_says_so(tmp_path, short):
    damaged, whole = tmp_path / "damaged", tmp_path / "whole"
    for folder in (damaged, whole):
        run(short, folder)
    cut(checkpoint_paths(damaged / "checkpoint")[-1])
    outcome = run(short, damaged, resume=True)
    assert len(outcome.notes) == 1
    assert "step-000000006" in outcome.notes[0]
    assert_same_run(damaged, whole)


def test_with_both_checkpoints_damaged_a_run_does_not_resume(tmp_path, short):
    run(short, tmp_path)
    for path in checkpoint_paths(tmp_path / "checkpoint"):
        cut(path)
    with pytest.raises(InputError, match="no whole checkpoint to resume from"):
        run(short, tmp_path, resume=True)


@pytest.mark.parametrize(("stop", "logged"), [(0, 0), (3, 4), (None, 6)])
def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path, short, monkeypatch, stop, logged):
    with monkeypatch.context() as patched:
        if stop is not None:
            signal_at(patched, stop, signal.SIGTERM)
        run(short, tmp_path)
    log = (tmp_path / "log.csv").read_text()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=f"a log of {logged} steps and no checkpoint to resume from"):
        run(short, tmp_path, resume=True)
    assert (tmp_path / "log.csv").read_text() == log


def test_a_run_killed_before_its_first_checkpoint_begins_again_bit_for_bit(tmp_path, short):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    config = replace(short, checkpoint_every=100)
    for folder in (killed, whole):
        run(config, folder)
    for path in (*checkpoint_paths(killed / "checkpoint"), killed / "model.safetensors"):
        path.unlink()
    rows = (killed / "log.csv").read_text().splitlines()
    (killed / "log.csv").write_text("\n".join(rows[:-1]) + "\n")  # as a run that was killed at step 4 leaves it
    run(config, killed, resume=True)
    assert_same_run(killed, whole)


def test_a_configuration_edited_after_the_run_began_is_refused(tmp_path, short, monkeypatch):
    with monkeypatch.context() as patched:
        signal_at(patched, 3, signal.SIGTERM)
        run(short, tmp_path)
    edited = replace(short, learning_rate=0.5)
    (tmp_path / "config.json").write_text(edited.to_json())
    with pytest.raises(InputError, match="belongs to another configuration"):
        run(edited, tmp_path, resume=True)


def test_a_flipped_bit_in_the_weights_is_detected(tmp_path, short):
    run(short, tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(InputError, match="checksum does not match"):
        load_run(tmp_path)


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path, short):
    run(short, tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["model"]["y_dim"] = 2
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"does not fit its configuration: '.*' has shape \(.*\); expected \("):
        load_run(tmp_path)


def test_a_log_row_cut_by_a_power_failure_does_not_stop_or_spoil_a_resumed_run(tmp_path, short, monkeypatch):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    with monkeypatch.context() as patched:
        signal_at(patched, 3, signal.SIGTERM)
        run(short, stopped)
    with (stopped / "log.csv").open("a") as file:
        file.write("1")  # the first digit of a row that was never finished
    run(short, stopped, resume=True)
    run(short, whole)
    assert_same_run(stopped, whole)


def test_a_trained_model_beats_an_untrained_one(tmp_path, small_config):
    config = RunConfig(
        model=small_config("cnp", {"decoder.width": 16, "encoder.size": 16}), steps=300, learning_rate=3e-3
    )
    run(config, tmp_path)
    tasks = [GPTasks().validation_chunk(1, 0)]
    untrained, trained = (
        evaluate(model, tasks, samples=1)["scores"]["PLL"]["mean_parameters"]
        for model in (build_model(config.model), load_run(tmp_path)[1])
    )
    assert trained > untrained + 0.2


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path, short):
    start_run(tmp_path, short, resume=False)
    with only_process(tmp_path), pytest.raises(InputError, match="being trained by another process"):
        run(short, tmp_path, resume=True)
    assert run(short, tmp_path, resume=True).step == short.steps


def test_a_damaged_line_of_the_log_is_dropped_on_resume(tmp_path):
    (tmp_path / "log.csv").write_bytes(
        b"step,bound,LL,KL,rate,learning_rate,skipped,seconds\n5,1,1,1,1,1,0,1\n\xff\x00x,1,1,1,1,1,0,1\n9,1,1\n"
    )
    with RunLog(tmp_path, 10) as log:
        log.write({"step": 10, "bound": 1.0})
    assert [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()] == ["step", "5", "10"]


def test_a_model_that_could_not_be_loaded_is_not_called_saved(tmp_path, small_config):
    with pytest.raises(InputError, match="'learning_rate' is inf; expected a positive, finite number"):
        RunConfig(learning_rate=math.inf)
    model = build_model(small_config("cnp"))
    with torch.no_grad():
        next(model.parameters()).fill_(math.inf)
    with pytest.raises(InputError, match="training has diverged"):
        save_model(tmp_path, model, 3)
    assert not list(tmp_path.iterdir())


def test_names_that_moved_to_run_are_still_in_loop():
    names = ("Machine", "Outcome", "train", "train_in_folder")
    assert all(getattr(trainer, name) is getattr(import_module("nvdp.training.run"), name) for name in names)
    with pytest.raises(AttributeError, match=r"module 'nvdp\.training\.loop' has no attribute 'trian'"):
        _ = trainer.trian
