import ast
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import nvdp
from nvdp.errors import InputError
from nvdp.system import write_text, write_whole
from nvdp.training.checkpoint import (
    Checkpoint,
    checkpoint_paths,
    load_newest_checkpoint,
    load_tensors,
    save_checkpoint,
    save_tensors,
    with_prefix,
)

PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def checkpoint(step):
    return Checkpoint(step, {"model/w": torch.full((4,), float(step))}, {"sums": {"LL": 0.1}, "skipped": 2})


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_tensors_and_numbers_come_back_bit_for_bit(tmp_path):
    tensors = {
        "a": torch.randn(3, 2),
        "b": torch.randn(5, dtype=torch.float64)[::2],
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(4).bfloat16(),
        "flag": torch.tensor([True, False]),
    }
    save_tensors(tmp_path / "file", tensors, {"step": 3, "seconds": 0.1})
    loaded, numbers = load_tensors(tmp_path / "file")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert (numbers["step"], numbers["seconds"]) == (3, 0.1)


def test_every_flipped_bit_is_detected(tmp_path):
    path = tmp_path / "file"
    save_tensors(path, {"w": torch.tensor([1.5, -2.0])}, {"step": 1})
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in (0, 3, 7):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(InputError, match=r"damaged|not written by nvdp"):
                load_tensors(path)


@pytest.mark.parametrize("keep", [0, 1, 8, 50, -1])
def test_a_file_cut_short_is_detected(tmp_path, keep):
    path = tmp_path / "file"
    save_tensors(path, {"w": torch.randn(4)}, {"step": 1})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="damaged"):
        load_tensors(path)


def test_files_of_others_and_missing_files_are_told_apart(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(InputError, match="not written by nvdp"):
        load_tensors(tmp_path / "other")
    with pytest.raises(InputError, match="does not exist"):
        load_tensors(tmp_path / "absent")


def test_a_newer_format_is_refused_with_both_versions(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("nvdp.training.checkpoint.CHECKPOINT_VERSION", 9)
        save_tensors(tmp_path / "file", {}, {})
    with pytest.raises(InputError, match="version 9; this nvdp reads 1"):
        load_tensors(tmp_path / "file")


def test_parts_are_the_inverse_of_prefixes():
    tensors = {"a/b": torch.zeros(1), "c": torch.ones(1)}
    both = Checkpoint(0, with_prefix("model", tensors) | with_prefix("model2", {"d": torch.zeros(1)}), {})
    assert both.part("model") == tensors


def test_the_newest_two_checkpoints_are_kept(tmp_path):
    for step in (5, 10, 200, 1000):
        save_checkpoint(tmp_path, checkpoint(step), "digest")
    assert len(checkpoint_paths(tmp_path)) == 2
    newest, complaints = load_newest_checkpoint(tmp_path)
    assert newest == Checkpoint(1000, newest.tensors, newest.numbers)
    assert newest.tensors["model/w"].tolist() == [1000.0] * 4
    assert (newest.numbers["sums"], newest.numbers["skipped"]) == ({"LL": 0.1}, 2)
    assert complaints == []


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    for step in (5, 10):
        save_checkpoint(tmp_path, checkpoint(step), "digest")
    cut(checkpoint_paths(tmp_path)[-1])
    newest, complaints = load_newest_checkpoint(tmp_path)
    assert newest.step == 5
    assert len(complaints) == 1
    assert "step-000000010" in complaints[0]


def test_two_damaged_checkpoints_are_an_error(tmp_path):
    for step in (5, 10):
        save_checkpoint(tmp_path, checkpoint(step), "digest")
    for path in checkpoint_paths(tmp_path):
        cut(path)
    with pytest.raises(InputError, match="no whole checkpoint"):
        load_newest_checkpoint(tmp_path)


def test_a_checkpoint_of_another_configuration_or_version_is_refused(tmp_path):
    save_checkpoint(tmp_path, checkpoint(5), "digest")
    assert load_newest_checkpoint(tmp_path, "digest")[0].step == 5
    with pytest.raises(InputError, match=r"step-000000005\.safetensors belongs to another configuration"):
        load_newest_checkpoint(tmp_path, "another")
    save_tensors(tmp_path / "step-000000006.safetensors", {"model/w": torch.zeros(1)}, {"step": 6})
    with pytest.raises(InputError, match=r"was written by version 0\.1"):
        load_newest_checkpoint(tmp_path, "digest")


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert load_newest_checkpoint(tmp_path / "absent") == (None, [])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_text(path, "before")

    def fail(beside):
        beside.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, fail)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "write", [lambda path: write_text(path, "text"), lambda path: save_tensors(path, {"w": torch.zeros(1)}, {})]
)
def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path, write):
    (tmp_path / "regular").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "regular" / "file")


def test_nothing_in_the_package_reads_or_writes_pickles():
    files = sorted(Path(nvdp.__file__).parent.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not PICKLES & {alias.name.split(".")[0] for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in PICKLES, file
                names = {alias.name for alias in node.names}
                assert not (node.module == "torch" and names & {"load", "save"}), file
            elif isinstance(node, ast.Attribute) and node.attr in ("load", "save"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                assert owner not in ("torch", "fabric"), file
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(node), file
