"""One question, one answer: library, estimator, store, command line, page and BoTorch give the same number.

A door is a function (folder, context, query, scratch) -> (mean, std) in the units of the table. `folder` is one that
``nvdp fit`` would leave, `context` a frame with the columns tree, day and size, `query` one with tree and day.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import nvdp as command

import nvdp
from nvdp.data.tables import Columns
from nvdp.loading import Predictor, save_fit
from nvdp.models.registry import build_model
from nvdp.store import TaskStore
from nvdp.training.config import RunConfig
from nvdp.units import Units

OBJECTIVES = {
    "nvdp": "variational-prior",
    "np": "variational-prior",
    "cnp": "likelihood",
    "nvdp-attentive": "variational-prior",  # needs the points themselves, so it has no states and no store
}


def library(folder, context, query, scratch):
    posterior = nvdp.load(folder).adapt(context[["day"]].to_numpy(), context["size"].to_numpy())
    prediction = posterior.predict(query[["day"]].to_numpy())
    return prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy()


def one_point_after_another(folder, context, query, scratch):
    predictor = nvdp.load(folder)
    posterior = predictor.adapt(np.empty((0, 1)), np.empty((0, 1)))
    for day, size in zip(context["day"], context["size"], strict=True):
        posterior = posterior.update([day], [size])
    again = predictor.posterior_from_bytes(posterior.update([700.0], [99.0]).to_bytes()).forget([700.0], [99.0])
    prediction = again.predict(query["day"].to_numpy())
    return prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy()


def estimator(folder, context, query, scratch):
    regressor = nvdp.NVDPRegressor.from_pretrained(folder).fit(context[["day"]].to_numpy(), context["size"])
    return regressor.predict(query[["day"]].to_numpy(), return_std=True)


def store(folder, context, query, scratch):
    with TaskStore(scratch / "library.db", nvdp.load(folder)) as tasks:
        tasks.observe("oak", context["day"].to_numpy(), context["size"].to_numpy())
        prediction = tasks.predict("oak", query["day"].to_numpy())
    return prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy()


def predict_command(folder, context, query, scratch):
    files = _files(context, query, scratch)
    _succeeds("predict", folder, "--context", files[0], "--at", files[1], "--out", scratch / "predicted.csv")
    return _columns(scratch / "predicted.csv")


def store_commands(folder, context, query, scratch):
    (given, at), file, names = _files(context, query, scratch), scratch / "command.db", ("--task", "tree", "--x", "day")
    _succeeds("store", "observe", file, given, "--model", folder, *names, "--y", "size")
    _succeeds("store", "predict", file, at, "--model", folder, *names, "--out", scratch / "stored.csv")
    return _columns(scratch / "stored.csv")


def page(folder, context, query, scratch):
    answer = _asked(folder, "/api/adapt", context, query)
    return np.array(answer["mean"])[:, 0], np.array(answer["std"])[:, 0]


def _asked(folder, path, context, query):
    """What the page's server answers; it serves this model alone."""
    from fastapi.testclient import TestClient

    from nvdp.web.served import ServedModel
    from nvdp.web.server import create_app

    question = {"x": context[["day"]], "y": context[["size"]], "query": query[["day"]]}
    question = {"model": "trees"} | {name: part.to_numpy().tolist() for name, part in question.items()}
    with TestClient(create_app({"trees": ServedModel.of("trees", nvdp.load(folder))})) as client:
        response = client.post(path, json=question)
    assert response.status_code == 200, response.text
    return response.json()


def _files(context, query, scratch):
    for name, frame in (("context", context), ("query", query)):
        frame.to_csv(scratch / f"{name}.csv", index=False)
    return scratch / "context.csv", scratch / "query.csv"


def _succeeds(*arguments):
    result = command(*arguments)
    assert result.returncode == 0, result.stderr


def _columns(path):
    frame = pd.read_csv(path)
    return frame["mean"].to_numpy(), frame["std"].to_numpy()


