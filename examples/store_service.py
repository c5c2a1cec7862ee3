"""A prediction service over a store on PostgreSQL; any number of them share one address and one store.

    python examples/store_service.py postgresql://ann@db.example/trees --model gp-nvdp --port 8300   # several times

All that know the port take connections from it in turn (SO_REUSEPORT; Linux). A service keeps no state of its own: a
task that one of them observes, another predicts. Needs ``pip install 'nvdp[web,postgres]'``.
"""

import argparse
import os
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import nvdp
from nvdp.store import TaskStore


class Points(BaseModel):
    """Points of a task; y is left out where it is asked for."""

    task: str
    x: list[list[float]]
    y: list[list[float]] = []


def service(store: TaskStore) -> FastAPI:
    """The two routes. Handlers run one after the other, as they share one connection to the server."""
    app = FastAPI()

    @app.exception_handler(nvdp.InputError)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.post("/observe")
    async def observe(points: Points) -> dict[str, Any]:
        return {"count": store.observe(points.task, points.x, points.y), "by": os.getpid()}

    @app.post("/predict")
    async def predict(points: Points) -> dict[str, Any]:
        prediction = store.predict(points.task, points.x)
        return {"mean": prediction.mean.tolist(), "std": prediction.std.tolist(), "by": os.getpid()}

    return app


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--model", default="gp-nvdp")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8300)
    options = parser.parse_args()
    with socket.socket() as shared, TaskStore(options.url, nvdp.load(options.model)) as store:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((options.host, options.port))
        shared.listen(128)
        uvicorn.Server(uvicorn.Config(service(store), log_level="warning")).run(sockets=[shared])


if __name__ == "__main__":
    main()
