"""The notebooks of the gallery run, and the pages of the documentation show their code."""

from pathlib import Path

import pytest

from examples.gallery import NOTEBOOKS, PAGES, cells, run

SMALL = {"STEPS": 2, "ROUNDS": 1}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_page_is_of_it(path: Path) -> None:
    page = (PAGES / f"{path.stem}.md").read_text()
    assert [cell["source"] for cell in cells(path) if cell["source"] not in page] == [], "run examples/gallery.py"
    done = list(run(path, SMALL))
    assert any(printed or figures for _, printed, figures in done)
