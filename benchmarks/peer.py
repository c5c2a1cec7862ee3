"""Quality for equal seconds beside the public package neuralprocesses, on the paper's GP tasks.

    python benchmarks/peer.py --seconds 240 --work /tmp/peer --json results/bench/peer.json

The package gets an environment of its own below `--work`, which also sees the packages of this one, so that both use
the same PyTorch. Each model trains for the same number of processor seconds on one thread, on tasks of the same
family, with a cosine schedule that ends with the seconds. The package's models are trained by its own loss with Adam,
and its ConvGNP also with Muon, the optimiser of our models whose targets read the context.
All are scored on the same tasks of another seed: log-likelihood of single targets with σ ≥ 0.1.
A model that is done is kept in `--work` and not trained again; `--only` trains some of them. Two commands with
different `--only` may share `--work`, on two cores.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import sysconfig
import time
import venv
from contextlib import contextmanager
from pathlib import Path

import torch

from nvdp.bench.quality import started
from nvdp.bench.timing import machine
from nvdp.data.gp import GPTasks
from nvdp.evaluation.metrics import RegressionScores
from nvdp.posteriors.prediction import Prediction
from nvdp.system import keep_freed_memory, write_text
from nvdp.training.muon import Muon

PACKAGE = "neuralprocesses==0.2.7"
PEERS = {  # and their likelihoods, optimisers and learning rates
    "ConvGNP": ("lowrank", torch.optim.Adam, 1e-3),
    "ConvCNP": ("het", torch.optim.Adam, 1e-3),
    "ConvGNP, Muon": ("lowrank", Muon, 3e-3),
}
OURS = ("nvdp-conv", "convgnp", "convcnp", "nvdp-attentive", "nvdp", "cnp")
SEED, CHUNKS, MIN_STD = 99, 10, 0.1  # of the tasks that score
PEER_WARMUP, TASKS = 100, 16


class Peer:
    """A model of the package, trained by its loss."""

    def __init__(self, name: str) -> None:
        import neuralprocesses.torch as nps  # in an environment of its own

        self.loglik = nps.loglik
        likelihood, optimizer, self.rate = PEERS[name]
        self.model = nps.construct_convgnp(
            dim_x=1, dim_y=1, likelihood=likelihood, unet_channels=(64,) * 4, points_per_unit=32
        )
        tasks = GPTasks().training_batch(0, 0, TASKS)
        self.model(tasks.context.x.mT, tasks.context.y.mT, tasks.x.mT)  # makes its parameters
        self.optimizer = optimizer(self.model.parameters(), lr=self.rate)
        self.step, self.spent = 0, 0.0

    def train_until(self, seconds: float) -> None:
        """Train for that many processor seconds."""
        began = time.process_time()
        while self.spent < seconds:
            warm = min(1.0, (self.step + 1) / PEER_WARMUP)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * warm * 0.5 * (1 + math.cos(math.pi * self.spent / seconds))
            tasks = GPTasks().training_batch(0, self.step, TASKS)
            size = int(tasks.is_context[0].sum())  # the context comes first
            x, y = tasks.x.mT, tasks.y.mT
            parts = x[..., :size], y[..., :size], x[..., size:], y[..., size:]
            loss = -self.loglik(self.model, *parts, normalise=True).mean()
            self.optimizer.zero_grad()
            loss.backward()
            with self._kernels_in_two_dimensions():
                self.optimizer.step()
            self.step += 1
            self.spent = time.process_time() - began

    @contextmanager
    def _kernels_in_two_dimensions(self):
        """Convolutions over a line as ones over a plane, which Muon takes for matrices, as it does in our models."""
        kernels = [(p, p.grad) for p in self.model.parameters() if p.dim() == 3 and p.grad is not None]
        for kernel, gradient in kernels:
            kernel.grad = None
            kernel.data, kernel.grad = kernel.data[..., None], gradient[..., None]
        yield
        for kernel, gradient in kernels:
            kernel.grad = None
            kernel.data, kernel.grad = kernel.data[..., 0], gradient

    def predict(self, x_context, y_context, x) -> Prediction:
        """Mean and standard deviation of observations, as the others give them."""
        with torch.no_grad():
            found = self.model(x_context.mT[None], y_context.mT[None], x.mT[None])
            return Prediction(found.mean.mT, found.var.sqrt().mT)


def scores(predict) -> dict[str, float]:
    """LL, RLL and PLL of a function (x of the context, its y, x) → prediction."""
    table = RegressionScores()
    for chunk in range(CHUNKS):
        tasks = GPTasks().validation_chunk(SEED, chunk)
        log_probs = []
        for x, y, known in zip(tasks.x, tasks.y, tasks.is_context, strict=True):
            prediction = predict(x[known], y[known], x)
            floored = Prediction(prediction.functions, prediction.stds.clamp(min=MIN_STD), coherent=False)
            log_probs.append(floored.log_prob(y))
        table.add_log_likelihoods("floored", torch.stack(log_probs), tasks)
    return {name: found["floored"] for name, found in table.scores().items()}


def train_one(name: str, seconds: float) -> dict:
    """Train a model and score it."""
    if name in PEERS:
        peer = Peer(name)
        peer.train_until(seconds)
        return {"steps": peer.step, "seconds": peer.spent, **scores(peer.predict)}
    recipe = started(name, "quick", seconds)
    recipe.train_until(seconds)
    model = recipe.model.eval()
    found = scores(lambda x_context, y_context, x: model.adapt(x_context, y_context).predict(x))
    return {"steps": recipe.trainer.step, "seconds": recipe.spent, **found}


def environment(folder: Path) -> Path:
    """The Python of the package's environment, made if it is not there yet."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        ours = Path(sysconfig.get_paths(vars={"base": str(folder)})["purelib"]) / "shared.pth"
        ours.write_text(sysconfig.get_paths()["purelib"] + "\n")
        subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], check=True)
    return python


def main() -> None:
    """Train what is missing, one after another, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the environment and of models that are done"
    )
    parser.add_argument("--only", nargs="*", default=(*PEERS, *OURS), choices=(*PEERS, *OURS))
    parser.add_argument("--json", type=Path, help="the file to write")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    if given.worker:
        print(json.dumps(train_one(given.worker, given.seconds)))
        return
    given.work.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        part = given.work / f"{name}-{given.seconds:g}.json"
        if part.exists():
            continue
        python = environment(given.work / "environment") if name in PEERS else sys.executable
        command = [python, "-W", "ignore", __file__, "--work", given.work, "--seconds", str(given.seconds)]
        done = subprocess.run([*command, "--worker", name], check=True, stdout=subprocess.PIPE, env=os.environ)
        part.write_bytes(done.stdout.splitlines()[-1])
        print(name, part.read_text(), flush=True)
    parts = {name: given.work / f"{name}-{given.seconds:g}.json" for name in (*PEERS, *OURS)}
    rows = {name: json.loads(part.read_text()) for name, part in parts.items() if part.exists()}
    found = {"package": PACKAGE, "seconds": given.seconds, "tasks": 64 * CHUNKS, "models": rows}
    if given.json:
        write_text(given.json, json.dumps({**found, "machine": machine(True)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
