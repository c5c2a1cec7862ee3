"""The command that writes a model for programs without PyTorch: ``nvdp export``."""

from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, Force


@app.command(rich_help_panel=OWN_DATA)
def export(
    model: Annotated[str, typer.Argument(help="A folder of nvdp fit, a run folder, or a pretrained name.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write; it holds the weights too.")],
    force: Force = False,
) -> None:
    r"""Write a regression model as an ONNX graph: a context and inputs in, mean and standard deviation out.

    The graph does what adapt and predict do, in the user's units, for one task with any number of points. ONNX Runtime
    and other programs run it without PyTorch.
    Needs the extra: pip install 'nvdp\[export]'

    Example: nvdp export gp --out gp.onnx
    """
    from nvdp.export import export_onnx
    from nvdp.loading import load
    from nvdp.system import check_outputs

    check_outputs([out], [], force)
    export_onnx(load(model), out)
    typer.echo(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB")
