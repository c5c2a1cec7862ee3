"""Predict many tasks with Ray Data: Parquet files in, Parquet files out, in bounded memory on all CPUs of a cluster.

    python examples/predict_on_ray.py gp-nvdp tasks/ predictions/ --low -2 --high 2 --address 10.0.0.1:6379

A row of `tasks/` is a task: its name `task` and its context as two lists `x` and `y`, of a model with one input and one
output. A row of `predictions/` has the lists `mean` and `std` at equally spaced inputs. Without --address a cluster is
started on this machine. Folders must be on a file system that all nodes share.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nvdp

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


class Predict:
    """A model in a worker of the cluster, asked about batches of tasks."""

    def __init__(self, model: str, at: list[float]) -> None:
        torch.set_num_threads(1)
        self.predictor, self.at = nvdp.load(model), torch.tensor(at)[:, None]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Means and standard deviations of a batch of tasks."""
        sizes = torch.tensor([len(x) for x in batch["x"]])
        mask = torch.arange(int(sizes.max())) < sizes[:, None]
        x, y = (torch.zeros(*mask.shape, 1) for _ in "xy")
        for values, given in ((x, batch["x"]), (y, batch["y"])):
            values[mask] = torch.tensor(np.concatenate(given), dtype=torch.float32)[:, None]
        prediction = self.predictor.adapt(x, y, mask).predict(self.at)
        return {"task": batch["task"], "mean": prediction.mean[..., 0].numpy(), "std": prediction.std[..., 0].numpy()}


def main() -> None:
    """Read, predict and write."""
    import ray

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a pretrained name, or a folder that all nodes share")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--low", type=float, required=True, help="the first input to predict at")
    parser.add_argument("--high", type=float, required=True, help="the last")
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--batch", type=int, default=1_000, help="tasks at once")
    parser.add_argument("--address", help="of a Ray cluster")
    given = parser.parse_args()
    local = {"_node_ip_address": "127.0.0.1"} if (given.address or "").startswith("127.") else {}
    ray.init(address=given.address, log_to_driver=False, **local)
    workers = max(1, int(ray.cluster_resources()["CPU"]) - 1)  # one CPU reads and writes
    at = np.linspace(given.low, given.high, given.points).tolist()
    tasks = ray.data.read_parquet(str(given.tasks.resolve()))
    predicted = tasks.map_batches(
        Predict, fn_constructor_args=(given.model, at), batch_size=given.batch, num_cpus=1, concurrency=(1, workers)
    )
    predicted.write_parquet(str(given.out.resolve()))
    nodes = {node["NodeManagerAddress"] + node["NodeID"] for node in ray.nodes() if node["Alive"]}
    print(f"predicted {sum(1 for _ in given.tasks.glob('*.parquet'))} files on {len(nodes)} nodes into {given.out}")


if __name__ == "__main__":
    main()
