"""The command line in this process, as a new process for each call would mostly import."""

import contextlib
import io
import os
from types import SimpleNamespace
from unittest import mock

from nvdp.cli import main


def nvdp(*arguments):
    """Exit code and what was printed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch("sys.argv", ["nvdp", *map(str, arguments)]),
        mock.patch.dict(os.environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def refusal(*arguments):
    """The one line that a command says about bad input."""
    result = nvdp(*arguments)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr
