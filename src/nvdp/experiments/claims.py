"""The paper's claims beside what was measured: verdicts and tables, computed from result files alone."""

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

from nvdp.experiments.entries import read_entries
from nvdp.experiments.report_fewshot import REGIMES, best_other, nvdp_ahead, printed_value
from nvdp.experiments.report_tables import (
    Results,
    markdown_table,
    mean_and_error,
    number_or_nothing,
    paired_difference,
    standard_error,
)
from nvdp.experiments.results import Result, paper_numbers
from nvdp.experiments.schemas import GATES, LIMITS
from nvdp.experiments.studies import ALIVE_SEEDS, ONE_STD, RIVAL_SEEDS, RIVALS, STD_OF_NETWORK, TNP_MODELS, WITHOUT_KL
from nvdp.experiments.table1 import NAMES
from nvdp.experiments.table3 import METHODS, SETTINGS

CLEAR = 2.0  # standard errors from which a difference is called clear
SIZES = ("3", "5", "10", "20")  # of contexts whose targets are scored together
GOALS = {"3": 0.65, "5": 0.75, "10": 0.9, "20": 1.05}  # that were set for plain NVDP
FLOOR_RATE = 0.02  # a mean rate below this is near the floor of 0.01
NEW, OLD = "gp-nvdp", "gp-nvdp-0.1"  # plain NVDP, with its last layer integrated out and by the paper's bound
FLAGSHIP = "gp"
BY_RATES = (NEW, "gp-rates")  # the context reaches predictions through the rates alone
# (RBF, Matérn-5/2): mean log-likelihood a target as published, and ceilings of single points and of all together
PUBLISHED = {"TNP-D": (1.39, 0.95), "TNP-ND": (1.46, 1.02), "TNP-A": (1.63, 1.21)}
TNP_TASKS = {"gp-tnp": "RBF", "gp-tnp-matern": "Matérn-5/2"}
REPRODUCED, NOT, REVERSED = "reproduced", "not reproduced", "reversed"


def gate_files(results: Results) -> dict[str, dict[str, Any]]:
    """What `nvdp eval NAME --gates --json` printed, by model."""
    paths = sorted((results.folder / "gates").glob("*.json"))
    return {path.stem: read_entries(path, GATES, "model", "scores", "joint", "gates") for path in paths}


def joint_cell(evaluation: dict[str, Any], way: str = "gaussian") -> str:
    """The log-likelihood of targets together at each size of the context; "" if it was not measured."""
    by_context = evaluation.get("joint", {}).get("by_context", {})
    values = [by_context[size].get(way) for size in SIZES if size in by_context]
    return " / ".join(f"{value:.2f}" for value in values if value is not None)


def gates_table(results: Results) -> str:
    """One row for each question, one column for each model whose gates were measured."""
    models = gate_files(results)
    if not models:
        return ""
    questions: dict[str, Any] = {
        "LL mean / E log": lambda each: " / ".join(
            f"{each['scores']['LL'][flavour]:.3f}" for flavour in ("mean_parameters", "expected_log")
        ),
        "targets together, Gaussian of sampled functions": joint_cell,
        "the same, closed form": lambda each: joint_cell(each, "closed_form"),
        "targets fed back one by one": lambda each: (
            f"{joint_cell(each, 'fed_back')} ({each['joint']['fed_back_targets']} targets)"
        ),
        "spread of functions": lambda each: joint_cell(each, "spread"),
        "exact standard deviation": lambda each: joint_cell(each, "exact_std"),
        "rates by layer": lambda each: ", ".join(f"{rate:.3f}" for rate in each["rates"]),
    }
    names = {name: None for each in models.values() for name in each["gates"]}
    lines = [[question, *(ask(each) for each in models.values())] for question, ask in questions.items()]
    for name in names:
        answers = [each["gates"].get(name) for each in models.values()]
        lines.append([f"gate: {name}", *("" if answer is None else _gate(answer) for answer in answers)])
    return markdown_table(["3 / 5 / 10 / 20 context points", *(f"`{name}`" for name in models)], lines)


def _gate(answer: dict[str, Any]) -> str:
    error = f" ± {answer['stderr']:.2f}" if answer["stderr"] else ""
    return f"{answer['value']:.2f}{error}, {'passed' if answer['passed'] else 'failed'}"


