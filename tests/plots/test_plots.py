"""Facts about the figures: what is drawn, what is written, and that the panels hold the right numbers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nvdp.data.gp import NOISE, GPTasks
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.plots import (
    FunctionPanel,
    RatesPanel,
    TablePanel,
    figure_functions,
    figure_rates,
    figure_tables,
    figure_training,
    five_point_task,
    gp_function_panel,
    oracle_panel,
    rates_panel,
    shared_weights_panel,
)
from nvdp.plots.panels import exact_functions
from nvdp.plots.style import DPI, FONT_SIZE, save_figure
from nvdp.training.preset_rules import TOY

SMALL = {
    "decoder.width": 8,
    "decoder.layers": 2,
    "encoder.size": 8,
    "encoder.layers": 2,
    "rates.width": 8,
    "decoder.latent": 8,
}
KINDS = ("sine", "cosine", "tanh")
BLUE = "#0072B2"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, in order, beside their files."""
    figures = []

    def keep(figure, path):
        figures.append(figure)
        return save_figure(figure, path)

    for module in ("functions", "tables", "curves"):
        monkeypatch.setattr(f"nvdp.plots.{module}.save_figure", keep)
    return figures


@pytest.fixture(scope="module")
def task():
    return five_point_task(seed=4)


@pytest.fixture(scope="module")
def toy():
    return build_model(ModelConfig("nvdp").updated(TOY))


def function_panels(task, samples=3):
    for variance in ("fixed", "learned"):
        row = f"{variance} variance"
        for name in ("np", "np+cnp", "cnp", "nvdp"):
            model = build_model(ModelConfig(name).updated({"likelihood.variance": variance, **SMALL}))
            yield gp_function_panel(model, name.upper(), row, task, samples)
        yield oracle_panel(task, row, samples=samples)


def simple_panel(**changes):
    x = np.linspace(0.0, 1.0, 11)
    values = {
        "title": "model",
        "row": "row",
        "x": x,
        "truth": x,
        "x_context": x[:2],
        "y_context": x[:2],
        "functions": np.stack([x, -x]),
        "mean": 0 * x,
    }
    return FunctionPanel(**(values | changes))


