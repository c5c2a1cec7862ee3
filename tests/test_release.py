"""The release files: the same bytes twice, a wheel that works outside the clone, a lock that is complete."""

import hashlib
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED_EXTRAS = ("web", "tables", "postgres")  # as `make lock` asks for
DATE = "1700000000"
TIMELESS = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
TO_INSTALL = re.compile(r"pip install '?nvdp\\?\[(\w+)\]")


def copy_of_sources(to: Path) -> Path:
    """What the archives are made of, with times and permissions of its own."""
    to.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy
            )
        else:
            shutil.copy(ROOT / name, to)
    return to


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Path]]:
    """The archives by their endings, each built twice from different folders."""
    built = []
    for number in (1, 2):
        place = tmp_path_factory.mktemp(f"build{number}")
        source = copy_of_sources(place / ("a" * number))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(source)]
        subprocess.run(command, check=True, capture_output=True, env=TIMELESS | {"SOURCE_DATE_EPOCH": DATE})
        built.append({path.suffix: path for path in (place / "dist").iterdir()})
    return built


@pytest.fixture(scope="module")
def clean_python(builds: list[dict[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it; everything else is taken from this environment."""
    place = tmp_path_factory.mktemp("clean") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    packages = next(place.glob("lib/python*/site-packages"))
    # A path only: the .pth files inside it, that of this clone among them, are not followed.
    (packages / "shared.pth").write_text(f"{next(p for p in site.getsitepackages() if p.endswith('site-packages'))}\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    # nvdp of this clone is visible there too: without the option, pip would take it for an older nvdp to be removed.
    wheel = str(builds[0][".whl"])
    subprocess.run([*install, "--ignore-installed", wheel], check=True, capture_output=True, env=TIMELESS)
    return python


def test_two_builds_have_the_same_bytes(builds: list[dict[str, Path]]) -> None:
    first, second = ({end: hashlib.sha256(path.read_bytes()).hexdigest() for end, path in b.items()} for b in builds)
    assert first == second
    assert set(first) == {".whl", ".gz"}


def test_the_wheel_works_outside_the_clone(clean_python: Path, tmp_path: Path) -> None:
    script = (
        "import nvdp; model = nvdp.load('gp'); print(nvdp.__file__);"
        "print(tuple(model.adapt([0.0, 1.0, 2.0], [0.1, 0.2, 0.3]).predict([0.5]).mean.shape))"
    )
    command = [str(clean_python), "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=TIMELESS)
    place, shape = done.stdout.splitlines()
    assert Path(place).is_relative_to(clean_python.parent.parent)
    assert shape == "(1, 1)"
    nvdp = [str(clean_python.parent / "nvdp"), "--version"]
    said = subprocess.run(nvdp, check=True, capture_output=True, text=True, cwd=tmp_path, env=TIMELESS).stdout
    assert said.strip() == distribution("nvdp").version
    assert (Path(place).parent / "web" / "static" / "index.html").exists()


def test_lines_that_install_an_extra_work_as_written(clean_python: Path, tmp_path: Path) -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*.py")]
    extras = {extra for path in texts for extra in TO_INSTALL.findall(path.read_text())}
    assert extras
    assert extras <= set(PROJECT["optional-dependencies"])
    wanted = f"nvdp[{','.join(sorted(extras - {'cluster'}))}]"  # Ray is not part of `make install`
    command = [sys.executable, "-m", "pip", "--python", str(clean_python), "install", "--no-index", "--quiet", wanted]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=TIMELESS)


def pinned(file: str) -> dict[str, str]:
    """The version of each package that a file names."""
    lines = re.findall(r"^([\w.-]+)(?:\[\w+\])?==([^\s;\\]+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def test_the_lock_is_complete_and_has_the_versions_of_the_constraints() -> None:
    lock, constraints = pinned("requirements.lock"), pinned("constraints.txt")
    different = {name: v for name, v in lock.items() if v.removesuffix("+cpu") != constraints[name]}
    assert not different, "run `make lock`"
    extras = PROJECT["optional-dependencies"]
    waiting = [Requirement(text) for text in [*PROJECT["dependencies"], *(t for e in LOCKED_EXTRAS for t in extras[e])]]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(wanted))
        assert canonicalize_name(wanted.name) in lock, f"{wanted} is not in requirements.lock: run `make lock`"
        for text in distribution(wanted.name).requires or []:
            inner = Requirement(text)
            asked = [inner.marker.evaluate({"extra": extra}) for extra in wanted.extras] if inner.marker else []
            if any(asked):
                inner.marker = None
            waiting.append(inner)


def test_every_locked_package_has_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_container_is_built_from_files_that_are_sent_to_it():
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for line in copied for name in line.split()} == sent
    assert all((ROOT / name).exists() for name in sent)
