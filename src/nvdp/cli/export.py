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
    inputs: Annotated[
        int | None, typer.Option(min=1, help="Numbers of an input, for a model that takes several widths (general).")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Classes of a task, for a classifier.")] = None,
    force: Force = False,
) -> None:
    r"""Write a model as an ONNX graph: a context and inputs in; mean and deviation, or probabilities of classes, out.

    The graph does what adapt and predict do, in the user's units, for one task with any number of points. ONNX Runtime
    and other programs run it without PyTorch.
    Needs the extra: pip install 'nvdp\[export]'

    Example: nvdp export gp --out gp.onnx
    """
    from nvdp.export import export_onnx
    from nvdp.loading import load
    from nvdp.system import check_outputs

    check_outputs([out], [], force)
    export_onnx(load(model), out, inputs, classes)
    typer.echo(f"wrote {out}: {out.stat().st_size / 1e6:.1f} MB")
