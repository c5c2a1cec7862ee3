"""Damage to the file of a store: bits flipped in each of its pages must be noticed or change no answer."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faults.tally import Tally
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.store import TaskStore, store_stats
from nvdp.store.sqlite import PAGE_BYTES

SMALL = {"decoder.width": 8, "decoder.layers": 1, "encoder.size": 8, "encoder.layers": 1}
TASKS = 800  # some twenty pages, of rows and of the index


def flipped_bits(place: Path, flips: int, seed: int = 0) -> Tally:
    """Flip one bit of a closed store, in each page in turn, and ask for everything that it holds."""
    tally = Tally("a bit of a closed store is flipped, in each of its pages in turn; then all tasks are read")
    place.mkdir(parents=True, exist_ok=True)
    model: Any = build_model(ModelConfig("nvdp").updated(SMALL)).eval()
    names = [f"task-{number:05d}" for number in range(TASKS)]
    whole, damaged = place / "whole.db", place / "damaged.db"
    with TaskStore(whole, model) as store:
        store.observe_many(names, [[number / TASKS] for number in range(TASKS)], [[0.5]] * TASKS)
    expected = _answers(whole, model, names)
    content, chance = whole.read_bytes(), random.Random(seed)
    pages = len(content) // PAGE_BYTES
    for flip in range(flips):
        for left in place.glob("damaged.db*"):
            left.unlink()
        byte = (flip % pages) * PAGE_BYTES + chance.randrange(PAGE_BYTES)
        bit = chance.randrange(8)
        shutil.copy(whole, damaged)
        with damaged.open("r+b") as file:
            file.seek(byte)
            file.write(bytes([content[byte] ^ (1 << bit)]))
        try:
            same = _answers(damaged, model, names) == expected
            outcome = "harmless: every answer as before" if same else f"wrong answers after bit {bit} of byte {byte}"
            tally.check(same, outcome, outcome)
        except InputError as error:
            tally.check("\n" not in str(error), "noticed, told in one line", f"byte {byte}: {error}")
        except Exception as error:  # whatever else comes out is what this looks for
            tally.failed(f"byte {byte}: {type(error).__name__}: {error}")
    return tally


def _answers(path: Path, model: Any, names: list[str]) -> tuple[Any, ...]:
    """What a user can ask of a store, one known and one unknown task first, as a short session would."""
    with TaskStore(path, model) as store:
        few = [store.count(names[len(names) // 2]), store.count("nobody")]
        state = store.state(names)
        told = few, state.sums.tolist(), state.counts.tolist(), len(store), sorted(store)
    numbers = store_stats(path)
    return (*told, numbers["tasks"], numbers["points"])


def poison(place: Path) -> Tally:
    """Huge values, alone and among good ones: none is taken in, and the states stay as they were."""
    tally = Tally("values from 1e8 to 1e300 are observed, alone, in batches and after good ones")
    place.mkdir(parents=True, exist_ok=True)
    model: Any = build_model(ModelConfig("nvdp").updated(SMALL)).eval()
    with TaskStore(place / "tasks.db", model) as store:
        store.observe("anna", [0.5], [1.0])
        before = store.state(["anna"]).sums
        for power in range(8, 301, 4):
            for x, y in ((0.5, 10.0**power), (-(10.0**power), 0.5), (10.0**power, -(10.0**power))):
                point = np.array([[x]]), np.array([[y]])
                try:
                    store.observe_many(["bert", "anna"], [[0.1], point[0]], [[0.2], point[1]])
                    store.forget("anna", *point)
                    store.forget("bert", [0.1], [0.2])
                    outcome = "taken in, and forgotten without a trace"
                except InputError:
                    outcome = "refused"
                close = torch.allclose(store.state(["anna"]).sums, before, atol=1e-6)
                good = close and (store.count("anna"), store.count("bert")) == (1, 0)
                tally.check(good, outcome, f"x = {x:g}, y = {y:g}: {outcome}, and the states have changed")
    return tally
