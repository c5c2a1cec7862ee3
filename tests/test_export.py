"""ONNX graphs of adapt and predict, run by ONNX Runtime beside PyTorch."""

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


@pytest.mark.filterwarnings("ignore")  # of the exporter, about its own parts
@pytest.mark.parametrize("name", ["nvdp-attentive"])
def test_onnx_runtime_gives_the_predictions_of_pytorch_at_every_size(name, small_config, tmp_path):
    model = build_model(small_config(name, x_dim=2)).eval().requires_grad_(False)
    units = Units((5.0, -1.0), (2.0, 0.5), (100.0,), (10.0,), (0.0, -2.0), (10.0, 0.0))
    predictor, generator = Predictor(model, units), torch.Generator().manual_seed(0)
    export_onnx(predictor, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for points, queries in ((1, 1), (2, 30), (7, 11), (40, 3)):
        x = torch.tensor([5.0, -1.0]) + torch.randn(points + queries, 2, generator=generator)
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
