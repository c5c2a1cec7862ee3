"""Commands that look at a trained model: its scores, and a figure of its predictions."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.cli.options import TRAINING, AsJson, DataDir, Device, Force, Run, seed_option
from nvdp.errors import InputError


@app.command("eval", rich_help_panel=TRAINING)
def evaluate(
    run: Run,
    tasks: Annotated[
        int | None, typer.Option(help="How many tasks of a fixed set. (default: 2,048; of a classifier 600 episodes)")
    ] = None,
    seed: Annotated[int | None, seed_option("Which validation set. (default: the published one)")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Sampled functions for each task. (default: 16; of a classifier 10)")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Score on another family of tasks, e.g. omniglot, to see how a model transfers.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Images to score: validation, test or train. (default: validation; test of another set or of classes)"
        ),
    ] = None,
    way: Annotated[int | None, typer.Option(help="Classifiers: classes of an episode. (default: as trained)")] = None,
    shot: Annotated[
        int | None, typer.Option(help="Classifiers: support images of a class. (default: as trained)")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(help="Classifiers: query images of a class. (default: 15; of a folder as trained)")
    ] = None,
    transductive: Annotated[
        bool,
        typer.Option("--transductive", help="Classifiers: batch norm uses the statistics of all images of an episode."),
    ] = False,
    joint: Annotated[
        int | None, typer.Option(help="Regression: tasks whose targets are scored together; 0 for none. (default: 64)")
    ] = None,
    gates: Annotated[
        bool, typer.Option("--gates", help="Ask whether the posterior of a model with dropout rates lives in them.")
    ] = False,
    data_dir: DataDir = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a run on a fixed validation set, beside the exact GP where there is one.

    LL is the log-likelihood of all points, RLL of the context, PLL of the targets; higher is better. The second table
    has the likelihood of 100 targets together, by the number of context points. A few-shot
    classifier is scored on episodes of test classes: accuracy with its 95 % interval, negative log-likelihood (NLL) and
    expected calibration error (ECE).

    Example: nvdp eval runs/first --tasks 512
    """
    from nvdp.cards import FIT, card_of
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.evaluation.metrics import OF_FUNCTIONS
    from nvdp.evaluation.run import JOINT_TASKS, VALIDATION_SEED, EpisodeShape, evaluate_run, result_json
    from nvdp.system import keep_freed_memory, use_threads

    if (run / FIT).exists():
        raise InputError(
            f"{run} was fitted to a table: `nvdp score {run} test.csv` scores it on new tasks, `nvdp info {run}` tells "
            "its scores on held-out ones"
        )
    keep_freed_memory()
    use_threads()
    use_data_folder(data_dir)
    seed = VALIDATION_SEED if seed is None else seed
    shape = EpisodeShape(way, shot, queries, transductive)
    joint = JOINT_TASKS if joint is None else joint
    evaluation = evaluate_run(run, tasks, seed, samples, on, split, device, shape, joint, gates)
    if note := card_of(run).get("note"):
        evaluation["training"] = note
    if as_json:
        typer.echo(result_json(evaluation))
        return
    if "accuracy" in evaluation:
        _show_classifier(evaluation)
        return
    place = f"{evaluation['on']} ({evaluation['split']})" if "on" in evaluation else evaluation["task"]
    table = Table(title=f"{evaluation['model']} on {place}, {evaluation['tasks']} tasks")
    oracle = evaluation.get("oracle", {})
    for column in (
        "",
        "mean parameters",
        "E log p",
        "log E p",
        "± s.e.",
        *(["oracle", "attainable"] if oracle else []),
    ):
        table.add_column(column, justify="right")
    for name, row in evaluation["scores"].items():
        numbers = [row[key] for key in ("mean_parameters", "expected_log", "log_expected", "stderr")]
        numbers += [oracle[name], evaluation["attainable"][name]] if oracle else []
        table.add_row(name, *[_cell(number, ".3f") for number in numbers])
    Console().print(table)
    if OF_FUNCTIONS in evaluation:
        shown = _in_a_line(evaluation[OF_FUNCTIONS])
        typer.echo(f"E log p is of sampled hidden layers, the last layer in closed form; of whole functions: {shown}")
        if of_oracle := evaluation.get(f"oracle_{OF_FUNCTIONS}"):
            typer.echo(f"the same of the oracle's functions, with the smallest σ of the model: {_in_a_line(of_oracle)}")
    if "training" in evaluation:
        typer.echo(f"training: {evaluation['training']}")
    if oracle:
        typer.echo("oracle: the exact GP that knows each task's kernel; attainable: one that must infer it.")
        if evaluation["task"] == "gp":
            typer.echo(_paper_line(oracle))
    coverage = ", ".join(f"{value:.1%} (nominal {level})" for level, value in evaluation["coverage"].items())
    if oracle:
        coverage += ", high where the smallest σ of the model exceeds the noise"
    typer.echo(f"coverage of intervals: {coverage}; CRPS {evaluation['crps']:.4f}; RMSE {evaluation['rmse']:.4f}")
    rate = "" if evaluation["mean_rate"] is None else f"; mean dropout rate {evaluation['mean_rate']:.3f}"
    layers = "" if evaluation["rates"] is None else f" (by layer {', '.join(f'{r:.2f}' for r in evaluation['rates'])})"
    typer.echo(f"spread of sampled functions {evaluation['spread']:.4f}{rate}{layers}")
    if "joint" in evaluation:
        _show_joint(evaluation["joint"])
    if gates:
        _show_gates(evaluation)


