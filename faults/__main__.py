"""Try everything at length: ``python -m faults [SECTION …] [--out results/trust]``; ``python -m faults page``.

Each section leaves one JSON file, and docs/trust.md is made from these files alone. Some need half an hour.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from faults.page import write_page
from faults.tally import Tally
from nvdp.system import write_text

EXAMPLES = 50  # of each property and model


def interruptions(place: Path) -> list[Tally]:
    """Kills, full disks, damaged checkpoints."""
    from faults.interruptions import damaged_checkpoints, full_disk, kills

    return [
        *kills(place / "kills", 20),
        full_disk(place / "disk", (8, 30, 45, 60, 80, 100), mount=True),
        full_disk(place / "files", (0, 1, 4, 10, 20, 25), mount=False),
        *damaged_checkpoints(place / "damage", flips=1_000, resumed=5),
    ]


def hostile(place: Path) -> list[Tally]:
    """Files from strangers."""
    from faults.hostile import configurations_from_strangers, odd_places, weights_from_strangers

    return [*weights_from_strangers(place), odd_places(place), configurations_from_strangers(place)]


def numbers(place: Path) -> list[Tally]:
    """Inputs at the ends of what numbers can be."""
    from faults.numbers import MIXED, PRECISIONS, extreme_inputs

    return [extreme_inputs(precision) for precision in (*PRECISIONS, MIXED)]


def threads(place: Path) -> list[Tally]:
    """Eight at once."""
    from faults.threads import library, service

    return [library(400), service(160)]


def processes(place: Path) -> list[Tally]:
    """Several on one run."""
    from faults.processes import NAMES, killed_members, shared_runs, started_by_torchrun

    return [shared_runs(place, NAMES, three=True), started_by_torchrun(place), killed_members(place, 2)]


def cluster(place: Path) -> list[Tally]:
    """A node of a Ray cluster is killed."""
    from faults.ray_nodes import killed_node

    return [killed_node(place)]


def queue(place: Path) -> list[Tally]:
    """The command for many runs on a cluster."""
    from faults.ray_nodes import reproduced

    return [reproduced(place)]


def scale(place: Path) -> list[Tally]:
    """The commands of docs/scale.md on two nodes."""
    from faults.scale import two_nodes

    return two_nodes(place, 40_000)


def postgres(place: Path) -> list[Tally]:
    """A store on a server: many writers, kills of writers and of the server."""
    from faults.postgres import on_servers

    return on_servers(4, 500, 5)


def services(place: Path) -> list[Tally]:
    """Four prediction services behind one address."""
    from faults.services import shared_address

    return [shared_address(4, 6, 60)]


def streaming(place: Path) -> list[Tally]:
    """Tables larger than memory."""
    from faults.streaming import growing_folders

    return [growing_folders(place, (1, 5, 20, 50))]


def stored(place: Path) -> list[Tally]:
    """Damaged stores, and values that would poison them."""
    from faults.stored import flipped_bits, poison

    return [flipped_bits(place / "flips", 5_000), poison(place / "poison")]


def files(place: Path) -> list[Tally]:
    """Tables whose rows do not fit, and outputs that exist."""
    from faults.files import existing_outputs, shifted_rows, stopped_fits

    return [shifted_rows(place / "rows", 500), existing_outputs(place / "outputs"), stopped_fits(place / "fits", 12)]


def memory(place: Path) -> list[Tally]:
    """A million rows, and files that unpack to much."""
    from faults.memory import large_tables, packed_files

    return [large_tables(place / "rows", 1_000_000), packed_files(place / "packed", 200)]


def service(place: Path) -> list[Tally]:
    """Slow, absent and greedy visitors."""
    from faults.service import abandoned_work, other_hosts, slow_clients, stopped_servers, too_much_work

    return [
        slow_clients(place, 300),
        abandoned_work(place, 160),
        too_much_work(place, 24),
        stopped_servers(place, 1),
        other_hosts(place),
    ]


def properties(place: Path) -> list[Tally]:
    """What every model promises, on many examples."""
    tally = Tally(f"properties of every model in the registry, {EXAMPLES} examples each (hypothesis)")
    tests = ["tests/trust/test_regression_properties.py", "tests/trust/test_classifier_properties.py"]
    report = place / "report.xml"
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout=0", f"--junit-xml={report}", *tests],
        env=os.environ | {"NVDP_EXAMPLES": str(EXAMPLES)},
        check=False,
        capture_output=True,
    )
    import xml.etree.ElementTree as ElementTree

    for case in ElementTree.parse(report).iter("testcase"):
        held = case.find("failure") is None and case.find("error") is None
        tally.check(held, "property of a model held in all examples", f"{case.get('name')} failed")
    return [tally]


SECTIONS: dict[str, Callable[[Path], list[Tally]]] = {
    each.__name__: each
    for each in (
        properties,
        interruptions,
        hostile,
        numbers,
        processes,
        cluster,
        queue,
        scale,
        postgres,
        services,
        threads,
        streaming,
        files,
        memory,
        stored,
        service,
    )
}


def main() -> None:
    """Run sections, or make the page."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, "page", []], help="default: all, then the page")
    parser.add_argument("--out", type=Path, default=Path("results/trust"))
    parser.add_argument("--page", type=Path, default=Path("docs/trust.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = options.sections or [*SECTIONS, "page"]
    wrong = 0
    for name in [each for each in chosen if each != "page"]:
        began = time.monotonic()
        with TemporaryDirectory() as folder:
            tallies = SECTIONS[name](Path(folder))
        record = {
            "section": name,
            "seconds": round(time.monotonic() - began),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "tried": [tally.record() for tally in tallies],
        }
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(options.out / f"{name}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        for tally in tallies:
            wrong += len(tally.wrong)
            print(f"{tally.what}: {tally.tried} tried, {len(tally.wrong)} wrong", flush=True)
    write_page(options.out, options.page)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
