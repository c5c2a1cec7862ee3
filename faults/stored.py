"""Damage to the file of a store: bits flipped in each of its pages must be noticed or change no answer."""

import random
import shutil
from pathlib import Path
from typing import Any

from faults.tally import Tally
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.store import PAGE_BYTES, TaskStore, store_stats

SMALL = {"decoder.width": 8, "decoder.layers": 1, "encoder.size": 8, "encoder.layers": 1}
TASKS = 1_500  # some thirty pages, of rows and of the index


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
