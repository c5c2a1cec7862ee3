"""The command that opens the page: ``nvdp serve``."""

import importlib.util
import os
import socket
import warnings
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import PICTURES
from nvdp.errors import InputError

EXTRA = ("fastapi", "uvicorn")
BACKLOG = 2048


@app.command(rich_help_panel=PICTURES)
def serve(
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8765,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of a run to serve beside the pretrained models; may be given several times."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in, without a password.")
    ] = "127.0.0.1",
    workers: Annotated[
        int | None, typer.Option(help="Processes that compute. (default: one for each core)", min=1, max=256)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name under which browsers may ask, besides localhost and addresses; several times."),
    ] = None,
) -> None:
    r"""Serve a page for the browser: click points, drag them, and see the posterior change.

    Functions: a model's prediction beside the exact GP's, with its dropout rates. Images: reveal the pixels of a digit.
    Characters: draw five signs, then one of them again. Your data: drop a CSV for a model of nvdp fit. The page works
    offline, and no data leaves this machine. Ctrl+C stops it.
    Needs the extra: pip install 'nvdp\[web]'

    Examples: nvdp serve
              nvdp serve --run runs/cnp --run runs/digits --run runs/signs --run runs/trees --port 9000
    """
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"nvdp serve needs {' and '.join(missing)}: pip install 'nvdp[web]'")
    listening = _listen(host, port)
    with listening:
        from nvdp.errors import FarNote
        from nvdp.loading import find_run
        from nvdp.system import use_threads
        from nvdp.web.connections import server_of
        from nvdp.web.limits import Pool
        from nvdp.web.served import served_models
        from nvdp.web.server import create_app

        use_threads(1)
        warnings.simplefilter("ignore", FarNote)  # the page tells its visitor
        served = served_models([find_run(folder) for folder in run or []])
        pool = Pool(workers, models=served)
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"nvdp is at http://{shown}:{listening.getsockname()[1]} with {len(served)} models; Ctrl+C stops it")
        names = [host, socket.gethostname(), *(allow_host or [])]
        if _is_open(host):
            own = f"http://{socket.gethostname()}:{listening.getsockname()[1]}"
            typer.echo(
                f"note: {host} lets every machine that reaches this one ask its models, without a password and "
                f"without encryption; others open {own}",
                err=True,
            )
        try:
            server_of(create_app(served, pool, names)).run(sockets=[listening])
        except KeyboardInterrupt:
            if pool.busy:
                os._exit(130)  # an ordinary end would wait for what nobody will read
            raise


def _is_open(host: str) -> bool:
    """Whether machines other than this one can connect."""
    try:
        return not ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host != "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket, before anything slow is imported, so that a busy port is reported at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"cannot listen on {host}: {error.strerror or error}") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)  # here, as two processes may bind one port and only one may listen
    except OSError as error:
        listening.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    return listening
