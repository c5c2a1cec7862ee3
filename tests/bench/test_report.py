"""The page on speed says what was measured, on which machine, and in which unit."""

import statistics

from nvdp.bench import SUITES
from nvdp.bench.report import TEXTS
from nvdp.bench.suites import measured_on


def test_columns_without_a_number_are_left_out_of_console_and_page(step_result, committed, printed, section):
    without = {**step_result, "rows": [{**row, "before_over_ours": None} for row in step_result["rows"]]}
    assert "before" in "\n".join(printed(step_result, 200))
    assert "before" not in "\n".join(printed(without, 200))
    parts = section("## Training step").split("### Processors")
    for part, name in zip(parts, ("step", "step-xeon"), strict=True):
        assert ("before / ours |" in part) == ("before_over_ours" in committed(name)["rows"][0])


def test_a_standard_error_that_is_not_known_is_a_dash(committed, printed):
    result = committed("quality")
    result["rows"] = [{**row, "LL_stderr": None if index else 0.123} for index, row in enumerate(result["rows"])]
    first, *others = (line.split("│") for line in printed(result, 120) if "│" in line and "quick" in line)
    place = [cell.strip() for cell in first].index("0.123")
    assert {row[place].strip() for row in others} == {"–"}


def test_tables_name_processor_and_commit_and_accept_files_without_them(page, step_result, committed, printed):
    xeon = committed("step-xeon")
    caption = printed(xeon, 200)[-1]
    assert f"{xeon['machine']['processor']}, 1 thread" in caption
    assert f"commit {xeon['commit']}" in caption
    for name in TEXTS:
        result = committed(name)
        assert f"*{measured_on(result)}; `nvdp bench --suite {name}`.*" in page
        assert result["machine"]["processor"] in measured_on(result)
    assert measured_on(step_result) == "1 thread, torch "


def test_the_page_shows_the_steps_of_every_machine_with_its_floor(committed, section):
    steps = section("## Training step")
    places = []
    for name in ("step", "step-xeon"):
        result = committed(name)
        floor, ratio = (
            statistics.median(row[key] for row in result["rows"]) for key in ("floor_ms", "ours_over_floor")
        )
        assert f"| {result['machine']['processor']} | {floor:.1f} | {ratio:.2f} × |" in steps
        places.append(steps.index(f"*{measured_on(result)};"))
        assert steps.count(f"*{measured_on(result)};") == 1
        for row in result["rows"]:
            assert f"| {row['shape']} | {row['model']} | {row['ours_ms']:.1f} (" in steps
    assert places == sorted(places)
    assert "Ratios to the floor depend on the processor" in steps


def test_the_page_has_units_and_says_what_ratios_are(page, section):
    assert "median over rounds of their ratio within a round" in page
    for name in ("step", "adapt", "fewshot", "growth"):
        text = section(f"## {SUITES[name].title.split(':')[0]}")
        assert text.strip().startswith("Milliseconds")
        assert " ms |" in text


def test_bfloat16_is_not_called_fastest(page, committed, section):
    assert "fastest" not in page
    adapted = section("## Adapt and predict")
    assert "| bfloat16, all cores ms |" in adapted
    many = committed("adapt")["rows"][-1]
    ratio = many["fastest_ms"] / many["mean_weights_ms"]
    assert f"*bfloat16, all cores* takes {ratio:.1f} × the time of *mean_weights*, float32 on one thread" in adapted


def test_legends_use_the_words_of_the_tables():
    from nvdp.bench import draw as drawing

    for name, labels in {"step": drawing.STEP_BARS, "growth": drawing.LINES, "fewshot": drawing.HALVES}.items():
        words = " ".join(SUITES[name].columns)
        assert all(part in words for label, *_ in labels.values() for part in label.split(", "))
    adapted = {label for label, _ in drawing.METHODS.values()}
    assert {f"{label} LL" for label in adapted} <= set(SUITES["adapt"].columns)
