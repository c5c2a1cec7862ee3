"""``nvdp reproduce all``: every experiment in turn; one that fails stops no other, and is named."""

import json

from command_line import nvdp

from nvdp.errors import InputError
from nvdp.experiments import reproduce
from nvdp.experiments.plan import Experiment


def failing(runs, budget, device):
    raise InputError("no features here")


def drawn(data, path):
    path.write_text(json.dumps(data))
    return [path]


def test_all_experiments_are_done_and_what_failed_is_named(tmp_path, monkeypatch):
    experiments = (
        Experiment("first", "fails", lambda budget: [], prepare=failing),
        Experiment("second", "draws", lambda budget: [], collect=lambda folders: [len(folders)], draw=drawn),
    )
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {each.name: each for each in experiments})
    monkeypatch.setattr(
        reproduce, "run_queue", lambda *given: given[2].joinpath(given[0].name).mkdir(parents=True) or {}
    )
    outcome = nvdp("reproduce", "all", "--budget", "quick", "--out", tmp_path)
    assert outcome.returncode == 2
    assert "first: no features here" in outcome.stderr
    assert "1 of 2 experiments failed: first" in outcome.stderr
    assert "second: 0 runs done" in outcome.stdout
    assert json.loads((tmp_path / "second" / "quick-second.png").read_text()) == [0]


def test_only_goes_with_one_experiment(tmp_path):
    outcome = nvdp("reproduce", "all", "--only", "nvdp", "--out", tmp_path / "new")
    assert outcome.returncode == 2
    assert "--only is for the runs of one experiment" in outcome.stderr
    assert not (tmp_path / "new").exists()


def test_an_experiment_without_runs_draws_its_figure(tmp_path):
    drawn = Experiment("none", "No runs", lambda budget: [], lambda folders: {"n": 1}, lambda data, path: [path])
    lines = list(reproduce.reproduce(drawn, "quick", tmp_path, tmp_path / "runs", 1, "cpu"))
    assert lines[-1] == f"drew {tmp_path / 'none' / 'quick-none.png'}"
