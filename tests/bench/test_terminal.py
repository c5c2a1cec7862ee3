"""Tables on the console: they fit, and no word or number is cut."""

from collections import Counter

import pytest

from nvdp.bench import SUITES, suite_result
from nvdp.bench.suites import table_cells

RESULTS = ["step", "step-xeon", "adapt", "fewshot", "growth", "quality", "tables", "real"]


@pytest.mark.parametrize("name", RESULTS)
def test_tables_of_committed_results_fit_a_console_of_80_columns_without_cut_words(name, committed, printed):
    result = committed(name)
    lines = printed(result, 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    first = next(iter(SUITES[result["suite"]].columns.values()))
    names = {word for row in result["rows"] for word in first(row).split()}
    assert names <= set(text.replace("│", " ").split())


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70])
@pytest.mark.parametrize("name", RESULTS)
def test_no_number_is_broken_on_a_narrow_console(name, width, committed, printed):
    result = committed(name)
    lines = printed(result, width)
    assert max(map(len, lines)) <= width
    cells = table_cells(result, quartiles=False)
    shown = [
        cell for header, column in cells.items() if header not in SUITES[result["suite"]].details for cell in column
    ]
    words = Counter("\n".join(lines).replace("│", " ").split())
    assert Counter(" ".join(shown).split()) <= words


def test_rows_are_one_under_the_other_where_columns_do_not_fit(step_result, printed):
    headers = list(table_cells(step_result))
    lines = [line.split("│") for line in printed(step_result, 40) if "│" in line]
    assert [line[0].strip() for line in lines] == headers * len(step_result["rows"])
    assert [line[1].strip() for line in lines[:2]] == ["gp", "nvdp"]
    assert printed(suite_result("step", []), 40)


def test_quartiles_are_shown_where_there_is_room(step_result, printed):
    low, high = step_result["rows"][0]["ours_quartiles_ms"]
    narrow, wide = ("\n".join(printed(step_result, width)) for width in (80, 200))
    assert f"{step_result['rows'][0]['ours_ms']:.1f} ({low:.1f}–{high:.1f})" in wide
    assert ("(quartiles)" in wide, "(quartiles)" in narrow, "–" in narrow) == (True, False, False)
    assert f"│{step_result['rows'][0]['ours_ms']:.1f}│" in narrow.replace(" ", "")
