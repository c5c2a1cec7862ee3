"""Runs that are killed, that meet a full disk, or whose checkpoints are damaged: each must end as if undisturbed."""

import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from faults.runs import TINY, run, same, start, state_of
from faults.tally import Tally
from nvdp.errors import InputError
from nvdp.training.checkpoint import checkpoint_paths, load_newest_checkpoint
from nvdp.training.run_folder import CHECKPOINTS

SAME = "resumed; final weights and optimiser equal to the last bit"
KILOBYTE = 1024


def kills(place: Path, times: int, seed: int = 0) -> list[Tally]:
    """SIGKILL at random moments: half of them at any time of a run, half as soon as a file is being written."""
    at_any_time = Tally("SIGKILL at a random moment of a run")
    while_writing = Tally("SIGKILL while a checkpoint, log or configuration is being written")
    undisturbed = place / "undisturbed"
    began = time.monotonic()
    run(TINY, undisturbed)
    expected, length = state_of(undisturbed), time.monotonic() - began
    chance = random.Random(seed)
    for number in range(times):
        tally = (at_any_time, while_writing)[number % 2]
        folder = place / f"killed-{number}"
        for _ in range(chance.randint(1, 2)):  # some runs are killed twice
            process = start(TINY, folder)
            if tally is while_writing:
                _wait_for_part(folder, chance.randint(1, 12), process)
            else:
                process.join(chance.uniform(0, 1.2 * length))
            process.kill()
            process.join()
        try:
            run(TINY, folder)
        except InputError as error:
            tally.failed(f"run {number}: {error}")
            continue
        tally.check(same(state_of(folder), expected), SAME, f"run {number}: other weights")
        if left := [path.name for path in folder.rglob("*.part")]:
            tally.failed(f"run {number}: left {left[0]}")
        shutil.rmtree(folder)
    return [at_any_time, while_writing]


def _wait_for_part(folder: Path, nth: int, process: BaseProcess) -> None:
    """Until the nth file is being written."""
    seen: set[str] = set()
    while process.is_alive() and len(seen) < nth:
        for inside in (folder, folder / CHECKPOINTS):
            try:
                seen |= {path.name for path in inside.iterdir() if path.name.endswith(".part")}
            except OSError:
                time.sleep(0.001)


def full_disk(place: Path, sizes: tuple[int, ...], mount: bool) -> Tally:
    """A disk with room for so many kilobytes: a small tmpfs, or a limit on the size of a file where none is allowed."""
    undisturbed = place / "never-full"
    run(TINY, undisturbed)
    expected = state_of(undisturbed)
    tally = Tally("disk full while training" + (" (a small tmpfs)" if mount else " (a limit on the size of files)"))
    for kilobytes in sizes:
        with _small_disk(place, kilobytes) if mount else _small_files(place, kilobytes) as (folder, make_room):
            try:
                run(TINY, folder)
                ended = "had room"
            except (InputError, OSError) as error:
                ended = str(error)
            make_room()
            if "had room" not in ended and not any(w in ended for w in ("No space", "too large", "cannot write")):
                tally.failed(f"{kilobytes} KB: {ended}")
                continue
            try:
                run(TINY, folder)
            except InputError as error:
                tally.failed(f"{kilobytes} KB, with room again: {error}")
                continue
            good = "had room" if "had room" in ended else "told in one line; with room again " + SAME
            tally.check(same(state_of(folder), expected), good, f"{kilobytes} KB: other weights")
    return tally


@contextmanager
def _small_disk(place: Path, kilobytes: int) -> Iterator[tuple[Path, Callable[[], None]]]:
    point = place / f"disk-{kilobytes}"
    point.mkdir()

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], check=True, capture_output=True)

    mount(f"size={kilobytes}k")
    try:
        yield point / "run", lambda: mount("remount,size=64m")
    finally:
        subprocess.run(["umount", "--lazy", point], check=True, capture_output=True)


@contextmanager
def _small_files(place: Path, kilobytes: int) -> Iterator[tuple[Path, Callable[[], None]]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def make_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * KILOBYTE, hard))
    try:
        yield place / f"limited-{kilobytes}", make_room
    finally:
        make_room()
        signal.signal(signal.SIGXFSZ, before)


def damaged_checkpoints(place: Path, flips: int, resumed: int, seed: int = 0) -> list[Tally]:
    """The newest checkpoint cut at every kilobyte, and with single bits flipped anywhere in it."""
    config = replace(TINY, steps=10, checkpoint_every=5)
    folder = place / "whole"
    run(config, folder)
    expected, newest = state_of(folder), checkpoint_paths(folder / CHECKPOINTS)[-1]
    whole, chance = newest.read_bytes(), random.Random(seed)
    cuts = Tally("newest checkpoint cut short, at every kilobyte")
    bits = Tally("one bit of the newest checkpoint flipped, anywhere in the file")
    both = Tally("both checkpoints damaged")
    lengths = range(0, len(whole), KILOBYTE)
    again = set(chance.sample(lengths, min(resumed, len(lengths))))
    for length in lengths:
        newest.write_bytes(whole[:length])
        _expect_older(cuts, folder, newest, f"cut at byte {length}")
        if length in again:
            (folder / "model.safetensors").unlink()
            run(config, folder)
            cuts.check(same(state_of(folder), expected), SAME, f"cut at byte {length}: other weights")
    for _ in range(flips):
        place_of_bit = chance.randrange(8 * len(whole))
        broken = bytearray(whole)
        broken[place_of_bit // 8] ^= 1 << place_of_bit % 8
        newest.write_bytes(broken)
        _expect_older(bits, folder, newest, f"bit {place_of_bit}")
    for path in checkpoint_paths(folder / CHECKPOINTS):
        path.write_bytes(path.read_bytes()[:-1])
    try:
        load_newest_checkpoint(folder / CHECKPOINTS)
        both.failed("something was loaded")
    except InputError as error:
        both.check(str(newest) in str(error), "refused with a line that names the file", str(error))
    return [cuts, bits, both]


def _expect_older(tally: Tally, folder: Path, newest: Path, how: str) -> None:
    try:
        found, complaints = load_newest_checkpoint(folder / CHECKPOINTS)
    except Exception as error:  # any other error than a complaint is what this looks for
        tally.failed(f"{how}: {type(error).__name__} {error}")
        return
    good = found is not None and found.step == 5 and len(complaints) == 1 and str(newest) in complaints[0]
    tally.check(good, "named as damaged, the one before it taken", f"{how}: went unnoticed")
