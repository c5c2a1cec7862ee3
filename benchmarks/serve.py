"""Response time of `nvdp serve`: from pointer to new plot in a real browser, and with many visitors at once.

    python benchmarks/serve.py --json results/bench/serve.json

The script starts a server on a free port and drags a point on the page of functions in Chromium. It then simulates 50
visitors for 30 seconds. It takes about a minute. A simulated visitor does what the page does: during a drag, each of
the two models gets a new request as soon as it has answered, at most 60 times a second; after an answer slower than 100
ms the visitor waits for three times that time, at most 600 ms. After a drag the visitor pauses.
"""

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nvdp.bench.timing import machine
from nvdp.system import write_text

QUERY = [[-2 + 4 * i / 96] for i in range(97)]  # as the page of functions asks
MODELS = ("gp", "exact-gp")
POINTS, CONTEXTS = 6, 64
FRAME = 1 / 60  # seconds between two movements of a pointer
CROWDED, RESTS, MOST_REST = 0.100, 3, 0.600  # seconds: how the page rests after a slow answer (static/api.js)
DRAG, LOOK = 1.0, (1.0, 3.0)  # seconds of a drag, and of the pause after it
NOTES = {
    "pointer": "from a pointer's movement, as the browser stamps it, until the picture that answers it is painted",
    "visitors": f"each drags for {DRAG:g} s, asking two models like the page, and pauses {LOOK[0]:g} to {LOOK[1]:g} s",
    "machine": "server, browser and the visitors' side of all connections share the same cores",
}


