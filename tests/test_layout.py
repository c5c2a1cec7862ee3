"""The map in CONTRIBUTING.md is that of the tree: its paths exist, and imports follow its layers."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "nvdp"
MAP = (ROOT / "CONTRIBUTING.md").read_text()
ENTRY_POINTS = ("__init__", "__main__")  # the public names, and ``python -m nvdp``


def layers() -> dict[str, int]:
    """The number of the layer of each name in the map."""
    lines = MAP.split("<!-- layers:begin -->")[1].split("<!-- layers:end -->")[0].strip().splitlines()
    return {name: number for number, line in enumerate(lines) for name in re.findall(r"`([\w.]+)`", line)}


def layer_of(module: str, known: dict[str, int]) -> int:
    """The layer of a module such as "nvdp.nn.rates": that of the longest name of the map that it begins with."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(known[name] for name in names if name in known)


def imports(file: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {module for module in found if module.startswith("nvdp.")}


def test_imports_follow_the_layers() -> None:
    known = layers()
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(["nvdp", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        if module == "nvdp" or module.endswith(ENTRY_POINTS):
            continue
        own = layer_of(module, known)
        wrong += [f"{module} imports {other}" for other in sorted(imports(file)) if layer_of(other, known) > own]
    assert not wrong


def test_the_map_names_every_folder_and_file_of_the_package() -> None:
    entries = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()]
    names = {path.name for path in entries if path.stem not in (*ENTRY_POINTS, "__pycache__")}
    assert {name for name in names if f"`{name}`" not in MAP and f"`{name}/`" not in MAP} == set()


def test_paths_of_the_map_exist() -> None:
    paths = re.findall(r"`(src/nvdp/[\w./]+)`", MAP)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
