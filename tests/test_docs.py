"""Links inside the documents lead somewhere, and the commands that they name exist."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from command_line import nvdp

from nvdp.experiments.reproduce import EXPERIMENTS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "results" / "README.md"])
COMMAND = re.compile(r"(?:^\$ |^|`|-m )nvdp ([a-z][\w-]*)([^`\n#|]*)", re.MULTILINE)


def name_of(document: Path) -> str:
    """The path of a document inside the project."""
    return str(document.relative_to(ROOT))


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(document: Path) -> Iterator[str]:
    """What a document links to inside the project."""
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" not in link:
            yield link


@cache
def options(command: str) -> frozenset[str] | None:
    """The options of a command such as "store observe", or None if there is no such command."""
    with mock.patch.dict(os.environ, COLUMNS="300"):
        answer = nvdp(*command.split(), "--help")
    return frozenset(re.findall(r"--[a-z][\w-]*", answer.stdout)) if answer.returncode == 0 else None


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for link in links(document):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), f"{name_of(document)} links to {link}"
        assert not anchor or anchor in headings(target), f"{name_of(document)} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_and_their_options_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return  # it also names what was removed
    text = document.read_text().replace("\\\n", " ")
    for first, rest in COMMAND.findall(text):
        command = first if first not in ("store", "data") else " ".join([first, *rest.split()[:1]])
        known = options(command)
        assert known is not None, f"{name_of(document)} names `nvdp {command}`"
        for option in re.findall(r"(?<=\s)--[a-z][\w-]*", rest):
            assert option in known, f"{name_of(document)} names `nvdp {command} {option}`"
        if command == "reproduce" and (what := re.match(r" ([a-z][\w-]*)", rest)):
            assert what[1] in (*EXPERIMENTS, "all"), f"{name_of(document)} names `nvdp reproduce {what[1]}`"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=name_of)
def test_the_site_has_every_page(page: Path) -> None:
    assert f": {page.name}\n" in (ROOT / "mkdocs.yml").read_text()