def _cell(number: float | None, form: str, sign: str = "") -> str:
    """A number of a table; a dash where it is not known."""
    return "–" if number is None else f"{sign}{number:{form}}"


def _in_a_line(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in scores.items())


def _show_joint(joint: dict[str, Any]) -> None:
    """The likelihood of all targets together, by the size of the context."""
    sizes = joint["by_context"]
    together, chain = f"{joint['targets']} targets together", f"{joint['fed_back_targets']} targets fed back"
    rows = {
        "single points": "single",
        "  ceiling": "ceiling.single",
        f"{together}, Gaussian of samples": "gaussian",
        f"{together}, mixture of samples": "mixture",
        f"{together}, closed form": "closed_form",
        "  ceiling ": "ceiling.joint",
        f"{chain} one by one": "fed_back",
        "  ceiling  ": "ceiling.fed_back",
        "share in the 50 % interval": "coverage50",
        "spread of sampled functions": "spread",
        "exact standard deviation": "exact_std",
    }
    table = Table(f"context points ({joint['tasks']} tasks)", *sizes)
    for name, key in rows.items():
        part, _, leaf = key.partition(".")
        numbers = [row.get(part, {}).get(leaf) if leaf else row.get(part) for row in sizes.values()]
        if None not in numbers:
            table.add_row(name, *[f"{number:.2f}" for number in numbers])
    Console().print(table)
    if "ceiling" in next(iter(sizes.values())):
        typer.echo("ceiling: the exact GP that must infer the kernel from the same points.")


def _paper_line(oracle: dict[str, float]) -> str:
    """The paper's NVDP in table 1."""
    from nvdp.experiments.results import paper_numbers

    setting = "learned" if oracle["LL"] > 0 else "fixed"  # with σ = 1 no LL is above −0.919
    numbers = paper_numbers()["table1"][f"{setting} variance"]["nvdp"]
    scores = ", ".join(f"{name} {mean:.2f}" for name, (mean, _) in numbers.items())
    return f"the paper's NVDP, {setting} variance, after 500,000 steps (table 1), E log p of whole functions: {scores}"


def _show_gates(evaluation: dict[str, Any]) -> None:
    """The gates, and the verdict that their numbers give."""
    table = Table("gate", "value", "± s.e.", "at least", "")
    for name, gate in evaluation["gates"].items():
        numbers = (f"{gate[key]:.3f}" for key in ("value", "stderr", "least"))
        table.add_row(name, *numbers, "passed" if gate["passed"] else "failed")
    Console().print(table)
    typer.echo(evaluation["verdict"])


def _show_classifier(scores: dict[str, Any]) -> None:
    """What `nvdp eval` prints for a few-shot classifier."""
    shape = f"{scores['way']}-way {scores['shot']}-shot"
    kind = ", transductive" if scores["transductive"] else ""
    table = Table(
        "", "accuracy", "95 % interval", "NLL", "ECE",
        title=f"{scores['model']} on {scores['task']} ({scores['split']}), {shape}, {scores['tasks']} episodes{kind}",
    )  # fmt: skip
    for title, each in (
        ("without sampling", scores["without_sampling"]),
        (f"mean of {scores['samples']} samples", scores),
    ):
        numbers = _cell(each["interval95"], ".2%", "± "), f"{each['nll']:.3f}", f"{each['ece']:.3f}"
        table.add_row(title, f"{each['accuracy']:.2%}", *numbers)
    if nearest := scores.get("nearest_mean"):
        interval = _cell(nearest["interval95"], ".2%", "± ")
        table.add_row("nearest class mean", f"{nearest['accuracy']:.2%}", interval, "", "")
    Console().print(table)


@app.command(rich_help_panel=TRAINING)
def plot(
    run: Run,
    out: Annotated[Path, typer.Option(help="The PNG to write; a PDF goes beside it.")] = Path("functions.png"),
    seed: Annotated[int, seed_option("Which three functions.")] = 0,
    force: Force = False,
) -> None:
    """Draw what a model of GP functions predicts for three new functions, beside the exact GP.

    Each prediction is from five points.

    Example: nvdp plot gp --out functions.png
    """
    from dataclasses import replace as changed

    from nvdp.plots import figure_functions, figure_paths, five_point_task, gp_function_panel, oracle_panel
    from nvdp.system import check_outputs
    from nvdp.training.run_folder import load_run

    check_outputs(figure_paths(out), force=force)
    config, model, _ = load_run(run)
    if config.task != "gp":
        raise InputError(f"{run} was trained on {config.task}; nvdp plot draws models of gp functions")
    panels = []
    for column in range(3):
        task = five_point_task(seed + column)
        title = f"new function {column + 1}"
        panels.append(gp_function_panel(model, title, config.model.name.upper(), task))
        panels.append(changed(oracle_panel(task, "exact GP"), title=title))
    for path in figure_functions(panels, out):
        typer.echo(f"drew {path}")
