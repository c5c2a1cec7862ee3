"""One model asked by eight threads at once, in the library and through the service: every answer as if alone."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import nvdp
from faults.tally import Tally
from nvdp.models.base import MetaModel

THREADS = 8


def library(calls: int) -> Tally:
    """adapt and predict of the pretrained model, each thread with its own questions."""
    tally = Tally(f"adapt and predict from {THREADS} threads at once on one model")
    model = nvdp.load("gp").model
    questions = [_question(number) for number in range(32)]
    expected = [_answer(model, *question) for question in questions]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    asked = list(itertools.islice(itertools.cycle(range(len(questions))), calls))
    # A new thread may split its first sums over all cores, which changes their last bits, unless it is told not to.
    with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        answers = pool.map(lambda number: (number, _answer(model, *questions[number])), asked)
        for number, answer in answers:
            same = all(torch.equal(a, b) for a, b in zip(answer, expected[number], strict=True))
            tally.check(same, "the answer of a single thread, to the last bit", f"question {number}")
    unchanged = all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    tally.check(unchanged, "the model unchanged afterwards", "the model has changed")
    return tally


def _question(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    generator = torch.Generator().manual_seed(number)
    points = 1 + number % 20
    x, y = 4 * torch.rand(points, 1, generator=generator) - 2, torch.randn(points, 1, generator=generator)
    return x, y, torch.linspace(-2, 2, 40)[:, None], number


def _answer(
    model: MetaModel, x: torch.Tensor, y: torch.Tensor, at: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    prediction = model.adapt(x, y).predict(at, 4, seed)
    return prediction.functions, prediction.stds


def service(calls: int) -> Tally:
    """The same through the web service's own application."""
    from fastapi.testclient import TestClient

    from nvdp.web.server import create_app

    tally = Tally(f"POST /api/adapt from {THREADS} threads at once")
    with TestClient(create_app()) as client:

        def ask(number: int) -> tuple[int, int, Any]:
            x, y, at, seed = _question(number)
            body = {"model": "gp", "x": x.tolist(), "y": y.tolist(), "query": at.tolist(), "samples": 4, "seed": seed}
            answer = client.post("/api/adapt", json=body)
            return number, answer.status_code, answer.json()

        expected = [ask(number) for number in range(16)]
        with ThreadPoolExecutor(THREADS) as pool:
            for number, code, answer in pool.map(ask, [n % 16 for n in range(calls)]):
                good = code == 200 and answer == expected[number][2]
                tally.check(good, "the answer of a single visitor", f"question {number}: code {code}")
    return tally
