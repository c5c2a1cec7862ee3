"""A store on a real PostgreSQL server: the answers of a file, several writers, kills of a writer and of the server."""

import os
from pathlib import Path

import pytest
import torch
from command_line import nvdp as command
from command_line import refusal

import nvdp
from faults.postgres import Server, binaries, killed_server, killed_writers
from faults.services import shared_address
from nvdp.errors import InputError
from nvdp.store import TaskStore, store_stats
from nvdp.store.postgres import connect

if binaries() is None and not os.environ.get("NVDP_NO_SKIPS"):
    pytest.skip("no PostgreSQL server on this machine: apt-get install postgresql", allow_module_level=True)


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def url(server, request):
    """A schema of its own on the server, so that every test has a store of its own."""
    schema = request.node.name[:60].lower()
    with connect(server.url) as db:
        db.execute(f'CREATE SCHEMA "{schema}"')
    return f"{server.url}?options=-csearch_path%3D{schema}"


@pytest.fixture(scope="module")
def model():
    return nvdp.load("gp-nvdp")


def test_a_server_answers_as_a_file_does(url, model, tmp_path):
    names, xs, ys = ["oak", "ash", "oak"], [[0.0, 1.0], [0.5], [-1.0]], [[0.1, 0.2], [0.3], [0.4]]
    told = []
    for place in (url, tmp_path / "trees.db"):
        with TaskStore(place, model) as store:
            counts = store.observe_many(names, xs, ys)
            left = store.forget("oak", [1.0], [0.2])
            answer = store.predict_many(["oak", "ash", "yew"], [0.5, 0.7])
            told.append((counts, left, sorted(store), len(store), store.count("yew"), answer.mean, answer.std))
        with TaskStore(place, model) as store:
            assert store.count("oak") == 2
    assert told[0][:5] == told[1][:5] == ([3, 1, 3], 2, ["ash", "oak"], 2, 0)
    assert torch.equal(told[0][5], told[1][5])
    assert torch.equal(told[0][6], told[1][6])
    assert store_stats(url)["points"] == 3


def test_nothing_of_a_batch_is_stored_if_a_part_of_it_is_refused(url, model):
    with TaskStore(url, model) as store:
        store.observe("oak", [0.0], [0.1])
        with pytest.raises(InputError, match="x holds nan"):
            store.observe_many(["oak", "ash"], [[1.0], [float("nan")]], [[0.1], [0.1]])
        with pytest.raises(InputError, match="cannot forget 2 points of 'oak', which has seen 1"):
            store.forget("oak", [0.0, 1.0], [0.1, 0.2])
        assert (store.count("oak"), len(store)) == (1, 1)


def test_another_model_and_damaged_rows_are_one_line(url, model):
    with TaskStore(url, model) as store:
        store.observe_many(["oak", "ash"], [[0.0], [1.0]], [[0.1], [0.2]])
    with pytest.raises(InputError, match="holds states of the encoder"):
        TaskStore(url, nvdp.build_model(nvdp.ModelConfig("nvdp"), seed=3).eval())
    with connect(url) as db:
        db.execute("UPDATE nvdp_task SET count = 2 WHERE id = 'oak'")
    with TaskStore(url, model) as store:
        assert store.count("ash") == 1
        with pytest.raises(InputError, match="the state of task 'oak' is damaged"):
            store.predict("oak", [0.0])
    with pytest.raises(InputError, match="the state of task 'oak' is damaged"):
        store_stats(url)


def test_more_tasks_than_a_server_has_locks_for(url, model, monkeypatch):
    monkeypatch.setattr("nvdp.store.postgres.LOCKS_AT_ONCE", 3)
    with TaskStore(url, model) as store:
        assert store.observe_many(list("abcdef"), [[0.0]] * 6, [[0.1]] * 6) == [1] * 6


def test_a_task_that_stays_locked_is_one_line_and_the_store_goes_on(url, model):
    with TaskStore(url, model) as slow, TaskStore(url + "%20-clock_timeout%3D50ms", model) as store:
        with slow._states.transaction(["oak"]), pytest.raises(InputError, match="lock timeout"):
            store.observe("oak", [0.0], [0.1])
        assert store.observe("oak", [0.0], [0.1]) == 1


@pytest.mark.parametrize("password", ["secret", "se%zzcret", "sec/ret", "sec ret", "sec@ret", "[secret"])
def test_a_server_that_is_not_there_is_one_line_without_the_password(model, password):
    with pytest.raises(InputError) as error:
        TaskStore(f"postgresql://ann:{password}@127.0.0.1:9/trees", model)
    assert "postgresql://ann@127.0.0.1:9/trees cannot be used" in str(error.value)
    assert not any(part in str(error.value) for part in (password, "se%", "cret", "sec", "ret "))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["mysql://a/b", "postgresql+psycopg://a/b", "POSTGRESQL://a/b", "https://a/b"])
def test_a_url_of_something_else_is_one_line(model, url):
    with pytest.raises(InputError, match=r"a store is a file or a URL postgresql://…; got"):
        TaskStore(url, model)


def test_the_command_line_takes_a_url(url, tmp_path):
    rows, at, out = tmp_path / "rows.csv", tmp_path / "at.csv", tmp_path / "out.csv"
    rows.write_text("tree,day,size\noak,0,0.1\noak,1,0.2\nash,0.5,0.3\n")
    at.write_text("tree,day\noak,0.5\n")
    columns = ("--model", "gp-nvdp", "--task", "tree", "--x", "day")
    assert "has no store" in refusal("store", "predict", url, at, *columns, "--out", out)
    said = command("store", "observe", url, rows, *columns, "--y", "size")
    assert said.stdout.startswith("observed 3 points of 2 tasks; postgresql://nvdp@127.0.0.1:"), said
    assert command("store", "predict", url, at, *columns, "--out", out).returncode == 0
    assert Path(out).read_text().startswith("tree,day,mean,std")
    assert command("store", "stats", url).stdout.startswith("2 tasks, 3 points, ")


def test_an_open_store_goes_on_after_the_server_was_killed(model):
    with Server() as server, TaskStore(server.url, model) as store:
        store.observe("oak", [0.0], [0.1])
        server.kill()
        with pytest.raises(InputError, match="cannot be used as a store of tasks"):
            store.observe("oak", [1.0], [0.2])
        server.restart()
        assert store.observe("oak", [1.0], [0.2]) == 2
        assert [store.count("oak"), list(store)] == [2, ["oak"]]


def test_nothing_acknowledged_is_lost_when_writers_or_the_server_are_killed(server):
    with Server() as another:  # each counts the points of its own store
        tallies = killed_writers(server, 2, 60), killed_server(another, 2, 60, 1)
    for tally in tallies:
        assert tally.wrong == []
        assert tally.outcomes["acknowledged point is in the store"] > 20


def test_services_behind_one_address_share_a_store():
    assert shared_address(services=2, clients=2, points=8).wrong == []
