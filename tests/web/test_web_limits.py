"""What the server holds and runs at once: bodies, waiting requests, large ones, worker processes."""

import asyncio
import subprocess
import sys
import threading

import pytest
import torch
from fastapi.testclient import TestClient
from small_served import regression

from nvdp.training.config import RunConfig
from nvdp.web import limits
from nvdp.web.limits import Abandoned, BodyLimit, Pool, QueueFull, unless_gone
from nvdp.web.server import create_app

QUESTION = {"model": "slow", "x": [[-1.0], [0.25]], "y": [[0.4], [-0.3]], "query": [[0.0]], "samples": 5}


def test_ten_million_points_are_refused_before_they_are_parsed():
    read, answered = 0, []

    async def endless():
        nonlocal read
        read += 60_000
        return {"type": "http.request", "body": b"[0.5]," * 10_000, "more_body": True}

    async def send(message):
        answered.append(message)

    async def unreachable(scope, receive, send):
        raise AssertionError("the application was asked")

    scope = {"type": "http", "method": "POST", "headers": []}
    asyncio.run(BodyLimit(unreachable)(scope, endless, send))
    assert answered[0]["status"] == 413
    assert read <= limits.MAX_BYTES + 60_000


def test_a_full_queue_answers_503_and_then_recovers(small_config):
    config = RunConfig(model=small_config("cnp"), objective="likelihood")
    served, may_end, started = regression("slow", config), threading.Event(), []
    quick = served.answer

    def slow(*arguments):
        started.append(threading.current_thread().name)
        assert may_end.wait(60)
        return quick(*arguments)

    served.answer = slow
    codes, pool = [], Pool(workers=1, waiting=1)
    with TestClient(create_app({"slow": served}, pool), raise_server_exceptions=False) as client:

        def ask():
            codes.append(client.post("/api/adapt", json=QUESTION).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not started or pool.cheap.jobs.total() < 2:  # one works, one waits
            threading.Event().wait(0.01)
        full = client.post("/api/adapt", json=QUESTION)
        assert full.status_code == 503
        assert "requests are waiting" in full.json()["detail"]
        assert full.headers["Retry-After"] == "1"
        assert client.get("/api/models").status_code == 200  # the server itself is not busy
        may_end.set()
        for thread in threads:
            thread.join()
        assert codes == [200, 200]
        assert client.post("/api/adapt", json=QUESTION).status_code == 200


def test_cheap_work_does_not_wait_behind_dear_work_and_one_visitor_has_a_limit():
    pool, may_end = Pool(workers=1, dear_waiting=20), threading.Event()

    async def scenario():
        dear = [asyncio.ensure_future(pool.run(may_end.wait, "anna", dear=True)) for _ in range(limits.MAX_DEAR_OF_ONE)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="large requests of yours"):
            await pool.run(may_end.wait, "anna", dear=True)
        other = asyncio.ensure_future(pool.run(may_end.wait, "bert", dear=True))
        assert await asyncio.wait_for(pool.run(lambda: "at once"), 30) == "at once"
        may_end.set()
        await asyncio.gather(*dear, other)

    asyncio.run(scenario())
    assert not pool.busy
    pool.close()


def test_work_whose_visitor_has_gone_is_not_done():
    pool, may_end, done = Pool(workers=1), threading.Event(), []

    async def scenario():
        running = asyncio.ensure_future(pool.run(may_end.wait))

        async def gone():
            return {"type": "http.disconnect"}

        for number in range(5):
            assert await unless_gone(gone, pool.run(lambda number=number: done.append(number))) is None
        await asyncio.sleep(0.05)  # a task that is cancelled ends in a later turn of the loop
        may_end.set()
        await running
        await pool.run(lambda: done.append("after"))

    asyncio.run(scenario())
    assert done == ["after"]
    pool.close()


def test_dear_work_that_is_running_stops_when_its_visitor_has_gone():
    pool, started, ended = Pool(workers=1), threading.Event(), threading.Event()

    def endless():
        started.set()
        try:
            while True:
                torch.ones(1).add(1)
        finally:
            ended.set()

    async def scenario():
        async def gone():
            while not started.is_set():
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        assert await unless_gone(gone, pool.run(endless, "anna", dear=True)) is None
        assert await asyncio.wait_for(pool.run(lambda: "next", "bert", dear=True), 30) == "next"

    asyncio.run(scenario())
    assert ended.is_set()
    pool.close()


def test_closing_the_pool_stops_running_dear_work():
    pool, started = Pool(workers=1), threading.Event()

    def endless():
        started.set()
        while True:
            torch.ones(1).add(1)

    async def scenario():
        work = asyncio.ensure_future(pool.run(endless, dear=True))
        while not started.is_set():
            await asyncio.sleep(0.01)
        pool.close()
        with pytest.raises(Abandoned):
            await work

    asyncio.run(scenario())


def test_bodies_on_their_way_are_bounded_together(monkeypatch):
    monkeypatch.setattr(limits, "MAX_HELD", 100)

    async def unreached(scope, receive, send):
        raise AssertionError

    body, sent = BodyLimit(unreached, most=1_000), []

    async def ask():
        async def receive():
            return {"type": "http.request", "body": b"x" * 101, "more_body": True}

        async def send(message):
            sent.append(message)

        await body({"type": "http", "method": "POST", "headers": []}, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 503
    assert body.held == 0


def test_the_pool_runs_no_more_jobs_at_once_than_it_has_workers():
    pool, lock, may_end = Pool(workers=2, waiting=6), threading.Lock(), threading.Event()
    running, most = 0, 0

    def job():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        may_end.wait(30)
        with lock:
            running -= 1

    async def many():
        jobs = [asyncio.ensure_future(pool.run(job)) for _ in range(12)]
        while most < 2:
            await asyncio.sleep(0.01)
        may_end.set()
        return await asyncio.gather(*jobs, return_exceptions=True)

    results = asyncio.run(many())
    assert most == 2
    assert sum(isinstance(result, QueueFull) for result in results) == 4
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_worker_processes_answer_and_threads_take_over_when_one_is_killed():
    script = (
        "import asyncio, os, signal\n"
        "from functools import partial\n"
        "from nvdp.web.limits import Pool\n"
        "from nvdp.web.workers import answer\n"
        "class Model:\n"
        "    def double(self, value): return [2 * value, os.getpid()]\n"
        "    def end(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "pool = Pool(1, models={'m': Model()})\n"
        "async def main():\n"
        "    ask = lambda: pool.run(lambda: b'thread', remote=partial(answer, 'm', 'double', (21,)))\n"
        "    value, process = eval(await ask())\n"
        "    assert (value, process != os.getpid()) == (42, True)\n"
        "    print(await pool.run(lambda: b'thread', remote=partial(answer, 'm', 'end', ())), await ask())\n"
        "asyncio.run(main()); pool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "b'thread' b'thread'\n"), done.stderr
