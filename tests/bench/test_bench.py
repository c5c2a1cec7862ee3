"""The command ``nvdp bench``: its table, its files, and names that do not exist."""

import json
from dataclasses import replace

import pytest
from command_line import refusal
from typer.testing import CliRunner

from nvdp.bench import SUITES, Settings, run_suite
from nvdp.errors import InputError


def test_command_prints_a_table_writes_json_and_draws(monkeypatch, tmp_path, step_result):
    from nvdp.cli import app, bench, runs  # noqa: F401  (an app of one command has no command names)

    monkeypatch.setitem(SUITES, "step", replace(SUITES["step"], rows=lambda _: step_result["rows"]))
    file, figure = tmp_path / "new" / "step.json", tmp_path / "step.png"
    arguments = ["bench", "--suite", "step", "--quick", "--json", str(file), "--plot", str(figure)]
    outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    assert "ours / floor" in outcome.output
    result = json.loads(file.read_text())
    assert result["suite"] == "step"
    assert set(result["machine"]) >= {"cores", "torch", "threads"}
    assert len(result["rows"]) == 2
    assert figure.exists()


def test_an_existing_file_of_measurements_is_kept(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    assert "kept.json exists; add --force" in refusal("bench", "--suite", "step", "--quick", "--json", kept)
    assert kept.read_text() == "mine"


def test_unknown_suite_is_refused_by_name():
    with pytest.raises(InputError, match="did you mean 'growth'"):
        run_suite("grwth", Settings())
