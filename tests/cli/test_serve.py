"""`nvdp serve` as its users meet it: help that teaches, and one clear line for what cannot be."""

import importlib.util
import socket
from unittest import mock

import pytest
from command_line import nvdp


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def refusal(*arguments):
    result = nvdp("serve", *arguments)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr


def test_help_names_the_pages_the_extra_and_an_example():
    text = nvdp("serve", "--help").stdout
    for part in ("--port", "8765", "127.0.0.1", "nvdp[web]", "nvdp serve --run", "Ctrl+C"):
        assert part in text


def test_a_busy_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refusal("--port", port) == (
            f"nvdp: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port\n"
        )


def test_a_missing_extra_is_one_line():
    real = importlib.util.find_spec
    with mock.patch("importlib.util.find_spec", lambda name: None if name == "uvicorn" else real(name)):
        assert refusal() == "nvdp: nvdp serve needs uvicorn: pip install 'nvdp[web]'\n"


def test_an_address_that_is_not_ours_and_a_folder_that_is_not_there_are_one_line():
    assert "cannot listen on 192.0.2.1" in refusal("--host", "192.0.2.1", "--port", 0)
    assert "unknown folder or pretrained model 'nowhere'" in refusal("--run", "nowhere", "--port", 0)


def test_the_rest_of_the_command_line_does_not_load_the_extra():
    import subprocess
    import sys

    code = (
        "import sys; sys.argv = ['nvdp', 'models']\nimport nvdp.cli, nvdp.cli.web\nassert 'fastapi' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
