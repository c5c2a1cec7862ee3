"""A server as users start it, over the pretrained models, a small CNP and a small model of pictures."""

import os
import subprocess
import sys

import pytest
import torch

from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import save_model

SMALL = {"width": 16, "layers": 2, "representation": 16, "encoder_layers": 2, "rate_width": 16, "rate_layers": 2}


def save_run(folder, config):
    """A run folder with untrained weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    torch.manual_seed(0)
    save_model(folder, build_model(config.model), 1)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    cnp = RunConfig(model=ModelConfig("cnp", **SMALL), objective="likelihood")
    digits = RunConfig(task="mnist", model=ModelConfig("nvdp", x_dim=2, **SMALL))
    return [save_run(root / "small-cnp", cnp), save_run(root / "digits", digits)]


@pytest.fixture(scope="session")
def address(runs):
    """Where `nvdp serve --port 0` says it is."""
    options = [part for run in runs for part in ("--run", str(run))]
    command = [sys.executable, "-m", "nvdp", "serve", "--port", "0", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "http://127.0.0.1:" in line, line
        yield line.split()[3]
        server.terminate()
        server.wait(20)
