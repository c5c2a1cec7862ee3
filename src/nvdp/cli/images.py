"""The command that completes a picture."""

from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.errors import InputError
from nvdp.loading import find_run


@app.command()
def complete(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run on mnist, omniglot, celeba or images, or the pretrained mnist.",
            callback=lambda run: find_run(run),
        ),
    ],
    picture: Annotated[Path, typer.Argument(help="A picture; its central square is resized to the model's size.")],
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("completed.png"),
    keep: Annotated[float, typer.Option(help="The share of pixels that the model is shown.")] = 0.1,
    plain: Annotated[bool, typer.Option("--plain", help="Write the completed picture alone.")] = False,
    samples: Annotated[int, typer.Option(help="Sampled pictures behind mean and deviation.", min=2)] = 16,
    seed: Annotated[int, typer.Option(help="Which pixels are kept, and which samples are drawn.")] = 0,
) -> None:
    """Complete a picture from some of its pixels.

    Draws the kept pixels, the completion, two samples and the standard deviation side by side.

    Example: nvdp complete mnist seven.png --keep 0.1 --out done.png
    """
    from nvdp.data.image_files import open_picture, picture_array, picture_channels, write_picture
    from nvdp.data.registry import IMAGE_TASKS, image_size
    from nvdp.images.completion import check_picture, psnr, random_shown
    from nvdp.images.completion import complete as complete_picture
    from nvdp.system import use_threads
    from nvdp.training.run_folder import load_run

    use_threads()
    config, model, _ = load_run(run)
    if config.task not in IMAGE_TASKS:
        raise InputError(f"{run} was trained on {config.task}; nvdp complete needs one of {', '.join(IMAGE_TASKS)}")
    size = image_size(config.task, config.data)
    opened = open_picture(picture, str(picture))
    channels = picture_channels(opened) if config.data.channels is None else config.data.channels
    check_picture(model, channels, str(picture))
    pixels = picture_array(opened, size, channels)
    done = complete_picture(model, pixels, random_shown(size, keep, seed), samples, seed)
    if plain:
        write_picture(out, done.completed)
        written = [out]
    else:
        from nvdp.plots import completion_grid, figure_pictures

        written = figure_pictures([completion_grid(done, f"{picture.name}, {done.is_shown.sum()} pixels kept")], out)
    for path in written:
        typer.echo(f"drew {path}")
    typer.echo(f"kept {done.is_shown.sum()} of {size**2} pixels; PSNR {psnr(done.truth, done.completed):.1f} dB")
