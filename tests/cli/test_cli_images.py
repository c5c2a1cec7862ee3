"""Pictures on the command line: train, eval, complete and data, and one clear line for every kind of bad input."""

import json

import numpy as np
import pytest
from command_line import nvdp, refusal
from PIL import Image

TINY = ["--steps", "4", "--preset", "quick", "--quiet", "--model", "cnp"]
RANDOM = np.random.default_rng(0)


def save(path, *shape):
    Image.fromarray(RANDOM.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder of data with a tiny MNIST and Omniglot, a folder of pictures, and a run on each."""
    root = tmp_path_factory.mktemp("images")
    (root / "data").mkdir()
    digits = RANDOM.integers(0, 256, (120, 28, 28), dtype=np.uint8)
    np.savez(root / "data" / "mnist.npz", train_images=digits, test_images=digits)
    np.savez(root / "data" / "omniglot.npz", images28=digits[:90], character_id=np.repeat([1, 900, 1000], 30))
    (root / "pictures").mkdir()
    for k in range(6):
        save(root / "pictures" / f"p{k}.png", 12, 10, 3)
    digits_run = nvdp("train", "mnist", "--data-dir", root / "data", "--out", root / "digits", *TINY)
    assert digits_run.returncode == 0, digits_run.stderr
    pictures = ["--folder", root / "pictures", "--size", "8"]
    pictures_run = nvdp("train", "images", *pictures, "--out", root / "colours", *TINY)
    assert pictures_run.returncode == 0, pictures_run.stderr
    return root


def test_complete_takes_grey_saved_as_colour_and_inverts(places, tmp_path):
    grey = RANDOM.integers(0, 256, (28, 28), dtype=np.uint8)
    kept = {}
    for name, pixels in {"grey": grey, "rgb": np.dstack([grey] * 3), "inverted": 255 - grey}.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        more = ["--invert"] if name == "inverted" else []
        out = tmp_path / f"{name}-done.png"
        done = nvdp(
            "complete", places / "digits", tmp_path / f"{name}.png", "--keep", "1", "--plain", "--out", out, *more
        )
        assert done.returncode == 0, done.stderr
        kept[name] = np.asarray(Image.open(out).convert("L"))
    assert (kept["grey"] == grey).all()
    assert (kept["rgb"] == kept["grey"]).all()
    assert (kept["inverted"] == kept["grey"]).all()


def test_runs_remember_their_data(places):
    digits, colours = (json.loads((places / run / "config.json").read_text()) for run in ("digits", "colours"))
    assert "data" not in digits
    assert (digits["model"]["x_dim"], digits["model"]["y_dim"]) == (2, 1)
    assert colours["data"] == {"folder": str(places / "pictures"), "size": 8, "channels": None, "any_context": 0.0}
    assert colours["model"]["y_dim"] == 3
    assert nvdp("train", "images", "--out", places / "colours", "--resume").returncode == 0


def test_eval_scores_the_run_and_its_transfer(places):
    data = ["--data-dir", places / "data", "--tasks", "3", "--samples", "2", "--json"]
    own = json.loads(nvdp("eval", places / "digits", *data).stdout)
    assert (own["task"], own["on"], own["split"], own["tasks"]) == ("mnist", "mnist", "validation", 3)
    test = json.loads(nvdp("eval", places / "digits", *data, "--split", "test").stdout)
    assert test["split"] == "test"
    transfer = json.loads(nvdp("eval", places / "digits", *data, "--on", "omniglot").stdout)
    assert (transfer["task"], transfer["on"], transfer["split"]) == ("mnist", "omniglot", "test")
    assert set(transfer["scores"]) == {"LL", "RLL", "PLL"}
    assert "celeba has 2 and 3" in refusal("eval", places / "digits", "--on", "celeba")


def test_completing_a_picture_keeps_the_kept_pixels(places, tmp_path):
    picture = save(tmp_path / "p.png", 28, 28)
    result = nvdp("complete", places / "digits", picture, "--keep", "0.25", "--plain", "--out", tmp_path / "done.png")
    assert result.returncode == 0, result.stderr
    assert "kept 196 of 784 pixels" in result.stdout
    before, after = (np.asarray(Image.open(tmp_path / name)) for name in ("p.png", "done.png"))
    assert after.shape == (28, 28)
    assert (before == after).sum() >= 196
    side_by_side = nvdp("complete", places / "digits", picture, "--out", tmp_path / "side.png")
    assert side_by_side.returncode == 0, side_by_side.stderr
    assert {"side.png", "side.pdf"} <= {path.name for path in tmp_path.iterdir()}


def test_data_commands_tell_what_is_here(places):
    here = ["--data-dir", places / "data"]
    assert str(places / "data" / "mnist.npz") in nvdp("data", "list", *here).stdout
    assert nvdp("data", "path", "mnist", *here).stdout.strip() == str(places / "data" / "mnist.npz")
    assert "the published file has" in nvdp("data", "check", "mnist", *here).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "path", "celeba"], "celeba is not on this machine: set NVDP_DATA"),
        (["data", "path", "mnits"], "unknown data set 'mnits'; did you mean 'mnist'"),
        (["data", "fetch", "celeba"], "accept its terms"),
        (["train", "celeba", "--out", "x", *TINY], "celeba is not on this machine"),
        (["train", "images", "--out", "x", *TINY], "--folder DIR"),
        (["train", "images", "--folder", ".", "--out", "x", *TINY], "holds 0 pictures"),
        (["train", "images", "--folder", ".", "--size", "2", "--out", "x", *TINY], "'size' is 2"),
        (["train", "mnist", "--folder", ".", "--out", "x", *TINY], "--folder is for the tasks images"),
        (["train", "mnist", "--data-dir", "nowhere", "--out", "x", *TINY], "nowhere, which is not a folder"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / "cache"))
    monkeypatch.delenv("NVDP_DATA", raising=False)
    assert words in refusal(*arguments)
    assert not list(tmp_path.iterdir())


def test_bad_pictures_are_one_line(places, tmp_path):
    whole = save(tmp_path / "colour.png", 28, 28, 3)
    (tmp_path / "damaged.png").write_bytes(whole.read_bytes()[:600])
    grey = save(tmp_path / "grey.png", 28, 28)
    out = ["--out", tmp_path / "out.png"]
    assert "colour.png is colour but the model was trained on grey" in refusal(
        "complete", places / "digits", whole, *out
    )
    assert "grey.png is grey but the model was trained on colour" in refusal("complete", places / "colours", grey, *out)
    assert "damaged.png is a damaged image" in refusal("complete", places / "digits", tmp_path / "damaged.png", *out)
    assert "absent.png does not exist" in refusal("complete", places / "digits", tmp_path / "absent.png", *out)
    assert "keep is 2.0" in refusal("complete", places / "digits", grey, "--keep", "2", *out)
    assert not (tmp_path / "out.png").exists()
    damaged = ["--folder", tmp_path, "--size", "8", "--channels", "3", "--out", tmp_path / "run"]
    assert "damaged.png is a damaged image" in refusal("train", "images", *damaged, *TINY)
    assert not (tmp_path / "run").exists()


def test_the_wrong_set_in_a_folder_is_one_line(places, tmp_path):
    (tmp_path / "mnist.npz").write_bytes((places / "data" / "omniglot.npz").read_bytes())
    words = "expected an array 'train_images': is it another set?"
    assert words in refusal("train", "mnist", "--data-dir", tmp_path, "--out", tmp_path / "run", *TINY)
    assert not (tmp_path / "run").exists()
