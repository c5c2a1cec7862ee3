"""The command models: what can be trained, and what comes trained with the package."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from nvdp.cli import app


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
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