def gates_in_words(results: Results) -> str:
    """The verdict of each model, the ceilings, and the goals of plain NVDP."""
    models = gate_files(results)
    sentences = [f"- `{name}`: {each['verdict']}" for name, each in models.items()]
    if FLAGSHIP in models:
        joint = models[FLAGSHIP]["joint"]
        together, fed_back = (
            " / ".join(f"{joint['by_context'][size]['ceiling'][way]:.2f}" for size in SIZES)
            for way in ("joint", "fed_back")
        )
        sentences.append(
            f"- A GP that must infer its kernel, with a noise of 0.1, reaches {together} for targets together,\n"
            f"  and {fed_back} for {joint['fed_back_targets']} targets fed back, each with σ of at least 0.1."
        )
    if NEW in models:
        goals = " / ".join(f"{goal:.2f}" for goal in GOALS.values())
        missed = [f"`{name}` {_missed(models[name])}" for name in BY_RATES if name in models]
        sentences.append(f"- Goals where rates are the only path: {goals}. Missed: {'; '.join(missed)}.")
    return "\n".join(sentences)


def _missed(evaluation: dict[str, Any]) -> str:
    """Which goals for targets together are missed, and by how much."""
    by_context = evaluation["joint"]["by_context"]
    gaps = {size: goal - by_context[size]["gaussian"] for size, goal in GOALS.items()}
    return ", ".join(f"{size} points by {gap:.2f}" for size, gap in gaps.items() if gap > 0) or "none"


def limits_in_words(results: Results) -> str:
    """What plain NVDP loses where (`benchmarks/limits.py`)."""
    path = results.folder / "limits" / f"{NEW}.json"
    if not path.exists():
        return ""
    told = read_entries(path, LIMITS)
    rates, choice = told["inference"], told["choice"]
    gained = rates["after_steps"] - rates["inferred"]
    sentences = [
        f"- Inference: LL of `{NEW}` given 100 points is {rates['inferred']:.2f}. {rates['steps']} gradient steps on\n"
        f"  the rates of each task, which see all points, raise it by {gained:.2f}: encoder and rates lose it.\n"
        f"  The decoder loses the rest, to {rates['limit_of_sigma']:.2f}, the limit that σ sets.",
        f"- Choice of 20 points, LL minus that of random points, {choice['tasks']} tasks:",
    ]
    for name, gain in choice["gain_over_random"].items():
        sentences.append(
            f"  {name}: {gain['mean']:+.2f} ± {gain['stderr']:.2f} (median {gain['median']:+.2f}, "
            f"5 % quantile {gain['q05']:+.2f})."
        )
    apart = ", ".join(f"{name} {distance:.3f}" for name, distance in choice["smallest_distance"].items())
    return "\n".join([*sentences, f"  Smallest distance of two points, by who chose: {apart}."])


def alive_table(results: Results) -> str:
    """Objectives of plain NVDP: single points, targets together, and whether functions spread where they should."""
    lines = []
    for name, row in results.runs("alive").items():
        each = row["evaluation"]
        scores = [f"{each['scores']['LL'][flavour]:.3f}" for flavour in ("mean_parameters", "expected_log")]
        cells = [f"`{name}`", *scores, joint_cell(each)]
        cells.append(number_or_nothing(each["joint"]["spread_follows_oracle"], ".2f"))
        cells += [", ".join(f"{rate:.2f}" for rate in each["rates"]), f"{row['steps']:,}", f"{row['seconds']:.0f}"]
        lines.append(cells)
    head = ["run", "LL mean", "LL E log", "joint 3 / 5 / 10 / 20", "spread ~ exact std", "rates", "steps", "seconds"]
    return markdown_table(head, lines) if lines else ""


def prior_differences(results: Results, base: str, score: str = "LL") -> list[float]:
    """LL (or, as ``joint``, that of targets together at 5 points) with the variational prior minus without, by seed."""
    rows, without = results.runs("alive"), WITHOUT_KL[base]
    names = [(base, without), *((f"{base}-seed-{seed}", f"{without}-seed-{seed}") for seed in ALIVE_SEEDS)]
    pairs = [(rows[a], rows[b]) for a, b in names if a in rows and b in rows]
    return paired_difference([_score(a, score) for a, _ in pairs], [_score(b, score) for _, b in pairs])


def _score(result: Result, score: str) -> float:
    each = result["evaluation"]
    value = each["joint"]["by_context"]["5"]["gaussian"] if score == "joint" else each["scores"]["LL"]["expected_log"]
    return float(value)


def alive_in_words(results: Results) -> str:
    """What the variational prior is worth under the same objective."""
    sentences = []
    for base, without in WITHOUT_KL.items():
        words = []
        for score, title in (("LL", "*LL E log*"), ("joint", "targets together at 5 points")):
            gaps = prior_differences(results, base, score)
            if len(gaps) > 1:
                words.append(f"{title} {statistics.mean(gaps):+.3f} ± {standard_error(gaps):.3f}")
        if words:
            sentences.append(f"- `{base}` minus `{without}`, {len(gaps)} seeds: {'; '.join(words)}.")
    return "\n".join(["With the variational prior minus without it:", "", *sentences]) if sentences else ""


