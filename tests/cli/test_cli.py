"""The command line as its users meet it: contracts, and one clear line for every kind of bad input."""

import json
import os
import re
import subprocess
import sys
import warnings
from unittest import mock

import pytest
from command_line import nvdp, refusal
from quick_scores import in_this_process, score_few

from nvdp.experiments import figure9
from nvdp.experiments.reproduce import EXPERIMENTS

TINY = ["--steps", "4", "--preset", "quick", "--quiet"]


def in_a_process(*arguments):
    """Run `nvdp` in a process of its own. This is slow, as it imports PyTorch, so most tests call `nvdp` instead."""
    command = [sys.executable, "-m", "nvdp", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.fixture(autouse=True)
def few_functions(monkeypatch):
    score_few(monkeypatch)


@pytest.fixture(scope="module")
def cnp(tmp_path_factory):
    """A run of a model without samples: its functions never differ."""
    folder = tmp_path_factory.mktemp("runs") / "cnp"
    result = nvdp("train", "gp", "--model", "cnp", "--out", folder, *TINY)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "nvdp"
    result = in_a_process("train", "gp", "--model", "nvdp", "--seed", "3", "--out", folder, *TINY)
    assert result.returncode == 0, result.stderr
    return folder


def test_training_leaves_what_the_contract_names(run):
    assert {path.name for path in run.iterdir()} >= {"config.json", "model.safetensors", "log.csv", "checkpoint"}
    assert json.loads((run / "config.json").read_text())["seed"] == 3


def test_eval_prints_one_object_with_three_flavours_and_the_oracle(run):
    result = nvdp("eval", run, "--tasks", "8", "--samples", "2", "--seed", "1", "--json")
    evaluation = json.loads(result.stdout)
    assert evaluation["model"] == "nvdp"
    assert evaluation["task"] == "gp"
    assert (evaluation["steps"], evaluation["tasks"]) == (4, 8)
    flavours = {"mean_parameters", "expected_log", "log_expected", "std", "stderr"}
    assert {name: set(row) for name, row in evaluation["scores"].items()} == dict.fromkeys(
        ("LL", "RLL", "PLL"), flavours
    )
    assert set(evaluation["oracle"]) == {"LL", "RLL", "PLL"}
    assert evaluation["spread"] > 0
    assert 0.01 <= evaluation["mean_rate"] <= 0.99


def test_eval_without_json_prints_the_oracle_beside_the_model(run):
    assert "oracle" in nvdp("eval", run, "--tasks", "4", "--samples", "2").stdout


def test_eval_on_one_task_says_that_standard_errors_are_not_known(run):
    one = ("eval", run, "--tasks", "1", "--samples", "2")
    evaluation = json.loads(nvdp(*one, "--json").stdout, parse_constant=pytest.fail)  # NaN is no JSON
    assert [evaluation["scores"]["LL"][name] for name in ("std", "stderr")] == [None, None]
    assert {row["stderr"] for row in evaluation["joint"]["by_context"].values()} == {None}
    rows = [line.split("│") for line in nvdp(*one).stdout.splitlines() if "LL" in line and "│" in line]
    assert [[cell.strip() for cell in row][5] for row in rows] == ["–", "–", "–"]


@pytest.mark.parametrize("tasks", [1, 2])
def test_eval_of_functions_that_never_differ_has_no_correlation(cnp, tasks):
    printed = nvdp("eval", cnp, "--tasks", tasks, "--samples", "2", "--json").stdout
    evaluation = json.loads(printed, parse_constant=pytest.fail)  # NaN is no JSON
    assert [each["spread_follows_oracle"] for each in (evaluation, evaluation["joint"])] == [None, None]


def test_models_lists_the_family_as_json():
    rows = json.loads(nvdp("models", "--json").stdout)
    regression = {row["name"] for row in rows if "regression" in row["tasks"]}
    papers, beyond = (
        {"cnp", "np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp"},
        {"nvdp-attentive", "nvdp-conv", "anp", "convcnp", "convgnp", "tnp-d"},
    )
    assert regression == papers | beyond
    classification = {row["name"] for row in rows if "classification" in row["tasks"]}
    assert classification >= {"nvdp", "cnp", "versa", "protonet", "matching", "maml", "meta-sgd", "meta-dropout"}


def test_info_tells_the_configuration_and_progress(run):
    text = nvdp("info", run).stdout
    assert '"learning_rate"' in text
    assert "finished" in text


def test_plot_draws_a_png_and_a_pdf(run, tmp_path):
    result = nvdp("plot", run, "--out", tmp_path / "f.png")
    assert result.returncode == 0, result.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".pdf"}


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(run):
    before = (run / "model.safetensors").read_bytes()
    assert "already holds a run" in refusal("train", "gp", "--out", run, *TINY)
    assert (run / "model.safetensors").read_bytes() == before


