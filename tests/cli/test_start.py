"""What is imported before a command runs; seconds depend on the machine, imports do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nvdp
from nvdp import _MODULES

HEAVY = {
    "numpy", "torch", "torch._dynamo", "jaxtyping", "pandas", "sklearn", "scipy", "matplotlib", "lightning_fabric",
    "tensorboard", "fastapi", "botorch", "gpytorch",
}  # fmt: skip


def heavy_imports(code):
    """The heavy packages that a fresh process has imported after this code, which must be silent on stderr."""
    listing = f"{code}\nimport sys\nprint(*sorted({HEAVY} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", listing], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    return set(result.stdout.splitlines()[-1].split())


def test_help_and_version_import_nothing_heavy():
    commands = [["--help"], ["--version"], ["train", "--help"], ["info", "--help"], ["serve", "--help"]]
    code = f"""
import contextlib, sys
from nvdp.cli import main
for arguments in {commands}:
    sys.argv = ["nvdp", *arguments]
    with contextlib.suppress(SystemExit):
        main()
"""
    assert heavy_imports(code) == set()


def test_importing_nvdp_is_quiet_and_waits_with_torch_until_a_name_is_used():
    assert heavy_imports("import nvdp") == set()
    assert heavy_imports("import nvdp\nnvdp.load") == {"numpy", "torch", "jaxtyping"}


def test_a_server_starts_without_what_it_does_not_need():
    loaded = heavy_imports("from nvdp.web.server import create_app\ncreate_app()")
    assert loaded == {"numpy", "torch", "jaxtyping", "fastapi"}


def test_public_names_are_those_that_are_imported_when_used():
    assert sorted(name for names in _MODULES.values() for name in names) == sorted(nvdp.__all__)
    assert set(nvdp.__all__) <= set(dir(nvdp))
    for name in nvdp.__all__:
        assert getattr(nvdp, name) is not None


def test_type_checkers_are_told_the_same_names():
    source = Path(nvdp.__file__).read_text()
    for module, names in _MODULES.items():
        assert f"    from {module} import {', '.join(names)}\n" in source


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        nvdp.lod  # noqa: B018


@pytest.fixture(scope="module")
def odd():
    """What a process prints with a terminal of ASCII alone, BoTorch that is not there, and half a sample."""
    code = (
        "import sys; sys.modules['botorch'] = None\n"
        "try:\n    import nvdp.botorch\nexcept ImportError as error:\n    print(error)\n"
        "import nvdp\n"
        "try:\n    nvdp.load('gp-nvdp').adapt([0.0], [0.1]).predict([0.5], 2.5)\n"
        "except ValueError as error:\n    print(error)\n"
        "nvdp.load('gp-nvdp').adapt([0.0], [0.1]).predict([0.5])\n"
        "nvdp.load('gp-nvdp').adapt([0.0], [0.1]).predict([0.5], 2)\n"
        "import nvdp.training.loop\n"
        "from nvdp.nn.kernels import _loaded\n"
        "print('kernels compiled:', _loaded.cache_info().misses)\n"
        "sys.argv = ['nvdp', 'models']\n"
        "from nvdp.cli import main; main()\n"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "80"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=300)
    assert (said.returncode, said.stderr) == (0, b"")
    return said.stdout.decode("ascii")


def test_odd_surroundings_are_no_traceback(odd):
    assert "pip install 'nvdp[botorch]'" in odd
    assert "samples is 2.5; expected a whole number" in odd
    assert max(map(len, odd.splitlines())) <= 80


def test_predicting_and_importing_the_training_loop_compile_no_kernels(odd):
    assert "kernels compiled: 0\n" in odd
