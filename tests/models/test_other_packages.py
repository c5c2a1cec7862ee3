"""Models of other packages, found by their entry points."""

import json

import pytest
from command_line import nvdp as command

import nvdp
from nvdp.errors import NameNote
from nvdp.models.registry import MODELS, add_installed_models

MODULE = """
from functools import partial
from nvdp.models.neural_process import NeuralProcess
from nvdp.models.registry import ModelSpec

plain = ModelSpec("their-cnp", "A CNP of another package", "likelihood",
                  regression=partial(NeuralProcess, latent=False, deterministic=True))
taken = ModelSpec("nvdp", "A name that is taken", "likelihood")
number = 3

def __getattr__(name):
    raise SystemExit("no\\nlicence") if name == "leaving" else AttributeError(name)
"""


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A function (entries) that installs a package with these entry points."""

    def install(*entries):
        place = tmp_path / "site"
        about = place / "theirs-1.0.dist-info"
        about.mkdir(parents=True)
        (place / "theirs_nvdp.py").write_text(MODULE)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        lines = [f"e{number} = {entry}" for number, entry in enumerate(entries)]
        (about / "entry_points.txt").write_text("\n".join(["[nvdp.models]", *lines, ""]))
        monkeypatch.syspath_prepend(str(place))

    before = dict(MODELS)
    yield install
    MODELS.clear()
    MODELS.update(before)


def test_a_model_of_another_package_is_listed_trained_and_loaded(other_package, tmp_path):
    other_package("theirs_nvdp:plain")
    add_installed_models()
    listed = json.loads(command("models", "--json").stdout)
    assert {"name": "their-cnp", "tasks": ["regression"]}.items() <= listed[-1].items()
    run = tmp_path / "run"
    done = command("train", "gp", "--model", "their-cnp", "--steps", "1", "--out", run, "--quiet")
    assert done.returncode == 0, done.stderr
    assert nvdp.load(run).adapt([0.0, 1.0], [0.1, 0.2]).predict([0.5]).mean.shape == (1, 1)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("theirs_nvdp:taken", "there is a model nvdp already"),
        ("theirs_nvdp:number", "is no ModelSpec but a int"),
        ("theirs_nvdp:absent", "cannot be loaded"),
        ("not_there:spec", "cannot be loaded"),
        ("theirs_nvdp:leaving", "cannot be loaded: SystemExit: no licence"),
    ],
)
def test_one_that_cannot_be_used_is_left_out_with_a_note(other_package, entry, words):
    other_package(entry)
    before = dict(MODELS)
    with pytest.warns(NameNote, match=words):
        add_installed_models()
    assert before == MODELS
