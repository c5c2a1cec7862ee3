"""Commands that tell what there is: models to train, pretrained ones, runs in a folder, and one run in detail."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from nvdp.cli import app
from nvdp.cli.options import TRAINING, AsJson, Run


@app.command(rich_help_panel=TRAINING)
def models(
    as_json: AsJson = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List the trained models that come with the package.")
    ] = False,
) -> None:
    """List the models by name."""
    from nvdp.models.registry import MODELS

    if pretrained:
        _show_pretrained(as_json)
        return
    rows = [
        {"name": s.name, "tasks": list(s.tasks), "objective": s.objective, "summary": s.summary}
        for s in MODELS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "trained by", "what it is")
    for row in rows:
        table.add_row(str(row["name"]), str(row["objective"]), str(row["summary"]))
    Console().print(table)


def _show_pretrained(as_json: bool) -> None:
    from nvdp.loading import pretrained_card, pretrained_names

    cards = [pretrained_card(name) for name in pretrained_names()]
    if as_json:
        typer.echo(json.dumps(cards))
        return
    table = Table(
        *(Column(name, no_wrap=name != "score") for name in ("name", "model", "task", "steps", "score", "MB"))
    )
    for card in cards:
        score = ", ".join(f"{name} {value:.3f}" for name, value in card["scores"].items())
        cells = (card["name"], card["model"], card["task"], f"{card['steps']:,}", score, f"{card['bytes'] / 1e6:.1f}")
        table.add_row(*cells)
    Console().print(table)


@app.command(rich_help_panel=TRAINING)
def info(run: Run) -> None:
    """Say what a run is: its configuration, progress and size."""
    from nvdp.models.registry import build_model
    from nvdp.training.checkpoint import checkpoint_paths
    from nvdp.training.config import RunConfig
    from nvdp.training.run_folder import CHECKPOINTS, CONFIG, WEIGHTS

    config = RunConfig.load(run / CONFIG)
    parameters = sum(p.numel() for p in build_model(config.model).parameters())
    typer.echo(config.to_json(), nl=False)
    state = "finished" if (run / WEIGHTS).exists() else "unfinished"
    saved = [path.stem.removeprefix("step-").lstrip("0") or "0" for path in checkpoint_paths(run / CHECKPOINTS)]
    typer.echo(f"{state}; {parameters} parameters; checkpoints at steps {', '.join(saved) or 'none'}")
