"""The queue does what is missing, repeats nothing, names what failed; the page is made from its files alone."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
from quick_scores import in_this_process, score_few

import nvdp
from nvdp.errors import InputError
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue import Job, run_job, run_queue
from nvdp.experiments.report import readme_block, results_page
from nvdp.experiments.report_tables import METRICS
from nvdp.experiments.results import read_result, result_path
from nvdp.experiments.table1 import NAMES
from nvdp.models.config import ModelConfig
from nvdp.system import source_commit
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config


@pytest.fixture(scope="module", autouse=True)
def few_functions():
    with pytest.MonkeyPatch.context() as patch:
        score_few(patch)
        yield


def tiny(model="cnp", **changes):
    config = preset_config("gp", model, "quick", steps=2)
    small = config.model.updated(
        {
            "decoder.width": 8,
            "decoder.layers": 1,
            "encoder.size": 8,
            "encoder.layers": 1,
            "rates.width": 8,
            "decoder.latent": 4,
        }
    )
    return replace(config, model=small, **changes)


def experiment(*runs):
    return Experiment("table1", "a test", lambda budget: runs)


def test_a_queue_writes_one_result_a_run_and_repeats_nothing(tmp_path):
    out, runs = tmp_path / "results", tmp_path / "runs"
    plan = experiment(PlannedRun("cnp-learned", tiny(), 2), PlannedRun("np-learned", tiny("np"), 2))
    folders = run_queue(plan, "quick", out, runs, jobs=2, device="cpu")
    result = read_result(result_path(out, "table1", "quick", "np-learned"))
    assert result["config"]["model"]["name"] == "np"
    assert (result["steps"], result["evaluation"]["tasks"]) == (2, 2)
    assert result["versions"]["nvdp"] == nvdp.__version__
    assert result["commit"] == (source_commit() or nvdp.__version__)
    written = {name: (folder / "log.csv").stat().st_mtime_ns for name, folder in folders.items()}
    run_queue(plan, "quick", out, runs, jobs=2, device="cpu")
    assert {name: (folder / "log.csv").stat().st_mtime_ns for name, folder in folders.items()} == written


def test_a_result_of_another_configuration_is_not_overwritten(tmp_path):
    path = result_path(tmp_path, "table1", "quick", "cnp")
    path.parent.mkdir(parents=True)
    other = {"name": "cnp", "config": asdict(tiny(seed=7)), "steps": 2, "seconds": 1.0, "evaluation": {"tasks": 2}}
    path.write_text(json.dumps(other))
    with pytest.raises(InputError, match="result of another configuration"):
        run_queue(experiment(PlannedRun("cnp", tiny(), 2)), "quick", tmp_path, tmp_path / "runs")
    assert json.loads(path.read_text()) == other


def test_a_run_that_fails_is_named_with_its_reason(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(InputError, match=r"1 of 1 runs failed: cnp: cannot make"):
        run_queue(experiment(PlannedRun("cnp", tiny(), 2)), "quick", tmp_path / "out", tmp_path / "runs", device="cpu")


def test_fewer_than_one_job_is_refused(tmp_path):
    with pytest.raises(InputError, match="jobs is 0"):
        run_queue(experiment(PlannedRun("cnp", tiny(), 2)), "quick", tmp_path, tmp_path, jobs=0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "cnp"}'])
def test_a_damaged_result_is_one_line(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="no result of `nvdp reproduce`"):
        read_result(tmp_path / "x.json")


@pytest.fixture(scope="module")
def table1(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    for name in NAMES[-2:]:
        config = tiny(name)
        path = result_path(out, "table1", "cpu", f"{name}-learned")
        folder = out.parent / f"run-{name}"
        run_job(Job("table1", "cpu", PlannedRun(f"{name}-learned", config, 2), str(folder), str(path), "cpu"))
    return out


def test_the_page_holds_our_numbers_the_papers_and_the_ceiling(table1):
    page = results_page(table1)
    scores = read_result(result_path(table1, "table1", "cpu", "nvdp-learned"))["evaluation"]
    assert f"{scores['scores']['PLL']['log_expected']:.3f}" in page
    assert f"**{scores['oracle']['LL']:.3f}**" in page
    assert "0.83 / 1.10 / 0.81" in page
    assert results_page(table1) == page


def test_the_readme_has_the_best_of_the_runs_that_were_scored_on_enough_tasks(table1, monkeypatch):
    with pytest.raises(InputError, match="holds no results of the cpu budget for the README"):
        readme_block(table1)
    monkeypatch.setattr("nvdp.experiments.summary.TASKS", 2)
    runs = {n: read_result(result_path(table1, "table1", "cpu", f"{n}-learned"))["evaluation"] for n in NAMES[-2:]}
    cells = {n: " / ".join(f"{e['scores'][m]['expected_log']:.2f}" for m in METRICS) for n, e in runs.items()}
    ours, other = f"{cells['nvdp']}† `nvdp-learned` (2)", f"{cells['cnp']} `cnp-learned` (2)"
    row = f"| 0.83 / 1.10 / 0.81 |  |  | {other} | {ours} | {other} |"  # plain NVDP: with all weights sampled alone
    assert row in readme_block(table1)


def test_two_results_of_one_name_are_refused(table1, tmp_path):
    shutil.copytree(table1, tmp_path / "results")
    path = result_path(tmp_path / "results", "table1", "cpu", "nvdp-learned")
    shutil.copy(path, path.with_name("cpu-copy.json"))
    with pytest.raises(InputError, match="has the name 'nvdp-learned' of another result"):
        results_page(tmp_path / "results")


def test_experiments_that_share_a_run_share_its_scores(tmp_path):
    out, runs = tmp_path / "results", tmp_path / "runs"
    here = {"device": "cpu", "executor": in_this_process}
    run_queue(experiment(PlannedRun("cnp-learned", tiny(), 2)), "quick", out, runs, **here)
    other = Experiment("figure2", "a test", lambda budget: [PlannedRun("same", tiny(), 2)])
    before = read_result(result_path(out, "table1", "quick", "cnp-learned"))
    run_queue(other, "quick", out, runs, **here)
    result = read_result(result_path(out, "figure2", "quick", "same"))
    assert (result["what"], result["name"]) == ("figure2", "same")
    assert result["evaluation"] == before["evaluation"]


def test_a_queue_can_be_told_which_runs_to_do(tmp_path):
    plan = experiment(PlannedRun("cnp-learned", tiny(), 2), PlannedRun("np-learned", tiny("np"), 2))
    out = tmp_path / "results"
    here = {"device": "cpu", "executor": in_this_process}
    assert list(run_queue(plan, "quick", out, tmp_path / "runs", only="cnp", **here)) == ["cnp-learned"]
    assert not result_path(out, "table1", "quick", "np-learned").exists()
    with pytest.raises(InputError, match="no run of table1 has 'maml' in its name"):
        run_queue(plan, "quick", out, tmp_path / "runs", only="maml", **here)


def test_a_run_keeps_its_folder_when_settings_are_added_and_none_of_two_runs_share_one(tmp_path):
    config = RunConfig(model=ModelConfig("cnp").updated({"decoder.width": 8}), steps=20)
    # A name that must not change: runs of users are found by it.
    assert PlannedRun("any", config, 1).folder(tmp_path).name == "gp-cnp-af8f803e59"
    assert config.choices() == {"model": {"name": "cnp", "decoder": {"width": 8}}, "steps": 20}
    others = [
        replace(config, steps=21),
        replace(config, model=ModelConfig("cnp").updated({"decoder.width": 9})),
        replace(config, seed=1),
    ]
    assert len({PlannedRun("any", other, 1).folder(tmp_path) for other in (config, *others)}) == 4
