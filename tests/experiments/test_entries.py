"""A result file without an entry, or with a wrong one, is refused in one line that names the file."""

import copy
import json
import math
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdp.errors import InputError
from nvdp.experiments.entries import checked, read_entries, reading
from nvdp.experiments.report import results_page
from nvdp.experiments.results import figure_path, read_figure
from nvdp.experiments.schemas import BENCH, FIGURES, NUMBER
from nvdp.experiments.table1 import FIGURE2

RESULTS = Path(__file__).parents[2] / "results"
FILES = (
    "table1/cpu-nvdp-learned",
    "table1/cpu-cnp-learned",
    "table2/cpu-nvdp-mnist",
    "table3/cpu-nvdp-omniglot-5w1s-end-to-end",
    "tnp/cpu-nvdp-conv-gp-tnp",
    "figure9/cpu-nvdp",
    "gates/gp",
    "limits/gp-nvdp",
    "bench/views",
)
ABSENT = object()
SPOILED = (ABSENT, None, "text", [], {}, -1, True, {"other": None})


def places(value, at=()):
    """Where the entries of a file are; of lists the first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def spoiled(whole, place, new):
    value = copy.deepcopy(whole)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    if new is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return json.dumps(value)


@contextmanager
def damaged(path, text):
    """While active, a file holds another text."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


