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
from nvdp.export import AdaptAndPredict, export_onnx
from nvdp.export.operators import factor_of, inverse_of
from nvdp.loading import Predictor
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.models.registry import build_model
from nvdp.models.task_kernel import Kernel
from nvdp.posteriors.adjusted import Adjustment
from nvdp.units import ContextUnits, Units

UNITS = Units((5.0, -1.0), (2.0, 0.5), (100.0,), (10.0,), (0.0, -2.0), (10.0, 0.0))
CALIBRATION = {
    "sizes": (2, 5),
    "factors": (1.5, 1.2, 1.0),
    "factors_ahead": (1.7, 1.3, 1.1),
    "tail": (0.05, 3.0),
}
EXPORT = """
import sys
from pathlib import Path
import pickle
from nvdp.export import export_onnx
for name in sys.argv[2:]:
    export_onnx(pickle.loads(Path(sys.argv[1], name).read_bytes()), Path(sys.argv[1], name + ".onnx"))
"""


def small(config):
    return build_model(config).eval().requires_grad_(False)


def fitted(model):
    """A network around a process with two pairs of scales, calibrated, with a share of outliers."""
    kernel = Kernel(1, 1, (0,), torch.linspace(-2, 2, 3).double()[:, None])
    size, features = len(kernel.start), 5
    process = HierarchicalGP(
        kernel,
        kernel.start,
        torch.zeros(size, size).double(),
        torch.linspace(-1, 1, features).double(),
        0.1 * torch.eye(features).double(),
        scales=torch.tensor([[1.0, 1.0], [2.0, 0.5]]).double(),
        shares=torch.tensor([0.7, 0.3]).double(),
    )
    adjustment = Adjustment(process, True, 0.4, **CALIBRATION)
    return Predictor(model, Units((5.0,), (2.0,), (100.0,), (10.0,), (0.0,), (10.0,)), adjustment=adjustment)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Predictors, each with the session of its graph."""
    tiny = {
        "decoder.width": 8,
        "encoder.size": 8,
        "rates.width": 8,
        "attention.width": 8,
        "attention.blocks": 1,
        "attention.heads": 2,
        "decoder.latent": 4,
    }
    views = {"extractor.size": 16, "extractor.features": 64, "extractor.views": "mirrored"}
    folder = tmp_path_factory.mktemp("export")
    predictors = {
        "attentive": Predictor(
            small(ModelConfig("nvdp-attentive", 2, 1).updated(tiny)), UNITS, adjustment=Adjustment(**CALIBRATION)
        ),
        "latent": Predictor(small(ModelConfig("np", 6, 1).updated(tiny)), ContextUnits()),
        "classifier": Predictor.of(small(ClassifierConfig().updated({"extractor.name": "none", "meta.width": 8}))),
        "views": Predictor.of(small(ClassifierConfig().updated(views | {"meta.width": 8, "decoder.width": 8}))),
    }
    for name, predictor in predictors.items():
        (folder / name).write_bytes(pickle.dumps(predictor))
    # In a process of its own, as sizes are symbols while a graph is made and types are checked in this one.
    command = [sys.executable, "-W", "ignore", "-c", EXPORT, folder, *predictors]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert "torchvision" not in outcome.stderr + outcome.stdout
    return {n: (p, onnxruntime.InferenceSession(str(folder / f"{n}.onnx"))) for n, p in predictors.items()}


@pytest.mark.parametrize("name", ["attentive", "latent"])
@pytest.mark.parametrize(("points", "queries"), [(1, 1), (2, 30), (7, 11), (40, 3)])
def test_onnx_runtime_gives_the_predictions_of_pytorch_at_every_size(exported, generator, name, points, queries):
    predictor, session = exported[name]
    wide = session.get_inputs()[0].shape[1]
    x = torch.tensor([0.0, -2.0]) + torch.tensor([10.0, 2.0]) * torch.rand(points + queries, 2, generator=generator)
    x, y = x[:, :wide], 100 + 10 * torch.randn(points, 1, generator=generator)
    ours = predictor.adapt(x[:points], y).predict(x[points:])
    mean, std = session.run(None, {"context_x": x[:points].numpy(), "context_y": y.numpy(), "x": x[points:].numpy()})
    np.testing.assert_allclose(mean, ours.mean.numpy(), rtol=1e-4, atol=1e-3)  # y spreads by 10
    np.testing.assert_allclose(std, ours.std.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["classifier", "views"])
@pytest.mark.parametrize(("shots", "queries"), [(1, 1), (3, 20)])
def test_onnx_runtime_gives_the_probabilities_of_pytorch(exported, generator, name, shots, queries):
    predictor, session = exported[name]
    labels = torch.eye(5).repeat(shots, 1)
    x = torch.rand(len(labels) + queries, predictor.model.config.x_dim, generator=generator)
    context, asked = x[: len(labels)], x[len(labels) :]
    given = {"context_x": context.numpy(), "context_y": labels.numpy(), "x": asked.numpy()}
    ours = predictor.adapt(context, labels).predict(asked).probabilities
    np.testing.assert_allclose(session.run(None, given)[0], ours.numpy(), atol=1e-4)


@pytest.mark.parametrize("points", [1, 4, 30])
def test_what_is_traced_of_a_fit_is_its_prediction(generator, points):
    """The whole graph of a fit takes a minute to make: `python benchmarks/export.py` compares that."""
    predictor = fitted(small(ModelConfig("cnp", 2, 1).updated({"decoder.width": 8, "encoder.size": 8})))
    x = 10 * torch.rand(points + 9, 1, generator=generator)
    y = 100 + 10 * torch.randn(points, 1, generator=generator)
    mean, std = AdaptAndPredict(predictor)(x[:points], y, x[points:])
    ours = predictor.adapt(x[:points], y).predict(x[points:])
    np.testing.assert_allclose(mean.numpy(), ours.mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(std.numpy(), ours.std.numpy(), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 40])
def test_loops_of_a_graph_are_cholesky_factors_and_their_inverses(generator, size):
    root = torch.randn(3, size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.1 * torch.eye(size)
    factor = torch.linalg.cholesky(matrix)
    for operator, given, expected in ((factor_of, matrix, factor), (inverse_of, factor, torch.linalg.inv(factor))):
        session = onnxruntime.InferenceSession(operator.to_model_proto().SerializeToString())
        (found,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-10)


def test_what_cannot_be_exported_is_one_line(small_config, tmp_path):
    with pytest.raises(InputError, match="maml adapts by gradients"):
        export_onnx(Predictor.of(small(ClassifierConfig("maml"))), tmp_path / "maml.onnx")
    with pytest.raises(InputError, match="inputs is 2; this nvdp model takes 1 to 1"):
        export_onnx(Predictor.of(small(small_config())), tmp_path / "nvdp.onnx", inputs=2)
    with pytest.raises(InputError, match="classes is 3; nvdp is a regression model"):
        export_onnx(Predictor.of(small(small_config())), tmp_path / "nvdp.onnx", classes=3)
    (tmp_path / "there.onnx").write_text("kept")
    assert "there.onnx" in refusal("export", "gp", "--out", tmp_path / "there.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["there.onnx"]
