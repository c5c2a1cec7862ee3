"""ONNX graphs of adapt and predict, run by ONNX Runtime beside PyTorch."""

import pickle
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from command_line import refusal

from nvdp.errors import InputError
from nvdp.export import export_onnx
from nvdp.loading import Predictor
from nvdp.models.registry import build_model
from nvdp.units import Units

UNITS = Units((5.0, -1.0), (2.0, 0.5), (100.0,), (10.0,), (0.0, -2.0), (10.0, 0.0))
EXPORT = """
import sys
from pathlib import Path
import pickle
from nvdp.export import export_onnx
export_onnx(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
"""


def test_onnx_runtime_gives_the_predictions_of_pytorch_at_every_size(small_config, tmp_path):
    model = build_model(small_config("nvdp-attentive", x_dim=2)).eval().requires_grad_(False)
    predictor, generator = Predictor(model, UNITS), torch.Generator().manual_seed(0)
    # In a process of its own, as sizes are symbols while a graph is made and types are checked in this one.
    (tmp_path / "predictor").write_bytes(pickle.dumps(predictor))
    command = [sys.executable, "-W", "ignore", "-c", EXPORT, tmp_path / "predictor", tmp_path / "model.onnx"]
    subprocess.run(command, check=True, capture_output=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for points, queries in ((1, 1), (2, 30), (7, 11), (40, 3)):
        x = torch.tensor([0.0, -2.0]) + torch.tensor([10.0, 2.0]) * torch.rand(points + queries, 2, generator=generator)
        y = 100 + 10 * torch.randn(points, 1, generator=generator)
        ours = predictor.adapt(x[:points], y).predict(x[points:])
        given = {"context_x": x[:points].numpy(), "context_y": y.numpy(), "x": x[points:].numpy()}
        mean, std = session.run(None, given)
        np.testing.assert_allclose(mean, ours.mean.numpy(), rtol=1e-4, atol=1e-3)  # y spreads by 10
        np.testing.assert_allclose(std, ours.std.numpy(), rtol=1e-4, atol=1e-3)


def test_what_cannot_be_exported_is_one_line(small_config, tmp_path):
    latent = Predictor.of(build_model(small_config("np")).eval().requires_grad_(False))
    with pytest.raises(InputError, match="np predicts by sampled functions"):
        export_onnx(latent, tmp_path / "np.onnx")
    assert "omniglot" not in refusal("export", "omniglot", "--out", tmp_path / "a.onnx")
    (tmp_path / "there.onnx").write_text("kept")
    assert "there.onnx" in refusal("export", "gp", "--out", tmp_path / "there.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