def test_resuming_with_another_setting_is_refused(run):
    assert "steps was 4, now 9" in refusal("train", "gp", "--out", run, "--steps", "9", "--resume")


def test_resuming_a_finished_run_needs_no_flags_and_changes_nothing(run):
    before = (run / "model.safetensors").read_bytes()
    assert nvdp("train", "gp", "--out", run, "--resume").returncode == 0
    assert (run / "model.safetensors").read_bytes() == before


def test_resuming_a_run_that_never_began_is_the_run_without_resume(tmp_path, run):
    result = nvdp("train", "gp", "--model", "nvdp", "--seed", "3", "--out", tmp_path / "run", *TINY, "--resume")
    assert result.returncode == 0, result.stderr
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "gp", "--model", "nvpd", "--out", "x"], "did you mean 'nvdp'"),
        (["train", "gpp", "--out", "x"], "unknown task 'gpp'; did you mean 'gp'"),
        (["train", "gp", "--preset", "fast", "--out", "x"], "unknown preset 'fast'"),
        (["train", "gp", "--variance", "none", "--out", "x"], "'likelihood.variance' is 'none'"),
        (["train", "gp", "--kl", "mean", "--out", "x"], "unknown KL reduction 'mean'"),
        (["train", "gp", "--steps", "0", "--out", "x"], "'steps' is 0"),
        (["train", "gp", "--learning-rate", "-1", "--out", "x"], "'learning_rate' is -1.0"),
        (["train", "gp", "--optimizer", "nadm", "--out", "x"], "did you mean 'nadam'"),
        (["eval", "nowhere"], "unknown folder or pretrained model 'nowhere'"),
        (["complete", "mnst", "any.png"], "did you mean 'mnist'"),
        (["reproduce", "table9"], "unknown experiment 'table9'"),
        (["reproduce", "table1", "--budget", "gpu"], "unknown budget 'gpu'"),
        (["report", "nowhere", "--out", "page.md"], "holds no results"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refusal(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "gp", "--steps", "abc"], "invalid value 'abc' for '--steps': "),
        (["reproduce", "table1", "--jobs", "0"], "invalid value '0' for '--jobs': "),
        (["train"], "missing argument 'task' (see nvdp train --help)"),
        (["report", "results"], "missing option '--out' (see nvdp report --help)"),
        (["train", "gp", "--out"], "'--out' requires an argument (see nvdp COMMAND --help)"),
        (["store", "observe", "--ot", "x"], "no such option: --ot"),
        (["models", "too", "many"], "(see nvdp models --help)"),
        (["trian"], "no such command 'trian'. Did you mean 'train', 'pretrain'? (see nvdp --help)"),
    ],
)
def test_an_argument_that_cannot_be_read_is_one_plain_line(arguments, words):
    line = refusal(*arguments)
    assert line.startswith("nvdp: ")
    assert words in line


def test_an_empty_out_is_refused_and_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["train", "gp"], ["report", "results"], ["fit", "table.csv"], ["plot", "gp"]):
        assert (
            refusal(*arguments, "--out", "") == refusal(*arguments, "--out=") == "nvdp: --out is ''; expected a path\n"
        )
    assert not list(tmp_path.iterdir())


def test_without_arguments_there_is_help_alone():
    result = nvdp()
    assert (result.returncode, result.stderr) == (2, "")
    assert "Usage: nvdp" in result.stdout


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "cannot" in refusal("train", "gp", "--out", tmp_path / "file" / "run", *TINY)


