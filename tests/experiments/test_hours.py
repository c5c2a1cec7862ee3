"""Log-likelihood against hours: which runs count, what is said about them, and where their curve goes."""

import json

import numpy as np
import pytest

from nvdp.experiments.hours import (
    draw_hours,
    drawn_points,
    extrapolated,
    hours_in_words,
    paper_length_in_words,
    trained_runs,
)
from nvdp.experiments.report_tables import Results


def write(folder, name, score, seconds=60.0, steps=100, fourier=8, model="nvdp", what="table1", **more):
    variance = more.get("variance", "learned")
    described = {"name": model, "likelihood": {"variance": variance}, "inputs": {"fourier": fourier}}
    result = {
        "name": name,
        "config": {"task": "gp", "model": described, "schedule": more.get("schedule", "cosine")},
        "steps": steps,
        "seconds": seconds,
        "evaluation": {"scores": {"LL": {"expected_log": score}}},
    }
    (folder / what).mkdir(exist_ok=True)
    (folder / what / f"cpu-{name}.json").write_text(json.dumps(result))


def test_the_shortest_run_above_the_paper_counts_and_others_are_named_with_their_best(tmp_path):
    write(tmp_path, "a", 0.9, 300.0)
    write(tmp_path, "b", 0.84, 120.0)
    write(tmp_path, "c", 0.5, 30.0)
    write(tmp_path, "d", 0.4, fourier=0)
    write(tmp_path, "e", 0.3, fourier=0)
    write(tmp_path, "f", 0.95, variance="fixed")
    write(tmp_path, "g", 0.96, 600.0, fourier=0, model="anp", what="rivals")
    results = Results(tmp_path)
    assert len(trained_runs(results)) == 6  # the one with fixed variance is left out
    assert hours_in_words(results) == (
        "Minutes of the shortest run above the paper's LL of 0.83: `nvdp` 2.0, `anp` 10.0. "
        "Best LL of the other models: `nvdp, paper's network` 0.40."
    )
    draw_hours(results, tmp_path / "hours.png")
    assert (tmp_path / "hours.png").stat().st_size > 5_000
    assert list(drawn_points(results)) == ["nvdp", "nvdp, paper's network"]  # anp has one run


def test_without_runs_nothing_is_said_or_drawn(tmp_path):
    assert hours_in_words(Results(tmp_path)) == paper_length_in_words(Results(tmp_path)) == ""
    draw_hours(Results(tmp_path), tmp_path / "hours.png")
    assert not (tmp_path / "hours.png").exists()


def test_the_curve_finds_a_power_law_and_its_error_grows_with_that_of_the_runs():
    steps = np.array([5e3, 2e4, 1e5])
    scores = 0.9 - 30 * steps**-0.5
    value, small = extrapolated(steps, scores, np.full(3, 0.001), 500_000)
    assert value == pytest.approx(0.9 - 30 * 5e5**-0.5, abs=1e-3)
    assert small < 0.01 < extrapolated(steps, scores, np.full(3, 0.02), 500_000)[1]


def test_the_sentence_needs_three_lengths_and_three_seeds(tmp_path):
    for index, score in enumerate((0.50, 0.52, 0.54)):
        write(tmp_path, f"seed-{index}", score, steps=5_000)
    write(tmp_path, "longer", 0.68, steps=20_000)
    assert paper_length_in_words(Results(tmp_path)) == ""
    write(tmp_path, "constant", 0.76, steps=80_000, schedule="constant")
    assert paper_length_in_words(Results(tmp_path)) == "", "another recipe has another curve"
    write(tmp_path, "longest", 0.76, steps=80_000)
    words = paper_length_in_words(Results(tmp_path))
    assert "the runs of `nvdp` with 5,000, 20,000, 80,000 steps" in words
    assert "spread of 0.020 over 3 seeds" in words
