"""The page about trust is made from its files alone, and says what they say."""

import json
from pathlib import Path

from faults.page import ORDER, trust_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_committed_files():
    assert (ROOT / "docs" / "trust.md").read_text() == trust_page(ROOT / "results" / "trust")


def test_nothing_in_the_committed_files_went_wrong():
    files = sorted((ROOT / "results" / "trust").glob("*.json"))
    sections = [json.loads(path.read_text()) for path in files if path.stem in ORDER]
    assert sections
    assert [tried["wrong"] for section in sections for tried in section.get("tried", []) if tried["wrong"]] == []


def test_long_runs_and_coverage_are_told(tmp_path):
    run = {"what": "quarter", "name": "paper", "steps": 20_000, "skipped": 3, "config": {"model": {"name": "nvdp"}}}
    for name, changes in {"long": {}, "short": {"steps": 19_999}, "old": {"skipped": None}}.items():
        kept = {key: value for key, value in (run | changes).items() if value is not None}
        path = tmp_path / "quarter" / f"cpu-{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept))
    trust = tmp_path / "trust"
    trust.mkdir()
    record = {"lines": 1_000, "covered": 987, "percent": 98.7, "below": {"src/nvdp/a.py": 80.4}}
    (trust / "coverage.json").write_text(json.dumps(record))
    page = trust_page(trust)
    assert page.count("| `nvdp`, quarter, paper | 20,000 | 3 |") == 1
    assert page.count("quarter, paper") == 1
    assert "987 of 1,000 lines" in page
    assert "`src/nvdp/a.py` 80 %" in page
