"""Files from strangers: weights, checkpoints and configurations made to execute, to allocate, to escape or to crash."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from faults.runs import TINY, run
from faults.tally import Tally
from nvdp.errors import InputError
from nvdp.training.checkpoint import CHECKPOINT_VERSION, checkpoint_paths, checksum, load_tensors
from nvdp.training.run_folder import CHECKPOINTS, CONFIG, WEIGHTS, load_any_run

MOST_SECONDS = 20.0  # for one refusal, on a busy machine
REFUSED, LOADED = "refused with one line", "harmless, loaded"
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**9, 10**30, 1.5, float("nan"), float("inf"), "", "../../etc/passwd", "x" * 10_000, [],
    [[]], {}, {"name": "nvdp"}, {"__class__": "os.system"}, "__import__('os').system('true')", "$(touch /tmp/executed)",
)  # fmt: skip


class _Payload:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def _with_header(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def _signed(tensors: dict[str, torch.Tensor], header: str) -> bytes:
    """A file with a right checksum, as anyone can make who reads the code."""
    return save(tensors, {"nvdp": json.dumps({"header": header, "sha256": checksum(tensors, header)})})


def hostile_weights(mark: Path, whole: dict[str, torch.Tensor]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of files that are no weights of ours; all but the first few are safetensors of some kind."""
    yield "nothing", b""
    yield "text", b"hello"
    yield "a pickle", pickle.dumps(_Payload(mark))
    yield "a pickle behind a header's length", (50).to_bytes(8, "little") + pickle.dumps(_Payload(mark))
    yield "a header of 2⁶³ bytes", _with_header({}, length=2**63)
    yield "a header of 90 MB", _with_header({}, length=90_000_000)
    yield "a header that is a list", _with_header([1, 2])
    yield "a header that is no UTF-8", _with_header(b"\xff\xfe\xfd\xfc")
    yield "a header nested 100,000 deep", _with_header(b"[" * 100_000)
    for shape, offsets in (
        ([10**12], [0, 4]), ([2**62, 4], [0, 4]), ([1], [0, 2**60]), ([1], [4, 0]), ([1], [-4, 0]), ([-1], [0, 4]),
        ([1], [0, 400]), (["1"], [0, 4]), ([1.5], [0, 4]), ([1], []),
    ):  # fmt: skip
        yield (
            f"shape {shape}, bytes {offsets}",
            _with_header({"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}, b"\0" * 4),
        )
    twice = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("a", "b")}
    yield "two tensors in one place", _with_header(twice, b"\0" * 4)
    yield "an unknown dtype", _with_header({"w": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4)
    yield "no checksum", save(whole)
    yield "a checksum that is a list", save(whole, {"nvdp": json.dumps({"header": "{}", "sha256": []})})
    for version in (0, CHECKPOINT_VERSION + 1, "1", None, [1]):
        yield f"version {version!r}", _signed(whole, json.dumps({"version": version, "step": 1}))
    for header in ("", "[]", "null", "{}", "1", "[" * 100_000):
        yield f"a signed header {header[:9]!r}", _signed(whole, header)
    for step in (-1, 1.5, "1", None, [], 10**400):
        yield f"step {str(step)[:9]}", _signed(whole, json.dumps({"version": CHECKPOINT_VERSION, "step": step}))
    good = json.dumps({"version": CHECKPOINT_VERSION, "step": 1})
    name = next(name for name in sorted(whole) if whole[name].is_floating_point())
    yield "a weight of another shape", _signed(whole | {name: torch.zeros(3, 3, 3)}, good)
    yield "a weight too few", _signed({k: t for k, t in whole.items() if k != name}, good)
    yield "a weight named ../../etc/passwd", _signed(whole | {"../../etc/passwd": torch.zeros(1)}, good)
    yield "weights that are not finite", _signed(whole | {name: torch.full_like(whole[name], torch.nan)}, good)


def weights_from_strangers(place: Path) -> list[Tally]:
    """Each of these files as a model's weights, and as the only checkpoint of a run to resume."""
    config, origin = replace(TINY, steps=2), place / "origin"
    run(config, origin)
    mark, folder = place / "executed", place / "stranger"
    loading = Tally(
        "weights made by a stranger: pickles, impossible headers, huge sizes, wrong shapes, unknown versions"
    )
    resuming = Tally("the same files as the checkpoint of a run to resume")
    whole = load_tensors(origin / WEIGHTS)[0]
    for name, content in hostile_weights(mark, whole):
        shutil.copytree(origin, folder, ignore=shutil.ignore_patterns("tensorboard"))
        (folder / WEIGHTS).write_bytes(content)
        _expect_refusal(loading, name, lambda: load_any_run(folder), mark)
        (folder / WEIGHTS).unlink()
        for path in checkpoint_paths(folder / CHECKPOINTS):
            path.write_bytes(content)
        _expect_refusal(resuming, name, lambda: run(config, folder), mark)
        shutil.rmtree(folder)
    return [loading, resuming]


def odd_places(place: Path) -> Tally:
    """Paths that are not what they seem: a pipe that never ends, a device, a folder, a link to itself or outwards."""
    tally = Tally("weights that are a pipe, a device, a folder, a link to itself or to nothing")
    origin = place / "paths"
    run(replace(TINY, steps=1), origin)
    path = origin / WEIGHTS
    path.unlink()
    makers: dict[str, Callable[[], None]] = {
        "a pipe": lambda: os.mkfifo(path),
        "a device": lambda: path.symlink_to("/dev/zero"),
        "a folder": path.mkdir,
        "a link to itself": lambda: path.symlink_to(path),
        "a link to nothing": lambda: path.symlink_to(place / "absent"),
    }
    for name, make in makers.items():
        make()
        _expect_refusal(tally, name, lambda: load_any_run(origin), place / "executed")
        path.rmdir() if path.is_dir() else path.unlink()
    return tally


def configurations_from_strangers(place: Path, every: int = 1) -> Tally:
    """Every setting of a configuration with every odd value, and files that are no configuration; or every nth."""
    tally = Tally("config.json made by a stranger: every setting with every odd value, broken and huge files")
    folder = place / "configured"
    run(replace(TINY, steps=1), folder)
    values = json.loads((folder / CONFIG).read_text())
    texts = {
        "nothing": "", "a list": "[]", "a word": "null", "half of it": (folder / CONFIG).read_text()[:40],
        "nested 100,000 deep": "[" * 100_000, "2 MB": '{"task": "' + "x" * 2_000_000 + '"}',
        "an unknown key": json.dumps(values | {"colour": "red"}),
    }  # fmt: skip
    for version in (0, 1, 3, "2", None, [2]):
        texts[f"version {version!r}"] = json.dumps(values | {"version": version})
    for value in HOSTILE_VALUES:
        for name, changed in _each_replaced(values, value):
            texts[f"{name} = {str(value)[:20]}"] = json.dumps(changed)
    for name, text in list(texts.items())[::every]:
        (folder / CONFIG).write_text(text)
        _expect_refusal(tally, name, lambda: _use(folder), place / "executed", harmless=True)
    return tally


def _each_replaced(values: dict[str, Any], value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings with one of them, or one group, replaced, for each of them."""
    for name, inner in values.items():
        yield name, values | {name: value}
        if isinstance(inner, dict):
            for deeper, changed in _each_replaced(inner, value):
                yield f"{name}.{deeper}", values | {name: changed}


def _use(folder: Path) -> None:
    """Load a model and ask it: a setting that is taken must also work."""
    model = load_any_run(folder)[1]
    prediction = model.adapt([0.0, 1.0], [0.5, -0.5]).predict([0.3], 2)
    if not torch.isfinite(prediction.mean).all():  # type: ignore[union-attr]
        raise ArithmeticError("a prediction is not finite")


def _expect_refusal(tally: Tally, name: str, action: Callable[[], object], mark: Path, harmless: bool = False) -> None:
    began = time.monotonic()
    try:
        action()
        outcome = LOADED
    except InputError as error:
        outcome = REFUSED if "\n" not in str(error) else f"more than one line: {error}"
    except Exception as error:  # whatever else comes out is what this looks for
        outcome = f"{type(error).__name__}: {error}"
    if mark.exists():
        tally.failed(f"{name}: executed")
    elif time.monotonic() - began > MOST_SECONDS:
        tally.failed(f"{name}: took {time.monotonic() - began:.0f} s")
    else:
        tally.check(outcome == REFUSED or (harmless and outcome == LOADED), outcome, f"{name}: {outcome}")
