"""Time and size of a clean install, and what each direct dependency adds to it.

    python benchmarks/install.py --json results/bench/install.json

Wheel and source archive of this clone are built twice, from two copies. The wheel is installed with pip into a new
environment, with the versions of constraints.txt. A dependency adds itself and the packages that nothing else needs.
What extras add is taken from the environment that runs this, where they are installed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent.parent
MB = 1e6


def build(out: Path) -> list[Path]:
    """The wheel and the source archive of what is committed here, built from a copy with a fixed date."""
    copy, date = out.with_name(f"{out.name}-copy"), {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(["git", "clone", "--quiet", str(HERE), str(copy)], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | date)
    return sorted(out.iterdir())


def needs(package: Distribution, extras: set[str] = frozenset()) -> set[tuple[str, frozenset[str]]]:
    """The packages that a package asks for here, each with the extras that it asks for."""
    found = set()
    for text in package.requires or []:
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            found.add((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return found


def closure(packages: dict[str, Distribution], first: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names of all packages that these need."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = set(first)
    while waiting:
        name, extras = each = waiting.pop()
        seen.add(each)
        if name in packages:
            waiting |= needs(packages[name], set(extras)) - seen
    return {name for name, _ in seen if name in packages}


def size(package: Distribution) -> int:
    """Bytes of the files of a package."""
    paths = (Path(str(file.locate())) for file in package.files or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


def extras(nvdp: Distribution, base: set[str]) -> dict[str, dict[str, Any]]:
    """What each extra adds to the packages of the base install, where all of it is installed here."""
    here = {canonicalize_name(each.name): each for each in distributions()}
    found = {}
    for extra in nvdp.metadata.get_all("Provides-Extra") or []:
        direct = {(canonicalize_name(each), frozenset()) for each in _asked(nvdp, extra)}
        added = closure(here, needs(nvdp, {extra})) - base - {"nvdp"}
        if direct and all(name in here for name, _ in direct):
            found[extra] = {"MB": round(sum(size(here[name]) for name in added) / MB, 1), "packages": sorted(added)}
    return found


def _asked(package: Distribution, extra: str) -> list[str]:
    wanted = (Requirement(text) for text in package.requires or [])
    return [each.name for each in wanted if each.marker is not None and each.marker.evaluate({"extra": extra})]


def measure(folder: Path) -> dict[str, Any]:
    """Install into a new environment in a folder, and weigh it."""
    files, again = build(folder / "dist"), build(folder / "again")
    wheel = next(file for file in files if file.suffix == ".whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    began = time.monotonic()
    command = ["pip", "install", "--quiet", "--constraint", str(HERE / "constraints.txt"), str(wheel)]
    subprocess.run([str(folder / "env" / "bin" / "python"), "-m", *command], check=True, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    site = next((folder / "env" / "lib").glob("python*/site-packages"))
    found = {canonicalize_name(each.name): each for each in distributions(path=[str(site)])}
    sizes = {name: size(package) for name, package in found.items()}
    direct = needs(found["nvdp"])
    every = closure(found, direct)
    adds = {}
    for each in direct:
        alone = every - closure(found, direct - {each}) | {each[0]}
        adds[each[0]] = {"MB": round(sum(sizes[name] for name in alone) / MB, 1), "packages": sorted(alone)}
    on_disk = sum(path.lstat().st_size for path in (folder / "env").rglob("*") if not path.is_symlink())
    return {
        "seconds": round(seconds),
        "load": round(os.getloadavg()[0], 1),
        "environment_MB": round(on_disk / MB),
        "packages": len(found),
        "nvdp_MB": round(sizes["nvdp"] / MB, 1),
        "files": {file.suffix: file.stat().st_size for file in files},
        "sha256": {f"{file.parent.name}/{file.name}": sha256(file.read_bytes()).hexdigest() for file in files + again},
        "extras": extras(found["nvdp"], every),
        "adds": dict(sorted(adds.items(), key=lambda item: -item[1]["MB"])),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder))
    text = json.dumps(measured, indent=1) + "\n"
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
