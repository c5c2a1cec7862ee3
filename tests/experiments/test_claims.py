"""Verdicts on the paper's claims follow from numbers; the committed files give each part of the page its text."""

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


def test_without_results_there_is_no_text(tmp_path):
    nothing = Results(tmp_path)
    parts = (claims_table, gates_table, gates_in_words, tnp_table)
    assert [part(nothing) for part in parts] == [""] * len(parts)


def test_the_committed_gates_have_a_column_and_a_sentence_for_each_model():
    head, sentences = gates_table(COMMITTED).splitlines()[0], gates_in_words(COMMITTED)
    for name in ("gp", "gp-nvdp", "gp-nvdp-0.1"):
        assert f"| `{name}` |" in head
        assert f"- `{name}`: " in sentences
