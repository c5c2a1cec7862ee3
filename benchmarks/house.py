"""Size and shape of the package: files, lines, files that one command passes through, switches between kinds of model.

A walk counts the files of the package in which a function runs while a command or call is served; the bodies of modules
and classes, which run at import, are left out. Switches are the lines that ask whether a model, task or configuration
is one of regression or classification. A command runs once before it is watched, so that imports do not count.

    python benchmarks/house.py              # a table
    python benchmarks/house.py --json FILE  # the same for programs
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import nvdp

PACKAGE = Path(nvdp.__file__).parent
SWITCHES = re.compile(
    r"isinstance\([^)]*(ModelConfig|ClassifierConfig|FewShotConfig|FewShotModel|MetaModel|ClassPosterior|ClassPrediction"
    r"|FewShotRun|NVDPClassifier)|(model|config|predictor|cls)\.kind\b.*(==|!=)|(?<!for name) in FEWSHOT_TASKS"
    r"|is_classifier\(|\"way\" in |\bepisodes is (not )?None"
)
PROFILE = """
import sys, threading
seen = set()
def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith({package!r}):
        if code.co_flags & 0x2:  # local variables of its own: not the body of a module or class
            seen.add(code.co_filename)
{prepare}
sys.setprofile(watch); threading.setprofile(watch)
try:
{body}
except SystemExit:
    pass
sys.setprofile(None); threading.setprofile(None)
print("WALK", len(seen)); print(*sorted(seen), sep="\\n")
"""
COMMAND = """    sys.argv = ["nvdp", {arguments}, "--out", {out!r}]
    from nvdp.cli import main
    main()"""
TABLE = "task,x,y\n" + "".join(f"{t},{x},{0.1 * t + x * x}\n" for t in range(12) for x in range(6))


def walk(body: str, prepare: str = "") -> list[str]:
    """The files in which a function ran."""
    program = PROFILE.format(package=str(PACKAGE), prepare=prepare, body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "WALK" not in done.stdout:
        raise SystemExit(done.stderr)
    return [line for line in done.stdout.split("WALK")[1].splitlines()[1:] if line]


def command_walk(arguments: str, out: Path) -> list[str]:
    """The files that a command passes through when it runs for the second time in a process."""
    first = COMMAND.format(arguments=arguments, out=f"{out}-first")
    return walk(COMMAND.format(arguments=arguments, out=str(out)), f"try:\n{first}\nexcept SystemExit:\n    pass")


def walks() -> dict[str, list[str]]:
    """The four walks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "table.csv").write_text(TABLE)
        train = '"train", "gp", "--steps", "3", "--quiet"'
        columns = '"--task", "task", "--x", "x", "--y", "y", "--steps", "9", "--quiet"'
        fit = f'"fit", "{folder}/table.csv", {columns}'
        return {
            "train gp": command_walk(train, folder / "run"),
            "adapt().predict()": walk(
                "    model.adapt([0.0, 1.0], [0.3, 0.5]).predict([0.5])", 'import nvdp; model = nvdp.load("gp-nvdp")'
            ),
            "fit": command_walk(fit, folder / "fit"),
            "serve request": walk(*SERVE),
        }


SERVE = (
    """    client.post("/api/adapt", json={"model": "gp", "x": [[0.0]], "y": [[0.1]], "query": [[0.5]]})""",
    """
from starlette.testclient import TestClient
from nvdp.web.server import create_app
client = TestClient(create_app(), base_url="http://127.0.0.1")
""",
)


def measured() -> dict[str, object]:
    """All figures."""
    files = sorted(PACKAGE.rglob("*.py"))
    sizes = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in files}
    switches = [path for path in files for line in path.read_text().splitlines() if SWITCHES.search(line)]
    return {
        "files": len(files),
        "lines": sum(sizes.values()),
        "files at the root": sum("/" not in name for name in sizes),
        "median file": statistics.median(sizes.values()),
        "largest file": max(sizes, key=lambda name: sizes[name]),
        "its lines": max(sizes.values()),
        "switches between regression and classification": len(switches),
        "files with switches": len(set(switches)),
        **{f"files of {name}": len(seen) for name, seen in walks().items()},
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write them to this file")
    out = parser.parse_args().json
    figures = measured()
    for name, value in figures.items():
        print(f"{name:50} {value}")
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
