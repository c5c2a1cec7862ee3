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
    assert [tried["wrong"] for section in sections for tried in section["tried"] if tried["wrong"]] == []