WHOLE = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in FILES}
PLACES = [(name, place) for name, value in WHOLE.items() for place in places(value)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The committed results of some files."""
    folder = tmp_path_factory.mktemp("results")
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / f"{name}.json", folder / f"{name}.json")
    return folder


@settings(max_examples=40, deadline=None, derandomize=True)
@given(spoil=st.sampled_from(PLACES), new=st.sampled_from(SPOILED))
def test_a_spoiled_entry_makes_a_page_or_one_line_with_its_file(folder, spoil, new):
    name, place = spoil
    path = folder / f"{name}.json"
    said = None
    with damaged(path, spoiled(WHOLE[name], place, new)):
        try:
            results_page(folder)
        except InputError as error:
            said = str(error)
    assert said is None or (str(path) in said and "\n" not in said)


NUMBERS = (
    (FILES[0], ("evaluation", "scores", "LL", "mean_parameters")),
    (FILES[0], ("evaluation", "scores", "LL", "stderr")),
    (FILES[0], ("evaluation", "coverage", "90%")),
    (FILES[0], ("seconds",)),
    ("table3/cpu-nvdp-omniglot-5w1s-end-to-end", ("evaluation", "interval95")),
    ("tnp/cpu-nvdp-conv-gp-tnp", ("evaluation", "own_contexts", "fed_back_stderr")),
    ("gates/gp", ("gates", "constant rates", "value")),
    ("limits/gp-nvdp", ("inference", "inferred")),
)


@pytest.mark.parametrize(("name", "place"), NUMBERS)
def test_null_in_place_of_a_number_is_refused_with_its_entry(folder, name, place):
    path = folder / f"{name}.json"
    with (
        damaged(path, spoiled(WHOLE[name], place, None)),
        pytest.raises(InputError, match=rf"^{path}: entry '{'.'.join(place)}' is null; expected a number"),
    ):
        results_page(folder)


@pytest.mark.parametrize(
    ("place", "new", "words"),
    [
        (("evaluation",), ABSENT, "it has no entry 'evaluation'"),
        (("config",), ABSENT, "it has no entry 'config'"),
        (("evaluation", "scores"), ABSENT, "has no entry 'evaluation.scores'"),
        (("evaluation", "scores", "LL", "stderr"), None, "entry 'evaluation.scores.LL.stderr' is null"),
        (("evaluation", "scores", "LL"), [1], "entry 'evaluation.scores.LL' is [1]; expected an object"),
        (("config", "model", "name"), "nvpd", "entry 'config.model.name' is \"nvpd\"; expected the name of a model"),
        (("steps",), 0, "entry 'steps' is 0; expected a whole number of at least 1"),
    ],
)
def test_the_report_tells_the_entry_and_leaves_no_page(folder, tmp_path, place, new, words):
    path = folder / f"{FILES[0]}.json"
    with damaged(path, spoiled(WHOLE[FILES[0]], place, new)):
        line = refusal("report", folder, "--out", tmp_path / "page.md")
    assert str(path) in line
    assert words in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True, None, "1"])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(InputError, match=r"^a.json: entry 'LL' is .*; expected a number$"):
        checked({"LL": value}, {"LL": NUMBER}, Path("a.json"))


def test_what_fails_inside_a_file_is_told_with_its_name():
    path = Path("a.json")  # beside nothing: it has one parent
    fails = {
        "has no entry 'LL'": lambda: {}["LL"],
        "cannot be used: list index out of range": lambda: [][0],
        "cannot be used: invalid literal": lambda: int("x"),
    }
    for words, fail in fails.items():
        with pytest.raises(InputError, match=f"^a.json {words}") as told, reading(path):
            fail()
        assert told.value.__cause__ is not None


def test_refusals_and_faults_of_the_code_pass_unchanged():
    with pytest.raises(InputError, match=r"^panel 'a' is empty\.$"), reading(Path("results/a.json")):
        raise InputError("panel 'a' is empty.")
    with pytest.raises(TypeError), reading(Path("results/a.json")):
        len(None)


@pytest.mark.parametrize(
    ("name", "place", "new", "words"),
    [
        ("step", ("rows", 0, "points"), ABSENT, "has no entry 'rows.0.points'"),
        ("step-xeon", ("rows", 0, "ours_ms"), "fast", "entry 'rows.0.ours_ms' is \"fast\"; expected a number or null"),
        ("adapt", ("machine", "threads"), ABSENT, "has no entry 'machine.threads'"),
        ("fewshot", ("suite",), "step", 'entry \'suite\' is "step"; expected "fewshot"'),
        ("growth", ("rows", 0), [], "entry 'rows.0' is []; expected an object"),
        ("growth", ("rows", 0, "axis"), "height", "has no entry 'rows.0.height'"),
        ("quality", ("rows", 0, "attainable_LL"), None, "entry 'rows.0.attainable_LL' is null; expected a number"),
        ("quality", ("rows",), [], "entry 'rows' is []; expected a list of at least 1"),
        ("quality-before", ("rows", 0, "LL"), ABSENT, "has no entry 'rows.0.LL'"),
        ("tables", ("rows", 0, "mixed_LL"), ABSENT, "has no entry 'rows.0.mixed_LL'"),
    ],
)
def test_a_wrong_row_of_the_bench_is_told_with_its_file(folder, tmp_path, monkeypatch, name, place, new, words):
    whole = json.loads((RESULTS / "bench" / f"{name.removesuffix('-before')}.json").read_text())
    path = Path("bench", f"{name}.json")
    (folder / path).write_text(spoiled(whole, place, new))
    monkeypatch.chdir(folder)  # so that the folder of results has no name
    try:
        line = refusal("report", ".", "--out", tmp_path / "page.md")
    finally:
        path.unlink()
    assert line.startswith(f"nvdp: {path}")
    assert words in line


def test_the_committed_figures_and_files_of_the_bench_are_as_their_schemas_say():
    for name in FIGURES:
        assert read_figure(RESULTS, name, "cpu") is not None
    for path in (*(RESULTS / "bench" / f"{name}.json" for name in BENCH), RESULTS / "bench" / "step-xeon.json"):
        assert read_entries(path, BENCH[path.stem.removesuffix("-xeon")], "rows")["rows"]


@pytest.mark.parametrize(
    ("new", "words"), [(ABSENT, "has no entry '0.mean'"), ({}, ": entry '0.mean' is {}; expected a list")]
)
def test_a_wrong_panel_is_told_with_its_file(tmp_path, new, words):
    path = figure_path(tmp_path, "figure2", "cpu")
    path.parent.mkdir()
    path.write_text(spoiled(json.loads((RESULTS / "figure2" / path.name).read_text()), (0, "mean"), new))
    with pytest.raises(InputError, match=rf"^{path}.*{words}"):
        FIGURE2.draw(read_figure(tmp_path, "figure2", "cpu"), tmp_path / "figure.png")