def rivals_table(results: Results) -> str:
    """Models whose targets read the context: means over seeds ± standard error; models with all seeds only."""
    rows, lines = results.runs("rivals"), {}
    for title in RIVALS:
        runs = [rows.get(f"{title}-seed-{seed}") for seed in RIVAL_SEEDS]
        own = [run["evaluation"] for run in runs if run is not None]
        if len(own) < len(RIVAL_SEEDS):
            continue
        by_score = [[each["scores"]["LL"]["mean_parameters"] for each in own]]
        by_score += [[each["scores"][metric]["expected_log"] for each in own] for metric in ("LL", "PLL")]
        ways = [(size, way) for way in ("gaussian", "fed_back") for size in ("5", "20")]
        by_score += [[each["joint"]["by_context"][size][way] for each in own] for size, way in ways]
        steps, seconds = rows[f"{title}-seed-0"]["steps"], statistics.mean(run["seconds"] for run in runs if run)
        cells = [*map(mean_and_error, by_score), f"{steps:,}", f"{seconds:.0f}"]
        lines[statistics.mean(by_score[0])] = [f"`{title}`", *cells]
    head = ["model", "LL mean", "LL E log", "PLL E log", "together, 5", "together, 20", "fed back, 5", "fed back, 20"]
    ordered = [lines[score] for score in sorted(lines, reverse=True)]
    return markdown_table([*head, "steps", "seconds"], ordered) if lines else ""


def tnp_table(results: Results) -> str:
    """Scores of the protocol of Transformer Neural Processes beside published numbers and ceilings."""
    rows = results.runs("tnp")
    lines = []
    for task, kernel in TNP_TASKS.items():
        found = {name: rows[f"{name}-{task}"] for name in TNP_MODELS if f"{name}-{task}" in rows}
        for name, row in found.items():
            each, own = row["evaluation"], row["evaluation"].get("own_contexts")
            together = "" if own is None else f"{own['together']:.3f} ± {own['stderr']:.3f}"
            chain = f"{own['fed_back']:.3f} ± {own['fed_back_stderr']:.3f}" if own and "fed_back" in own else ""
            single = each["scores"]["PLL"]
            cells = [kernel, f"`{name}`", f"{single['mean_parameters']:.3f} ± {single['stderr']:.3f}", together, chain]
            lines.append([*cells, f"{row['steps']:,}", f"{row['seconds']:.0f}"])
        if found:
            each = next(iter(found.values()))["evaluation"]
            own = each.get("own_contexts", {})
            joint = f"{own['ceiling']:.3f}" if "ceiling" in own else ""
            single = f"{each['attainable']['PLL']:.3f}"
            lines.append([kernel, "GP that must infer its kernel", single, joint, joint, "", ""])
            place = list(TNP_TASKS).index(task)
            lines += [
                [kernel, f"{name}, published", *_published(name, scores[place]), "100,000", ""]
                for name, scores in PUBLISHED.items()
            ]
    head = ["kernel", "model", "single points", "together", "fed back", "steps", "seconds"]
    return markdown_table(head, lines) if lines else ""


def _published(name: str, score: float) -> tuple[str, str, str]:
    """TNP-D predicts targets by themselves, TNP-ND together, TNP-A one after another."""
    single, together, chain = (f"{score:.2f}" if name == own else "" for own in ("TNP-D", "TNP-ND", "TNP-A"))
    return single, together, chain


def claims_table(results: Results) -> str:
    """Each claim of the paper with a verdict and the numbers it rests on."""
    lines = [list(line) for line in _claims(results)]
    return markdown_table(["claim", "verdict", "evidence"], lines) if lines else ""


