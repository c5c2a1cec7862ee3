"""Models that come with the package, and models of run folders."""

import json
from pathlib import Path

import pytest
import torch

import nvdp
from nvdp.data.gp import GPTasks
from nvdp.loading import pretrained_names
from nvdp.metrics import evaluate_regression


@pytest.mark.parametrize("name", pretrained_names())
def test_a_pretrained_model_is_small_and_scores_what_its_file_says(name):
    folder = Path(nvdp.__file__).parent / "weights" / name
    assert (folder / "model.safetensors").stat().st_size < 6_000_000
    stated = json.loads((folder / "scores.json").read_text())["evaluation"]
    validation = stated["validation"]
    chunks = [GPTasks().validation_chunk(validation["seed"], chunk) for chunk in range(4)]
    scores = evaluate_regression(nvdp.load(name), chunks, samples=2)["scores"]["LL"]
    error = stated["scores"]["LL"]["std"] / (4 * len(chunks[0])) ** 0.5
    assert scores["mean_parameters"] == pytest.approx(stated["scores"]["LL"]["mean_parameters"], abs=4 * error)


def test_a_pretrained_model_is_surer_near_its_context_than_far_from_it():
    posterior = nvdp.load("gp").adapt([-0.1, 0.0, 0.1], [0.5, 0.5, 0.5])
    near, far = posterior.predict([0.0, 1.9], samples=50).std.flatten()
    assert near < 0.5 * far


def test_an_unknown_name_is_told_with_what_there_is():
    with pytest.raises(nvdp.InputError, match="'gpp'; did you mean 'gp'"):
        nvdp.load("gpp")


def test_a_loaded_model_does_not_touch_the_global_random_state():
    before = torch.get_rng_state()
    nvdp.load("gp")
    assert torch.equal(torch.get_rng_state(), before)
