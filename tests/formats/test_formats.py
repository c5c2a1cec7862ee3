"""Files of earlier versions are loaded and predict what they did; see `make.py`, which wrote them."""

import importlib.util
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import nvdp
from nvdp.store import TaskStore

HERE = Path(__file__).parent
REFUSED = r"written by version 0\.1, which this version does not read"
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/predictions.json"))
_spec = importlib.util.spec_from_file_location("formats_make", HERE / "make.py")
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)


@pytest.fixture
def kept(tmp_path):
    """The files of version 0.2, where they may be changed."""
    return Path(shutil.copytree(HERE / "0.2", tmp_path / "kept"))


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_an_earlier_version_predict_what_they_did(version, tmp_path):
    folder = Path(shutil.copytree(HERE / version, tmp_path / "kept"))  # opening a store writes into it
    expected = json.loads((folder / "predictions.json").read_text())
    found = make.predictions(folder, folder / "tasks.db")
    assert found.keys() == expected.keys() == {"run", "fit", "store", "state", "weights"}
    for name in expected:
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


def test_what_was_measured_comes_with_a_model(kept):
    fit, weights = nvdp.load(kept / "fit"), nvdp.load(kept / "weights")
    assert (fit.columns.x, fit.card["steps"], fit.config.task) == (("day",), 7, "csv")
    assert (weights.kind, weights.card["scores"]) == ("classification", {"accuracy": 0.5})


def test_stores_and_states_of_version_0_1_are_refused_in_one_line(kept):
    with sqlite3.connect(kept / "tasks.db") as db:
        db.execute("UPDATE store SET value = 1 WHERE key = 'version'")
    db.close()
    with pytest.raises(nvdp.InputError, match=REFUSED):
        TaskStore(kept / "tasks.db", nvdp.load(kept / "fit"))
    data = bytearray((kept / "state.bin").read_bytes())
    data[8] = 1  # the version follows eight bytes of magic
    with pytest.raises(nvdp.InputError, match=REFUSED):
        nvdp.load(kept / "run").posterior_from_bytes(bytes(data))


def test_a_store_is_not_opened_with_other_units(kept):
    with pytest.raises(nvdp.InputError, match="other units"):
        TaskStore(kept / "tasks.db", nvdp.load(kept / "fit").model)