@contextmanager
def server(runs: Sequence[str] = ()) -> Iterator[str]:
    """The address of `nvdp serve` on a free port, with these run folders."""
    command = [sys.executable, "-m", "nvdp", "serve", "--port", "0", *(part for run in runs for part in ("--run", run))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[3]
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """The machine's own Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    with sync_playwright() as playwright:
        # Containers run this as root, for which Chromium has no sandbox; it meets our own page alone.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def drag(address: str, seconds: float) -> list[float]:
    """Milliseconds from pointer to picture while a point is dragged along a curve in a browser."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 960})
        page.goto(address)
        for side in "ab":
            page.wait_for_selector(f".{side} path.mean[d]", state="attached")
        box = page.locator(".a .point >> nth=1").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            page.mouse.move(x + 60 * math.sin(2 * now), y - 80 * math.sin(3 * now))
            time.sleep(max(0.0, FRAME - (time.perf_counter() - began - now)))
        page.mouse.up()
        page.wait_for_timeout(500)
        taken = page.evaluate("performance.getEntriesByName('pointer to picture').map(entry => entry.duration)")
    return list(taken)


class Connection:
    """One kept connection; by hand, so that the visitors take as little as they can of the cores they share."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def open(self) -> "Connection":
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def ask(self, body: bytes) -> int:
        """The status of the answer, after all of it has come."""
        head = (
            f"POST /api/adapt HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
            f"Accept-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        headers = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(line for line in headers if line.startswith("content-length:"))
        await self.reader.readexactly(int(length.split(":")[1]))
        return int(headers[0].split()[1])


def questions(model: str) -> list[bytes]:
    """Contexts as visitors would click them."""
    bodies = []
    for _ in range(CONTEXTS):
        x = [[random.uniform(-2, 2)] for _ in range(POINTS)]
        y = [[random.gauss(0, 0.7)] for _ in range(POINTS)]
        question = {"model": model, "x": x, "y": y, "query": QUERY, "samples": 8, "seed": 1}
        bodies.append(json.dumps(question).encode())
    return bodies


def dear_question() -> bytes:
    """The largest question that the server takes, with as many points as a picture has pixels."""
    points = [[i / 256 - 2] for i in range(1024)]
    question = {"model": "gp", "x": points, "y": [[0.1]] * 1024, "query": points, "samples": 32}
    return json.dumps(question).encode()


async def visitors(
    address: str, count: int, seconds: float, dear: int = 0
) -> tuple[list[float], list[str], dict[str, int]]:
    """Milliseconds of all answers to cheap questions, what went wrong, and the answers to dear ones by status.

    `dear` of the visitors send the largest questions there are instead, one after the other, and come again when told.
    """
    place = urlsplit(address)
    assert place.hostname is not None
    assert place.port is not None
    asked = {model: questions(model) for model in MODELS}
    taken: list[float] = []
    wrong: list[str] = []
    dear_answers: dict[str, int] = {}
    end = time.perf_counter() + seconds

    async def lane(connection: Connection, model: str, until: float) -> None:
        while (start := time.perf_counter()) < until:
            status = await connection.ask(random.choice(asked[model]))
            now = time.perf_counter()
            taken.append(1000 * (now - start))
            if status != 200:
                wrong.append(f"status {status}")
            took = now - start
            await asyncio.sleep(min(RESTS * took, MOST_REST) if took > CROWDED else max(0.0, FRAME - took))

    async def visitor() -> None:
        await asyncio.sleep(random.uniform(0, DRAG + LOOK[1]))
        try:
            connections = [await Connection(place.hostname or "", place.port or 0).open() for _ in MODELS]
            while time.perf_counter() < end:
                until = min(end, time.perf_counter() + DRAG)
                await asyncio.gather(*map(lane, connections, MODELS, [until] * len(MODELS)))
                await asyncio.sleep(random.uniform(*LOOK))
        except (OSError, asyncio.IncompleteReadError) as error:
            wrong.append(repr(error))

    async def dear_visitor() -> None:
        body = dear_question()
        try:
            connection = await Connection(place.hostname or "", place.port or 0).open()
            while time.perf_counter() < end:
                async with asyncio.timeout(max(0.1, end - time.perf_counter())):
                    status = await connection.ask(body)
                dear_answers[str(status)] = dear_answers.get(str(status), 0) + 1
                await asyncio.sleep(1.0 if status == 503 else 0.1)
        except TimeoutError:
            dear_answers["unfinished"] = dear_answers.get("unfinished", 0) + 1
        except (OSError, asyncio.IncompleteReadError) as error:
            wrong.append(repr(error))

    await asyncio.gather(*(visitor() for _ in range(count - dear)), *(dear_visitor() for _ in range(dear)))
    return taken, wrong, dear_answers


def summary(milliseconds: list[float]) -> dict[str, Any]:
    """Median and 95th percentile."""
    ordered = sorted(milliseconds)
    part = {"median_ms": statistics.median(ordered), "p95_ms": ordered[int(0.95 * (len(ordered) - 1))]}
    return {"answers": len(ordered)} | {name: round(value, 1) for name, value in part.items()}


def main() -> None:
    """Measure, print and, if asked, write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--dear", type=int, default=5, help="of them, who ask the largest questions in a second run")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--drag-seconds", type=float, default=8, help="of one hand in the browser, before the visitors")
    parser.add_argument("--json", type=Path, help="the file to write")
    options = parser.parse_args()
    random.seed(0)
    before = machine(False)
    with server() as address:
        hand = drag(address, options.drag_seconds) if options.drag_seconds else []
        crowds = []
        for dear in (0, options.dear):
            taken, wrong, answers = asyncio.run(visitors(address, options.visitors, options.seconds, dear))
            crowd = {"visitors": options.visitors, "seconds": options.seconds}
            crowd |= {"errors": len(wrong), "first_error": wrong[:1]}
            name = f"visitors at once, {dear} of them with the largest questions" if dear else "visitors at once"
            told = {"dear_visitors": dear, "dear_answers": answers} if dear else {}
            crowds.append({"what": name} | crowd | told | summary(taken))
    rows = [*([{"what": "pointer to picture"} | summary(hand)] if hand else []), *crowds]
    text = json.dumps({"suite": "serve", "machine": before, "notes": NOTES, "rows": rows}, indent=1) + "\n"
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.json, text)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