def pixels(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def functions_in(axes):
    """Thin blue lines."""
    return [line for line in axes.lines if line.get_color() == BLUE and line.get_linewidth() < 1]


def test_functions_are_drawn_in_a_grid_of_rows_and_models(tmp_path, drawn, task):
    panels = list(function_panels(task, samples=3))
    paths = figure_functions(panels, tmp_path / "new" / "folder" / "functions.png")
    (figure,) = drawn
    assert len(figure.axes) == 10
    assert [axes.get_title() for axes in figure.axes[:5]] == ["NP", "NP+CNP", "CNP", "NVDP", "exact GP"]
    assert "learned variance" in figure.axes[5].get_ylabel()
    for axes, panel in zip(figure.axes, panels, strict=True):
        lines = functions_in(axes)
        assert len(lines) == 3
        np.testing.assert_array_equal([line.get_ydata() for line in lines], panel.functions)
        assert len(axes.collections) == (panel.std is not None)
    assert [panel.std is None for panel in panels] == [True] * 4 + [False] * 6
    assert len(figure.legends) == 1
    assert [path.name for path in paths] == ["functions.png", "functions.pdf"]
    assert pixels(paths[0]) == tuple(int(inches * DPI) for inches in figure.get_size_inches())
    assert paths[1].read_bytes().startswith(b"%PDF")


def test_a_model_missing_from_a_row_leaves_its_place_empty(tmp_path, drawn):
    panels = [simple_panel(title="A", row="1"), simple_panel(title="B", row="2")]
    figure_functions(panels, tmp_path / "f.png")
    assert [axes.get_visible() for axes in drawn[0].axes] == [True, False, False, True]
    assert {text.get_text() for text in drawn[0].axes[1].texts} == set()


def test_rates_show_every_layer_on_one_scale(tmp_path, drawn, toy):
    panels = [rates_panel(toy, kind, samples=4) for kind in KINDS]
    shared = shared_weights_panel(toy)
    png, pdf = figure_rates(panels, tmp_path / "rates.png", shared)
    (figure,) = drawn
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(images) == 12
    assert len(figure.axes) == 4 + 12 + 2
    assert {image.get_clim() for image in images[:9]} == {(0.0, 1.0)}
    (limits,) = {image.get_clim() for image in images[9:]}
    assert limits[0] == -limits[1] == -max(np.abs(theta).max() for theta in shared.theta)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["layer 1 (13×12)", "layer 2 (12×12)", "layer 3 (12×2)"]
    left = [axes for axes in figure.axes if "\n" in axes.get_ylabel()]
    assert [axes.get_ylabel().split("\n")[0] for axes in left] == [*KINDS, "all tasks"]
    assert [len(functions_in(axes)) for axes in left] == [4, 4, 4, 0]
    assert min(pixels(png)) > 600
    assert pdf.stat().st_size > 1000


def test_rates_are_drawn_without_the_shared_row(tmp_path, drawn, toy):
    figure_rates([rates_panel(toy, "sine")], tmp_path / "rates.png")
    assert len(drawn[0].axes) == 1 + 3 + 1


def test_keep_probabilities_are_those_of_the_posterior(toy):
    panel = rates_panel(toy, "cosine", seed=2)
    assert panel.function.x_context.shape == (4,)
    assert [matrix.shape for matrix in panel.keep] == [(13, 12), (12, 12), (12, 2)]
    x, y = (torch.tensor(values).float() for values in (panel.function.x_context, panel.function.y_context))
    posterior = toy.adapt(x, y)
    expected = [1 - layer.mean().item() for layer in posterior.rates]
    assert [matrix.mean() for matrix in panel.keep] == pytest.approx(expected, abs=1e-6)


def test_learning_curves_have_their_own_line_styles(tmp_path, drawn):
    steps = np.arange(10)
    curves = {f"model {index}": (steps, steps + index) for index in range(6)}
    paths = figure_training(curves, tmp_path / "training.png", {"exact GP": 5.5}, x_label="seconds")
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == "seconds"
    *lines, level = axes.lines
    assert len({line.get_color() for line in lines}) == 6
    assert len({str(line._dash_pattern) for line in lines}) == 6
    assert set(level.get_ydata()) == {5.5}
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [*curves, "exact GP"]
    assert all(path.stat().st_size > 1000 for path in paths)


def table_panel(x, others):
    return TablePanel("task", x, x, x - 1, x + 1, x[:1], x[:1], others, others)


def test_a_prediction_is_drawn_in_order_of_x(tmp_path, drawn):
    x, none = np.array([2.0, 0.0, 1.0]), np.empty(0)
    figure_tables([table_panel(x, x[1:]), table_panel(x, none)], tmp_path / "p.png", x_label="age")
    both = drawn[0].axes
    assert [axes.get_xlabel() for axes in both] == ["age", "age"]
    assert [list(axes.lines[0].get_ydata()) for axes in both] == [[0, 1, 2]] * 2
    assert [len(axes.lines) for axes in both] == [3, 2]  # mean, context and, if there are any, held-out points
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [
        "context points",
        "mean",
        "90% interval",
        "held-out points",
    ]


def test_panels_of_one_output_share_an_axis_and_every_column_has_its_inputs_labelled(tmp_path, drawn):
    x = np.array([1.0, 2.0, 9.0])
    panels = [replace(table_panel(x, x[:0]), y_label=label) for label in ("weight", "weight", "weight", "cost")]
    figure_tables(panels, tmp_path / "p.png", x_label="size", log=["size", "cost"])
    shown = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert [axes.get_ylabel() for axes in shown] == ["weight", "", "weight", "cost"]
    assert [axes.get_yscale() for axes in shown] == ["linear"] * 3 + ["log"]
    assert {axes.get_xscale() for axes in shown} == {"log"}
    assert [axes.get_xlabel() for axes in shown] == ["", "size", "", "size"]  # the second has none below it
    assert shown[0].get_shared_y_axes().joined(shown[0], shown[2])
    assert not shown[0].get_shared_y_axes().joined(shown[0], shown[3])


def test_a_prediction_needs_no_context(tmp_path):
    x, none = np.linspace(0, 1, 5), np.empty(0)
    panel = TablePanel("prior", x, x, x - 1, x + 1, none, none, none, none)
    assert figure_tables([panel], tmp_path / "p.pdf") == [tmp_path / "p.pdf"]


@pytest.mark.parametrize("figure", ["functions", "rates", "training", "tables"])
def test_no_text_is_small_and_none_leaves_the_page(tmp_path, drawn, task, toy, figure):
    x = np.linspace(0.0, 1.0, 5)
    path = tmp_path / "f.png"
    match figure:
        case "functions":
            figure_functions(list(function_panels(task)), path)
        case "rates":
            figure_rates([rates_panel(toy, kind) for kind in KINDS], path, shared_weights_panel(toy))
        case "training":
            figure_training({"NP+CNP+VP": (x, x), "NVDP": (x, -x)}, path, {"exact GP, σ ≥ 0.1": 0.5})
        case "tables":
            figure_tables([table_panel(x, x)] * 3, path)
    (page,) = drawn
    width, height = page.bbox.size
    for text in page.findobj(lambda artist: hasattr(artist, "get_fontsize") and artist.get_text()):
        assert text.get_fontsize() >= FONT_SIZE
    box = page.get_tightbbox().transformed(page.dpi_scale_trans)
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_an_existing_file_is_replaced_whole(tmp_path):
    path = tmp_path / "f.png"
    path.write_bytes(b"old")
    figure_functions([simple_panel()], path)
    first = path.read_bytes()
    assert pixels(path)[0] > 600
    figure_functions([simple_panel()], path)
    assert path.read_bytes() == first
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.pdf", "f.png"]


def test_the_old_file_survives_a_failure(tmp_path, monkeypatch):
    path = tmp_path / "f.png"
    path.write_bytes(b"old")

    def fail(self, name, **_):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(InputError, match="No space left"):
        figure_functions([simple_panel()], path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["f.png"]


def test_unknown_suffixes_and_empty_figures_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"'\.jpg'"):
        figure_functions([simple_panel()], tmp_path / "f.jpg")
    for draw in (figure_functions, figure_rates, figure_tables):
        with pytest.raises(InputError, match="at least one panel"):
            draw([], tmp_path / "f.png")
    with pytest.raises(InputError, match="at least one curve"):
        figure_training({}, tmp_path / "f.png")
    with pytest.raises(InputError, match="3 values of x and 2 of y"):
        figure_training({"run": (np.arange(3), np.arange(2))}, tmp_path / "f.png")


def test_bad_panels_are_refused():
    with pytest.raises(InputError, match="mean holds a value that is not finite"):
        simple_panel(mean=np.full(11, np.nan))
    with pytest.raises(InputError, match="outside"):
        RatesPanel(simple_panel(), (np.array([[0.5, 1.5]]),))
    with pytest.raises(InputError, match="no dropout rates"):
        rates_panel(build_model(ModelConfig("cnp").updated(SMALL)), "sine")
    with pytest.raises(InputError, match="did you mean 'sine'"):
        rates_panel(build_model(ModelConfig("nvdp").updated(TOY)), "sin")
    with pytest.raises(InputError, match="one task; got 2"):
        oracle_panel(GPTasks().training_batch(0, 0, 2), "row")
    with pytest.raises(InputError, match="ascending"):
        oracle_panel(GPTasks().training_batch(0, 0, 1), "row")


def test_five_point_tasks_follow_their_seed(task):
    again, other = five_point_task(4), five_point_task(5)
    assert torch.equal(task.y, again.y)
    assert not torch.equal(task.y, other.y)
    assert task.x.shape == (1, 200, 1)
    assert int(task.is_context.sum()) == 5
    assert task.x.min() == -2
    assert task.x.max() == 2


def test_the_panels_truth_is_free_of_the_context_noise(task):
    panel = oracle_panel(task, "row")
    steps = np.diff(panel.truth, 2)
    assert np.abs(steps).max() < NOISE  # a noisy point would bend the line by about 2 · 0.02
    assert not np.allclose(panel.y_context, panel.truth[task.is_context[0].numpy()], atol=1e-4)


def test_exact_functions_have_the_oracles_mean_and_variance(task):
    functions = exact_functions(task, 20_000, seed=0)
    oracle = task.oracle()
    mean, std = oracle.mean[0, :, 0], (oracle.std[0, :, 0].square() - NOISE**2).sqrt()
    error = 5 * std / 20_000**0.5 + 1e-4
    assert ((functions.mean(0) - mean).abs() < error).all()
    torch.testing.assert_close(functions.std(0), std, rtol=0.03, atol=2e-4)
    middle = int(std.argmax())
    assert (functions[:, middle] - functions[:, middle - 1]).std() < 0.1 * std[middle]  # smooth: one draw, one curve


def test_drawing_leaves_pyplot_alone_and_importing_leaves_matplotlib_alone():
    code = (
        "import sys, numpy as np, tempfile, pathlib, nvdp.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "x = np.arange(3.0)\n"
        "plots.figure_training({'a': (x, x)}, pathlib.Path(tempfile.mkdtemp()) / 'f.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
