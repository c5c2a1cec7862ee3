"""`nvdp serve` as its users meet it: help that teaches, and one clear line for what cannot be."""

import asyncio
import contextlib
import importlib.util
import socket
from unittest import mock

import command_line
import pytest

from nvdp.errors import InputError


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def refusal(*arguments):
    return command_line.refusal("serve", *arguments)


def test_help_names_the_pages_the_extra_and_an_example():
    text = command_line.nvdp("serve", "--help").stdout
    for part in ("--port", "8765", "127.0.0.1", "nvdp[web]", "nvdp serve --run", "Ctrl+C"):
        assert part in text


def test_a_busy_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refusal("--port", port) == (
            f"nvdp: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port\n"
        )


def test_a_missing_extra_is_one_line():
    real = importlib.util.find_spec
    with mock.patch("importlib.util.find_spec", lambda name: None if name == "uvicorn" else real(name)):
        assert refusal() == "nvdp: nvdp serve needs uvicorn: pip install 'nvdp[web]'\n"


def test_an_address_that_is_not_ours_and_a_folder_that_is_not_there_are_one_line():
    assert "cannot listen on 192.0.2.1" in refusal("--host", "192.0.2.1", "--port", 0)
    assert "unknown folder or pretrained model 'nowhere'" in refusal("--run", "nowhere", "--port", 0)


def test_slow_clients_keep_nobody_out_and_the_server_ends_in_time(tmp_path, monkeypatch):
    """A real server with short limits: half-sent requests end, a stop with one under way does too."""
    from faults import service

    with service.serving(tmp_path / "log") as (process, host, port):
        held = [service.send(host, port, half) for half in (service.HALF_HEADER, service.HALF_BODY) for _ in range(30)]
        assert service.ask(host, port)[0] == 200
        assert service.ask(host, port, Host="evil.example")[0] == 421
        process.terminate()
        process.wait(60)
        for connection in held:
            connection.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_an_incomplete_request_is_ended_after_its_time(monkeypatch):
    from nvdp.web import connections

    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(connections.Connection, "most", 3)

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def scenario():
        server = connections.server_of(app)
        server.config.lifespan = "off"
        server.config.host, server.config.port = "127.0.0.1", 0
        running = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in slow[:2]:
            writer.write(b"GET / HTTP/1.1\r\nHost: ")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)  # one too many: a slow one makes room
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
        ends = [await asyncio.wait_for(reader.read(), 30) for reader, _ in slow]
        for each in (writer, *(side for _, side in slow)):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        server.should_exit = True
        await asyncio.wait_for(running, 30)
        return ends

    with mock.patch("uvicorn.Server.capture_signals", return_value=contextlib.nullcontext()):
        assert all(b" 408 " in end for end in asyncio.run(scenario()))


def test_two_servers_on_one_port_are_one_line_and_an_open_address_is_told():
    from nvdp.cli.web import _is_open, _listen

    with _listen("127.0.0.1", 0) as first, pytest.raises(InputError, match="choose another --port"):
        _listen("127.0.0.1", first.getsockname()[1])
    assert [_is_open(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1")] == [
        False, False, False, True, True,
    ]  # fmt: skip
