"""Tables on the console: they fit, and no word is cut."""

import pytest

from nvdp.bench import SUITES


@pytest.mark.parametrize("name", ["step", "step-xeon", "adapt", "fewshot", "growth", "quality", "tables", "real"])
def test_tables_of_committed_results_fit_a_console_of_80_columns_without_cut_words(name, committed, printed):
    result = committed(name)
    lines = printed(result, 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    first = next(iter(SUITES[result["suite"]].columns.values()))
    names = {word for row in result["rows"] for word in first(row).split()}
    assert names <= set(text.replace("│", " ").split())


def test_quartiles_are_shown_where_there_is_room(step_result, printed):
    low, high = step_result["rows"][0]["ours_quartiles_ms"]
    narrow, wide = ("\n".join(printed(step_result, width)) for width in (80, 200))
    assert f"{step_result['rows'][0]['ours_ms']:.1f} ({low:.1f}–{high:.1f})" in wide
    assert ("(quartiles)" in wide, "(quartiles)" in narrow, "–" in narrow) == (True, False, False)
    assert f"│{step_result['rows'][0]['ours_ms']:.1f}│" in narrow.replace(" ", "")
