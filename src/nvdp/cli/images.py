"""Commands about pictures: complete one from some of its pixels, classify some from a few labelled ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from nvdp.cli import app
from nvdp.cli.options import PICTURES, AsJson, Force, find, seed_option
from nvdp.errors import InputError

SHOWN_CLASSES, DIGITS, BETWEEN = 8, 5, 3  # columns of the table of probabilities; characters of one and its borders


@app.command(rich_help_panel=PICTURES)
def complete(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run on mnist, omniglot, celeba or images, or the pretrained mnist.",
            callback=find,
        ),
    ],
    picture: Annotated[Path, typer.Argument(help="A picture; its central square is resized to the model's size.")],
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("completed.png"),
    keep: Annotated[float, typer.Option(help="The share of pixels that the model is shown.")] = 0.1,
    plain: Annotated[bool, typer.Option("--plain", help="Write the completed picture alone.")] = False,
    samples: Annotated[int, typer.Option(help="Sampled pictures behind mean and deviation.", min=2)] = 16,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Draw the shown samples block by block: drawn pixels join the context.")
    ] = False,
    seed: Annotated[int, seed_option("Which pixels are kept, and which samples are drawn.")] = 0,
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light: mnist and omniglot are white ink on black.")
    ] = False,
    force: Force = False,
) -> None:
    """Complete a picture from some of its pixels.

    Draws the kept pixels, the completion, two samples and the standard deviation side by side.

    Example: nvdp complete mnist seven.png --keep 0.1 --out done.png
    """
    import numpy as np
    import torch

    from nvdp.data.image_files import looks_grey, open_picture, picture_array, picture_channels, write_picture
    from nvdp.data.registry import IMAGE_TASKS, image_size
    from nvdp.images.completion import check_picture, drawn_in_blocks, psnr, random_shown
    from nvdp.images.completion import complete as complete_picture
    from nvdp.plots import completion_grid, figure_paths, figure_pictures
    from nvdp.plots.images import FUNCTIONS
    from nvdp.system import check_outputs, use_threads
    from nvdp.training.run_folder import load_run

    use_threads()
    check_outputs([out] if plain else figure_paths(out), [picture], force)
    config, model, _ = load_run(run)
    if config.task not in IMAGE_TASKS:
        raise InputError(f"{run} was trained on {config.task}; nvdp complete needs one of {', '.join(IMAGE_TASKS)}")
    size = image_size(config.task, config.data)
    opened = open_picture(picture, str(picture))
    channels = picture_channels(opened) if config.data.channels is None else config.data.channels
    channels = 1 if model.config.y_dim == 1 and looks_grey(opened) else channels
    check_picture(model, channels, str(picture))
    pixels = picture_array(opened, size, channels)
    pixels = 255 - pixels if invert else pixels
    done = complete_picture(model, pixels, random_shown(size, keep, seed), samples, seed)
    if blocks:
        images = np.repeat(pixels[None], FUNCTIONS, 0)
        shown = torch.from_numpy(done.is_shown).reshape(1, -1).expand(FUNCTIONS, -1)
        done = replace(done, functions=drawn_in_blocks(model, images, shown, seed))
    if plain:
        write_picture(out, done.completed)
        written = [out]
    else:
        written = figure_pictures([completion_grid(done, f"{picture.name}, {done.is_shown.sum()} pixels kept")], out)
    for path in written:
        typer.echo(f"drew {path}")
    typer.echo(f"kept {done.is_shown.sum()} of {size**2} pixels; PSNR {psnr(done.truth, done.completed):.1f} dB")


@app.command(rich_help_panel=PICTURES)
def classify(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run of few-shot classification, or the pretrained omniglot.",
            callback=find,
        ),
    ],
    support: Annotated[Path, typer.Option(help="Folder of labelled pictures: a sub-folder for each class.")],
    query: Annotated[
        Path,
        typer.Option(
            help="Folder of pictures to classify. In sub-folders with the names of the classes, they are scored too."
        ),
    ],
    invert: Annotated[
        bool,
        typer.Option("--invert", help="Swap dark and light: models of Omniglot were trained on white ink on black."),
    ] = False,
    samples: Annotated[
        int, typer.Option(help="Average over this many sampled classifiers instead of the closed form.", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Classify your own pictures from a few labelled ones, with probabilities.

    The model adapts to the support pictures at once; there is no training. Each picture is cut to its central square
    and resized to the model's size.

    Example: nvdp classify runs/letters --support known/ --query new/
    """
    from nvdp.data.class_pools import class_files
    from nvdp.images.classify import PictureClassifier, query_files
    from nvdp.system import use_threads

    use_threads()
    classes = class_files(support)
    files, truth = query_files(query, list(classes))
    prediction = PictureClassifier.load(run, invert).classify(classes, files, samples)
    names = list(classes)
    rows: list[dict[str, Any]] = []
    for index, (file, true) in enumerate(zip(files, truth, strict=True)):
        probabilities = prediction.probabilities[index].tolist()
        row: dict[str, Any] = {
            "file": str(file.relative_to(query)),
            "class": names[int(prediction.top_class[index])],
            "probabilities": dict(zip(names, probabilities, strict=True)),
            "disagreement": float(prediction.disagreement[index]),
        }
        rows.append(row | ({"true": true} if true is not None else {}))
    known = [row for row in rows if "true" in row]
    accuracy = sum(row["class"] == row["true"] for row in known) / len(known) if known else None
    if as_json:
        typer.echo(json.dumps({"classes": names, "queries": rows, "accuracy": accuracy}))
        return
    _show(names, rows)
    if accuracy is not None:
        typer.echo(f"accuracy {accuracy:.1%} of {len(known)} pictures in folders of their class")


def _show(names: list[str], rows: list[dict[str, Any]]) -> None:
    """Every class has a column if they fit into half of the console; otherwise the most probable one is shown."""
    console = Console(emoji=False)
    columns = sum(max(cell_len(name), DIGITS) + BETWEEN for name in names)
    wide = len(names) > SHOWN_CLASSES or columns > console.width // 2
    titles = ["picture", "class", *(["probability"] if wide else map(escape, names))]
    table = Table(*(Column(title, overflow="fold") for title in titles))
    for row in rows:
        top, true = row["class"], row.get("true", row["class"])
        shown = [top] if wide else names
        cells = [f"{row['probabilities'][name]:.3f}" for name in shown]
        name = escape(top) if true == top else f"[red]{escape(top)} (is {escape(true)})[/]"
        table.add_row(escape(row["file"]), name, *cells)
    console.print(table)
