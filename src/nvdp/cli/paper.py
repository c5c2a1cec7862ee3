"""Commands about the paper: reproduce a table or figure."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, learning, ablations, figure2 or figure9.")],
    budget: Annotated[
        str, typer.Option(help="quick (minutes), cpu (hours on 2 cores) or paper (for GPU owners).")
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Where results go: one JSON file per run.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where the runs themselves live.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Runs side by side, one thread each.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
) -> None:
    """Do the runs behind a table or figure, score them, and draw.

    Finished runs are never repeated; a killed queue goes on where it was when the same command is given again.
    """
    from nvdp.errors import unknown_name
    from nvdp.experiments.plan import BUDGETS
    from nvdp.experiments.queue import work_off
    from nvdp.experiments.registry import experiment_named
    from nvdp.training.files import write_text

    experiment = experiment_named(what)
    if budget not in BUDGETS:
        raise unknown_name("budget", budget, BUDGETS)
    folders = work_off(experiment, budget, out, runs, jobs, device)
    typer.echo(f"{what}: {len(folders)} runs done, results in {out / what}")
    if experiment.collect is not None and experiment.draw is not None:
        data = out / what / f"{budget}-figure.json"
        write_text(data, json.dumps(experiment.collect(folders)) + "\n")
        for path in experiment.draw(json.loads(data.read_text()), out / what / f"{what}.png"):
            typer.echo(f"drew {path}")
