"""The machine: folders that appear whole, and instructions that a processor announces and cannot run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvdp.errors import InputError
from nvdp.system import avoid_broken_amx, new_folder

ISA = "ONEDNN_MAX_CPU_ISA"
DIES, WORKS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)", "pass"


@pytest.fixture
def announced(tmp_path, monkeypatch):
    """A processor that announces AMX."""
    monkeypatch.setenv(ISA, "")  # so that it is absent again after the test
    monkeypatch.delenv(ISA)
    path = tmp_path / "cpuinfo"
    path.write_text("flags : fpu avx512_bf16 amx_bf16 amx_tile amx_int8\n")
    return path


def test_a_new_folder_takes_the_place_of_the_empty_one_that_a_link_leads_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_folder(tmp_path / "link") as place:
        (place / "file").touch()
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["file"]
    with pytest.raises(InputError, match="/proc is a mount point"), new_folder(Path("/proc")):
        pass


@pytest.mark.parametrize(("trial", "found"), [(DIES, "AVX512_CORE_FP16"), (WORKS, "DEFAULT")])
def test_amx_is_avoided_only_where_a_product_dies(announced, trial, found):
    avoid_broken_amx(announced, trial)
    assert os.environ[ISA] == found


def test_a_choice_of_the_user_stays_and_nothing_is_tried_without_amx(announced, tmp_path, monkeypatch):
    monkeypatch.setenv(ISA, "AVX2")
    avoid_broken_amx(announced, DIES)
    assert os.environ[ISA] == "AVX2"
    monkeypatch.delenv(ISA)
    announced.write_text("flags : fpu avx2\n")
    for path in (announced, tmp_path / "absent"):
        avoid_broken_amx(path, DIES)
        assert ISA not in os.environ


def test_a_product_in_bfloat16_works_after_it():
    """On a processor whose AMX is broken this process would end by a signal."""
    code = "from nvdp.system import avoid_broken_amx as a; a(); import torch; b = torch.ones(64, 64).bfloat16(); b @ b"
    environment = {name: value for name, value in os.environ.items() if name != ISA}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