DOORS = (estimator, predict_command, page)
DOORS_OF_STATES = (one_point_after_another, store, store_commands)


@pytest.fixture(params=OBJECTIVES)
def folder(request, tmp_path, small_config):
    config = RunConfig(task="csv", model=small_config(request.param), objective=OBJECTIVES[request.param])
    days, sizes = np.linspace(0, 720, 50)[:, None], 60 + 30 * np.sin(np.arange(50.0))[:, None]
    units = Units.of([days], [sizes])
    predictor = Predictor(build_model(config.model, 1).eval(), units, config, Columns("tree", ("day",), ("size",)))
    save_fit(tmp_path / "model", predictor, 1, {})
    return tmp_path / "model"


@pytest.fixture
def context():
    return pd.DataFrame({"tree": "oak", "day": [33.0, 210.5, 402.25, 640.0], "size": [41.0, 70.5, 88.0, 61.25]})


@pytest.fixture
def query():
    return pd.DataFrame({"tree": "oak", "day": [0.0, 100.0, 300.0, 555.5, 720.0]})


def test_every_door_gives_the_same_number(folder, context, query, tmp_path):
    expected = library(folder, context, query, tmp_path)
    doors = (*DOORS, *DOORS_OF_STATES) if nvdp.load(folder).model.remembers else DOORS
    for door in doors:
        for ours, theirs in zip(door(folder, context, query, tmp_path), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=door.__name__)


def test_botorch_has_the_sampled_functions_of_the_library(folder, context, query):
    """BoTorch asks for functions, not for the closed form; without `lean` they are those of the posterior itself."""
    from nvdp.botorch import NVDPModel

    predictor = nvdp.load(folder)
    predictor = replace(predictor, model=predictor.model.double())  # line searches need the digits
    x, y, at = (torch.tensor(part.to_numpy())[:, None] for part in (context["day"], context["size"], query["day"]))
    ours = NVDPModel(predictor, x, y, samples=16, seed=5, lean=False).posterior(at)
    theirs = predictor.adapt(x, y).predict(at, samples=16, generator=5)
    torch.testing.assert_close(ours.values, theirs.functions, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=0)


def test_every_door_suggests_the_same_candidates(folder, context, query, tmp_path):
    x, y, candidates = (part.to_numpy() for part in (context["day"], context["size"], query[["day"]]))
    predictor = nvdp.load(folder)
    expected = predictor.adapt(x, y).suggest(candidates, 3)
    assert sorted(set(expected.tolist())) == sorted(expected.tolist())
    regressor = nvdp.NVDPRegressor.from_pretrained(folder).fit(x[:, None], y)
    assert regressor.suggest(candidates, 3).tolist() == expected.tolist()
    assert _asked(folder, "/api/suggest", context, query)["index"] == expected[0]
    if predictor.model.remembers:
        with TaskStore(tmp_path / "tasks.db", predictor) as tasks:
            tasks.observe("oak", x, y)
            assert tasks.posterior("oak").suggest(candidates, 3).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["general", "gp", "gp-nvdp"])
def test_a_point_alone_and_among_nine_has_one_answer_up_to_the_rounding_of_its_precision(name):
    """Matrix products of one row and of nine add in another order, so float32 agrees to about 1e-5, not to 1e-6."""
    at = np.linspace(-1.9, 1.9, 9)[:, None]
    x = np.linspace(-1.5, 1.5, 7)[:, None]
    for precision, most in ((torch.float32, 2e-5), (torch.float64, 1e-9)):
        predictor = nvdp.load(name)
        predictor.model.to(precision)
        posterior = predictor.adapt(x, np.sin(2 * x))
        whole = posterior.predict(at)
        for place in range(9):
            alone = posterior.predict(at[place : place + 1])
            assert abs(alone.mean - whole.mean[place]).item() < most
            assert abs(alone.std - whole.std[place]).item() < most
