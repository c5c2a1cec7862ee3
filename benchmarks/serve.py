"""Visitors at once on a running ``nvdp serve``: each asks, waits for the answer, thinks, and asks again.

Run: python benchmarks/serve.py --address http://127.0.0.1:8765 --visitors 50 --seconds 30
"""

import argparse
import asyncio
import json
import random
import statistics
import time

import httpx2

QUERY = [[-2 + 4 * i / 120] for i in range(121)]  # as the page of functions asks


def question(model: str, points: int = 6) -> dict[str, object]:
    """A context as a visitor would click it."""
    x = [[random.uniform(-2, 2)] for _ in range(points)]
    y = [[random.gauss(0, 0.7)] for _ in range(points)]
    return {"model": model, "x": x, "y": y, "query": QUERY, "samples": 8, "seed": 1}


async def visitor(client: httpx2.AsyncClient, end: float, think: float, taken: list[float], codes: list[int]) -> None:
    """Questions until the end, with a pause of about `think` seconds after each answer."""
    await asyncio.sleep(random.uniform(0, think))
    while time.perf_counter() < end:
        start = time.perf_counter()
        answer = await client.post("/api/adapt", json=question(random.choice(["gp", "exact-gp"])))
        taken.append(time.perf_counter() - start)
        codes.append(answer.status_code)
        await asyncio.sleep(random.uniform(0.5, 1.5) * think)


async def measure(address: str, visitors: int, seconds: float, think: float) -> dict[str, object]:
    """Median, 95th percentile and refusals of all visitors together."""
    taken: list[float] = []
    codes: list[int] = []
    limits = httpx2.Limits(max_connections=visitors)
    async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(visitor(client, end, think, taken, codes) for _ in range(visitors)))
    milliseconds = sorted(1000 * each for each in taken)
    return {
        "visitors": visitors,
        "seconds": seconds,
        "think_seconds": think,
        "answers": len(codes),
        "not_200": sum(code != 200 for code in codes),
        "median_ms": round(statistics.median(milliseconds), 1),
        "p95_ms": round(milliseconds[int(0.95 * (len(milliseconds) - 1))], 1),
    }


def main() -> None:
    """One JSON object on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="http://127.0.0.1:8765")
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--think", type=float, default=1.0, help="mean pause after an answer, in seconds")
    options = parser.parse_args()
    random.seed(0)
    print(json.dumps(asyncio.run(measure(options.address, options.visitors, options.seconds, options.think))))


if __name__ == "__main__":
    main()