def _claims(results: Results) -> Iterator[tuple[str, str, str]]:
    models = gate_files(results)
    for name, recipe in ((NEW, "last layer integrated out"), (OLD, "the paper's bound")):
        if name in models:
            each = models[name]
            row, follows = each["joint"]["by_context"]["3"], each["gates"]["spread follows"]
            evidence = f"spread {row['spread']:.2f} at 3 points, exact {row['exact_std']:.2f}; correlation "
            evidence += f"{follows['value']:.2f} (`results/gates/{name}.json`)"
            verdict = REPRODUCED if follows["passed"] else NOT
            yield f"Figure 2: functions from few points differ where the task is unknown ({recipe})", verdict, evidence
    figure3 = results.figure("figure3")
    if figure3 is not None and "NVDP" in figure3["gain"]:
        gain = figure3["gain"]["NVDP"]
        claim = "Figure 3: NVDP's own choice of points is good (the paper's bound)"
        yield claim, *_signed(gain["mean"][-1], gain["stderr"][-1], "`results/figure3`")
    for name in (*BY_RATES, FLAGSHIP):
        gate = models[name]["gates"].get("own choice") if name in models else None
        if gate is not None and gate["stderr"] is not None:
            verdict, evidence = _signed(gate["value"], gate["stderr"], f"`results/gates/{name}.json`")
            yield f"Figure 3: the same for `{name}`", verdict, evidence
    figure4 = results.figure("figure4")
    for data, scores in {} if figure4 is None else figure4["pixels"].items():
        model, choices = list(scores.items())[-1]
        gain = choices["uncertainty"]["100"]["PSNR"] - choices["random"]["100"]["PSNR"]
        evidence = f"{gain:+.1f} dB with 100 pixels, `{model.lower()}` (`results/figure4`)"
        yield (
            f"Figure 4: chosen pixels are better than random ones, {data}",
            REPRODUCED if gain > 0 else REVERSED,
            evidence,
        )
    toy = results.runs("figure9")
    for name, sees in (("nvdp", "(x, r)"), ("nvdp-decoder-x", "x alone")):
        if name in toy and (rate := toy[name]["evaluation"]["mean_rate"]) is not None:
            verdict = NOT if rate < FLOOR_RATE else REPRODUCED
            yield (
                f"Figure 9: rates adapt in the toy, decoder sees {sees}",
                verdict,
                f"mean rate {rate:.3f}, floor 0.010",
            )
    tables = {"Table 1, learned variance": results.table1("learned")}
    tables["Table 1, long runs with Muon"] = results.runs("long")
    tables |= {f"Table 2, {title}": results.table2(title) for title in ("MNIST", "MNIST to Omniglot", "CelebA")}
    for title, rows in tables.items():
        own = {name: rows[name] for name in NAMES if name in rows}
        if "nvdp" in own and len(own) > 1:
            yield f"{title}: NVDP is first of {len(own)} models", *_first(own)
    yield from _few_shot(results)
    for base, noise in ((ONE_STD, "one σ"), (STD_OF_NETWORK, "σ of x")):
        gaps = prior_differences(results, base)
        if len(gaps) > 1:
            mean, error = statistics.mean(gaps), standard_error(gaps)
            claim = f"The variational prior helps NVDP by E log (last layer integrated out, {noise})"
            yield claim, *_signed(mean, error, "`results/alive`")
    papers = results.table1("learned")
    for name in ("np", "np+cnp"):
        if name in papers and f"{name}+vp" in papers:
            own, other = (papers[each]["evaluation"]["scores"]["LL"] for each in (f"{name}+vp", name))
            error = (own["stderr"] ** 2 + other["stderr"] ** 2) ** 0.5
            verdict, evidence = _signed(own["expected_log"] - other["expected_log"], error, "`results/table1`")
            yield f"The variational prior helps {name.upper()} by E log (one run)", verdict, evidence


def _few_shot(results: Results) -> Iterator[tuple[str, str, str]]:
    """Of table 3, the columns in which the paper has NVDP above all others."""
    printed = paper_numbers()["table3"]
    for setting, (regime, title) in itertools.product(SETTINGS, REGIMES.items()):
        rows = results.table3(setting, regime)
        others = [printed_value(row[setting.paper]) for name, row in printed.items() if name != METHODS["nvdp"]]
        if not set(METHODS) <= set(rows) or printed_value(printed[METHODS["nvdp"]][setting.paper]) <= max(others):
            continue
        best = best_other(rows)
        assert best is not None
        how = "end to end" if regime == "end-to-end" else f"{title}, which is not the paper's way"
        verdict, evidence = _signed(*nvdp_ahead(rows, best), f"10 samples, best other `{best}`", "points", digits=2)
        yield f"Table 3, {setting.paper}: NVDP is first of the eight methods ({how})", verdict, evidence


def _signed(value: float, error: float, source: str, unit: str = "nats", digits: int = 3) -> tuple[str, str]:
    """Reproduced if clearly above 0, reversed if clearly below, otherwise not reproduced.

    >>> _signed(-0.46, 0.04, "a file")
    ('reversed', '-0.460 ± 0.040 nats (a file)')
    """
    verdict = REPRODUCED if value >= CLEAR * error else REVERSED if value <= -CLEAR * error else NOT
    return verdict, f"{value:+.{digits}f} ± {error:.{digits}f} {unit} ({source})"


def _first(rows: dict[str, Result]) -> tuple[str, str]:
    """Whether NVDP has the highest LL of some models by the paper's formula, E log."""
    scores = {name: row["evaluation"]["scores"]["LL"]["expected_log"] for name, row in rows.items()}
    best = max(scores, key=scores.__getitem__)
    evidence = f"LL E log {scores['nvdp']:.3f}, best `{best}` {scores[best]:.3f}, {rows['nvdp']['steps']:,} steps"
    return REPRODUCED if best == "nvdp" else NOT, evidence
