"""The compiled kernels: where they are kept, and what happens where nothing can be compiled."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nvdp.nn import kernels
from nvdp.nn.compiled import COMPILED, compiled_kl, engine_in_use, engine_named
from nvdp.nn.fused import FUSED, fused_kl
from nvdp.nn.kernels import _loaded, loaded_kernels
from nvdp.nn.rates import LayerRates, RateBounds

needs_kernels = pytest.mark.skipif(isinstance(loaded_kernels(), str), reason=str(loaded_kernels()))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a new process of a user with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("NVDP_COMPILE", raising=False)
    monkeypatch.setattr(kernels, "FLAGS", ["-O0" if flag == "-O3" else flag for flag in kernels.FLAGS])  # a second less
    _loaded.cache_clear()
    yield tmp_path / "nvdp" / "kernels"
    _loaded.cache_clear()


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def is_compiled_again() -> bool:
    """In a new process: whether the cached file was not used."""
    _loaded.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        calls: list[Path] = []
        real = kernels._compiled
        patched.setattr(kernels, "_compiled", lambda which, path: (calls.append(path), real(which, path))[1])
        assert engine_in_use("compiled") == "compiled"
    return bool(calls)


@needs_kernels
def test_the_kernels_are_compiled_once_for_all_processes(cache: Path) -> None:
    assert is_compiled_again()
    assert len(list(cache.iterdir())) == 1  # nothing else is left behind
    assert not is_compiled_again()


@needs_kernels
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_damaged_file_is_compiled_again(cache: Path, share: float) -> None:
    assert is_compiled_again()
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: int(share * len(whole))])
    assert is_compiled_again()
    assert kept.stat().st_size == len(whole)


@needs_kernels
def test_a_folder_that_others_may_write_to_is_neither_read_nor_written(cache: Path) -> None:
    assert is_compiled_again()
    (kept,) = cache.iterdir()
    kept.unlink()
    cache.chmod(0o777)
    assert is_compiled_again()
    assert not list(cache.iterdir())


@needs_kernels
def test_without_a_cache_every_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert is_compiled_again()
    assert is_compiled_again()


@needs_kernels
def test_threads_that_begin_together_get_the_same_kernels() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(loaded_kernels())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert not isinstance(found[0], str)


@needs_kernels
def test_a_compiler_without_the_threads_of_pytorch_gives_kernels_of_one_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuses = 'for word in "$@"; do [ "$word" = -fopenmp ] && echo "no -fopenmp" >&2 && exit 1; done; exec cc "$@"'
    monkeypatch.setenv("CC", compiler(tmp_path, refuses))
    assert engine_named("compiled") is COMPILED
    q = torch.rand(3, 12)
    assert torch.allclose(compiled_kl(q, q / 2, [(7, 4)], 0.01), fused_kl(q, q / 2, [(7, 4)], 0.01), rtol=1e-4)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("PATH", "", "no C compiler"),
        ("CC", "false", "false cannot compile: exit code 1"),
        ("CC", "/no/compiler", "cannot compile"),
        ("CC", "gcc '", "cannot compile: No closing quotation"),
        ("NVDP_COMPILE", "0", "NVDP_COMPILE=0"),
    ],
)
def test_without_a_compiler_the_engine_is_fused_and_says_why(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert engine_named("compiled") is FUSED
    assert engine_in_use("compiled").startswith("fused (")
    assert why in engine_in_use("compiled")
    q = torch.rand(3, 12)
    assert torch.equal(compiled_kl(q, q / 2, [(7, 4)], 0.01), fused_kl(q, q / 2, [(7, 4)], 0.01))
    rates = LayerRates(*q.split([7, 4, 1], dim=-1), RateBounds("affine", 0.01))
    assert torch.equal(COMPILED.kl([rates], [rates]), torch.zeros(3))


def test_messages_of_a_compiler_that_are_no_text_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, r"printf '\n \377 broken\n' >&2; exit 1"))
    assert engine_in_use("compiled").endswith("cannot compile: \N{REPLACEMENT CHARACTER} broken)")


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    loaded_kernels()
    assert not os.path.exists("here")
