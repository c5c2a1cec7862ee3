"""Verdicts on the paper's claims follow from numbers; the committed files give each part of the page its text."""

import json
from pathlib import Path

from nvdp.experiments.claims import (
    REPRODUCED,
    REVERSED,
    claims_table,
    gates_in_words,
    gates_table,
    tnp_table,
)
from nvdp.experiments.report_tables import Results
from nvdp.experiments.results import result_path
from nvdp.experiments.table3 import METHODS, SETTINGS, Setting, run_name

COMMITTED = Results(Path(__file__).parents[2] / "results")


def with_gain(folder: Path, mean: float) -> Results:
    figure = folder / "figure3" / "cpu-figure.json"
    figure.parent.mkdir(exist_ok=True)
    figure.write_text(f'{{"gain": {{"NVDP": {{"mean": [{mean}], "stderr": [0.1]}}}}}}')
    return Results(folder)


def test_a_verdict_needs_two_standard_errors(tmp_path):
    verdicts = {mean: claims_table(with_gain(tmp_path, mean)).splitlines()[-1] for mean in (0.25, -0.25, 0.1)}
    assert f"| {REPRODUCED} | +0.250 ± 0.100 nats" in verdicts[0.25]
    assert f"| {REVERSED} | -0.25" in verdicts[-0.25]
    assert "| not reproduced | +0.10" in verdicts[0.1]


def with_accuracies(folder: Path, setting: Setting, **others: float) -> Results:
    (folder / "table3").mkdir(exist_ok=True)
    for method in METHODS:
        evaluation = {"accuracy": {"nvdp": 0.55, **others}.get(method, 0.5), "interval95": 0.01}
        name = run_name(method, setting, "features")
        row = {"name": name, "config": {}, "steps": 1, "seconds": 1.0, "evaluation": evaluation}
        result_path(folder, "table3", "cpu", name).write_text(json.dumps(row))
    return Results(folder)


def test_few_shot_columns_are_judged_by_the_best_other_method(tmp_path):
    mini, omniglot = SETTINGS[-2], SETTINGS[1]
    assert f"| {REPRODUCED} | +5.00 ± 0.72 points" in claims_table(with_accuracies(tmp_path, mini))
    ahead = claims_table(with_accuracies(tmp_path, mini, matching=0.58)).splitlines()[-1]
    assert f"| {REVERSED} | -3.00 ± 0.72 points (10 samples, best other `matching`)" in ahead
    assert "| not reproduced | +1.00" in claims_table(with_accuracies(tmp_path, mini, versa=0.54))
    for setting in (SETTINGS[0], omniglot):  # in the paper VERSA has 99.7 as NVDP has, and MAML 99.9 to NVDP's 99.86
        assert setting.paper not in claims_table(with_accuracies(tmp_path, setting))
    result_path(tmp_path, "table3", "cpu", run_name("cnp", mini, "features")).unlink()
    assert claims_table(Results(tmp_path)) == ""


def test_without_results_there_is_no_text(tmp_path):
    nothing = Results(tmp_path)
    parts = (claims_table, gates_table, gates_in_words, tnp_table)
    assert [part(nothing) for part in parts] == [""] * len(parts)


def test_the_committed_gates_have_a_column_and_a_sentence_for_each_model():
    head, sentences = gates_table(COMMITTED).splitlines()[0], gates_in_words(COMMITTED)
    for name in ("gp", "gp-nvdp", "gp-nvdp-0.1"):
        assert f"| `{name}` |" in head
        assert f"- `{name}`: " in sentences
