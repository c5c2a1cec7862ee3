"""A server as users start it, over the pretrained models and small untrained ones, and a browser to visit it."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from nvdp.data.tables import Columns
from nvdp.loading import Predictor
from nvdp.loading import save_fit as write_fit
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config
from nvdp.training.run_folder import save_model
from nvdp.units import Units

SMALL = {
    "decoder.width": 16,
    "decoder.layers": 2,
    "encoder.size": 16,
    "encoder.layers": 2,
    "rates.width": 16,
    "rates.layers": 2,
}
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
DESKTOP = {"width": 1280, "height": 960}


def untrained(config):
    torch.manual_seed(0)
    return build_model(config.model)


def save_run(folder, config):
    """A run folder with untrained weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    save_model(folder, untrained(config), 1)
    return folder


def save_fit(folder):
    """What `nvdp fit` leaves of a table with tree, day and size: days up to 720, sizes about 60."""
    config = RunConfig(task="csv", model=ModelConfig("nvdp").updated(SMALL))
    day, size = np.linspace(0, 720, 9)[:, None], np.linspace(10, 110, 9)[:, None]
    fitted = Predictor(untrained(config), Units.of([day], [size]), config, Columns("tree", ("day",), ("size",)))
    write_fit(folder, fitted, 1, {})
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    cnp = RunConfig(model=ModelConfig("cnp").updated(SMALL), objective="likelihood")
    digits = RunConfig(task="mnist", model=ModelConfig("nvdp", x_dim=2).updated(SMALL))
    signs = [preset_config("omniglot-fewshot", model, "quick") for model in ("protonet", "nvdp")]
    return [
        save_run(root / "small-cnp", cnp),
        save_run(root / "digits", digits),
        save_run(root / "signs", signs[0]),
        save_run(root / "signs-nvdp", signs[1]),
        save_fit(root / "trees"),
    ]


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


@pytest.fixture(scope="module")  # not longer: while Playwright runs, other tests cannot have an event loop
def browser():
    """Chromium, driven by Playwright; without it these tests are skipped, unless NVDP_NO_SKIPS is set."""
    if CHROMIUM is None and not os.environ.get("NVDP_NO_SKIPS"):
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    assert CHROMIUM is not None, "NVDP_NO_SKIPS is set, but there is no Chromium: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers run tests as root, for which Chromium has no sandbox; it meets our own page alone.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    """A function (path, viewport, scheme) -> an open page that must end without an error in its console."""
    contexts, complaints = [], []

    def open_page(path="", viewport=DESKTOP, scheme="light", **options):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
        page.goto(f"{address}/{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