def test_an_unknown_key_in_a_config_is_one_line(run, tmp_path):
    values = json.loads((run / "config.json").read_text()) | {"learning_rat": 1}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert "unknown key 'learning_rat'; did you mean 'learning_rate'" in refusal("info", tmp_path)


def test_a_truncated_model_file_is_one_line(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:5000])
    assert "damaged or cut short" in refusal("eval", tmp_path)


def test_truncated_checkpoints_are_one_line(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    (tmp_path / "checkpoint").mkdir()
    whole = next((run / "checkpoint").iterdir())
    (tmp_path / "checkpoint" / whole.name).write_bytes(whole.read_bytes()[:5000])
    assert "no whole checkpoint" in refusal("train", "gp", "--out", tmp_path, "--resume")


def test_a_quick_experiment_runs_is_not_repeated_and_makes_its_page(tmp_path, monkeypatch):
    monkeypatch.setitem(figure9.STEPS, "quick", 4)
    monkeypatch.setitem(figure9.TASKS, "quick", 4)
    monkeypatch.setattr("nvdp.experiments.executors.run_processes", in_this_process)
    arguments = [
        "reproduce",
        "figure9",
        "--budget",
        "quick",
        "--out",
        tmp_path / "results",
        "--runs",
        tmp_path / "runs",
    ]
    first = nvdp(*arguments)
    assert first.returncode == 0, first.stderr
    result = tmp_path / "results" / "figure9" / "quick-nvdp.json"
    written = result.read_text()
    assert json.loads(written)["evaluation"]["task"] == "trig"
    assert (tmp_path / "results" / "figure9" / "quick-figure9.png").exists()
    assert nvdp(*arguments).returncode == 0
    assert result.read_text() == written
    page = tmp_path / "docs" / "results.md"
    assert nvdp("report", tmp_path / "results", "--budget", "quick", "--out", page).returncode == 0
    assert "figures/figure9.png" in page.read_text()
    assert (page.parent / "figures" / "figure9.png").exists()
    assert "must be different files" in refusal("report", tmp_path / "results", "--out", page.with_name("speed.md"))
    page.write_text("a page of mine")
    again = nvdp("report", tmp_path / "results", "--budget", "quick", "--out", page)
    assert (again.returncode, page.read_text()) == (2, "a page of mine")
    assert "results.md exists; add --force" in again.stderr


def test_help_names_every_experiment():
    told = nvdp("reproduce", "--help").stdout
    assert {name for name in EXPERIMENTS if not re.search(rf"\b{name}[,.\s]", told)} == set()


def test_a_run_begins_from_another_with_a_wider_encoder(run, tmp_path):
    wider = ["--start", run, "--set", "encoder.size=256", "--out", tmp_path / "wider"]
    result = nvdp("train", "gp", "--model", "nvdp", *wider, *TINY)
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "wider" / "config.json").read_text())
    assert (config["model"]["encoder"]["size"], config["start"]) == (256, str(run))


def test_too_little_memory_is_one_line(capsys, monkeypatch):
    from nvdp import cli

    wanted = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 140000000000 bytes.")
    for name in ("formatwarning", "showwarning"):  # which the command line sets
        monkeypatch.setattr(warnings, name, getattr(warnings, name))
    monkeypatch.setattr(cli, "_unwrap_help", lambda app: None)
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=wanted))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "nvdp: there is not enough memory: an array of 140.0 GB was asked for\n"


def test_settings_that_are_none_are_refused(run, tmp_path):
    train = ("train", "gp", "--out", tmp_path / "none", "--preset", "quick")
    assert "unknown model setting 'encoder.sise'" in refusal(*train, "--set", "encoder.sise=3")
    assert "expected NAME=VALUE" in refusal(*train, "--set", "encoder.size")
    assert "cannot begin from" in refusal(*train, "--start", run, "--set", "decoder.width=64")


def test_a_seed_beyond_64_bits_and_a_value_with_a_line_break_are_one_line(run):
    said = refusal("eval", run, "--seed", 2**63)
    assert "'9223372036854775808' for '--seed': Input should be less than or equal to 9223372036854775807" in said
    assert "'-1' for '--seed': Input should be greater than or equal to 0" in refusal("eval", run, "--seed", -1)
    assert refusal("plot", "no\nsuch run").count("\n") == 1
