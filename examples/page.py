"""Write the numbers of examples and benchmarks from results/ into the pages of docs/.

    python examples/page.py

Text between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` is replaced. If a result file is missing, the text says
which command makes it.
"""

import json
import re
from pathlib import Path
from typing import Any

from nvdp.evaluation.metrics import OF_FUNCTIONS
from nvdp.experiments.results import paper_numbers

HERE = Path(__file__).resolve().parent.parent
EVALUATIONS = (2, 3, 4, 6, 8, 10)
DEVELOPERS = ("dev", "docs", "release", "mutants")  # extras that only work on the package needs


def result(path: str) -> dict[str, Any] | None:
    file = HERE / "results" / path
    return json.loads(file.read_text()) if file.exists() else None


METHODS = {
    "ours": "general",
    "sklearn": "scikit-learn GP",
    "gpytorch": "GPyTorch GP",
    "forest": "random forest",
    "boosting": "gradient boosting",
}


def real() -> str:
    from nvdp.bench.draw import draw
    from nvdp.bench.real import GPS, summary

    found = result("bench/real.json")
    if found is None:
        return "Made by `nvdp bench --suite real --json results/bench/real.json`."
    draw(found, HERE / "docs" / "figures" / "bench-real.png")
    rows = [row for row in summary(found["rows"]) if row["part"] == "final"]
    lines = ["| points | sets | method | mean LL | median LL | RMSE | inside 90 % | inside 50 % |", "|" + " --- |" * 8]
    for row in rows:
        numbers = f"{row['LL']:.2f} | {row['median_LL']:.2f} | {row['RMSE']:.3f}"
        shares = f"{row['coverage90']:.1%} | {row['coverage50']:.1%}"
        lines.append(f"| {row['context']} | {row['sets']} | {METHODS[row['method']]} | {numbers} | {shares} |")
    ratios = []
    for size in dict.fromkeys(row["context"] for row in rows):
        errors = {row["method"]: row["RMSE"] for row in rows if row["context"] == size}
        if not set(GPS) & set(errors):
            continue
        ratios.append(f"{errors['ours'] / min(errors[name] for name in GPS if name in errors) - 1:+.1%} at {size}")
    return "\n".join(
        [*lines, "", f"RMSE of `general` against the better Gaussian process: {', '.join(ratios)} points."]
    )


def real_losses() -> str:
    """The final sets on which a Gaussian process is ahead by 0.1 nats or more, by size."""
    from nvdp.bench.real import GPS

    found = result("bench/real.json")
    if found is None:
        return ""
    lines = ["| set | points | general LL | best GP LL | RMSE, general / best GP |", "| --- | --- | --- | --- | --- |"]
    for row in found["rows"]:
        scores = row["scores"]
        if not set(GPS) & set(scores):
            continue
        rival = max((scores[name] for name in GPS if name in scores), key=lambda each: each["LL"])
        ours = scores["ours"]
        if row["part"] == "final" and rival["LL"] > ours["LL"] + 0.1:
            both = f"{ours['RMSE']:.3f} / {rival['RMSE']:.3f}"
            lines.append(f"| {row['set']} | {row['context']} | {ours['LL']:.2f} | {rival['LL']:.2f} | {both} |")
    return "\n".join(lines)


def real_boosting() -> str:
    """By size: on how many of the final sets gradient boosting has the lower error, or the higher log-likelihood."""
    from nvdp.bench.real import SIZES

    found = result("bench/real.json")
    rows = [row for row in (found or {"rows": []})["rows"] if row["part"] == "final" and "boosting" in row["scores"]]
    if not rows:
        return "Made by `nvdp bench --suite real --json results/bench/real.json`."
    lines = ["| points | sets | lower RMSE than general | higher LL than general |", "|" + " ---: |" * 4]
    for size in SIZES:
        pairs = [(row["scores"]["boosting"], row["scores"]["ours"]) for row in rows if row["context"] == size]
        if pairs:
            lower = sum(trees["RMSE"] < ours["RMSE"] for trees, ours in pairs)
            higher = sum(trees["LL"] > ours["LL"] for trees, ours in pairs)
            lines.append(f"| {size:,} | {len(pairs)} | {lower} | {higher} |")
    return "\n".join(lines)


def mixed_model() -> str:
    """`nvdp fit` beside a mixed model on tables of short series, and a count of where each is ahead."""
    found = result("bench/tables.json")
    if found is None:
        return "Made by `nvdp bench --suite tables --json results/bench/tables.json`."
    lines = ["| table, context | nvdp fit LL | mixed model LL | RMSE, nvdp fit / mixed model |", "|" + " --- |" * 4]
    for row in found["rows"]:
        if row["context"] == 4:
            both = f"{row['ours_RMSE']:.3g} / {row['mixed_RMSE']:.3g}"
            lines.append(f"| {row['shape']} | {row['ours_LL']:.2f} | {row['mixed_LL']:.2f} | {both} |")
    behind = [row["shape"] for row in found["rows"] if row["mixed_LL"] > row["ours_LL"]]
    total = len(found["rows"])
    ends = f"in {len(behind)} of all {total} cases (2, 4 or 8 points)"
    return "\n".join([*lines, "", f"The mixed model has the higher LL {ends}: {'; '.join(behind) or 'none'}."])


def choose() -> str:
    found = result("bench/choose.json")
    if found is None or not found["optimisation"]:
        return "Made by `python benchmarks/choose.py`."
    runs = [run for each in found["active"].values() for run in each]
    lines = ["| 20 points of each of 16 sets | RMSE | LL | runs won by RMSE |", "| --- | --- | --- | --- |"]
    for way, other in (("chosen", "random"), ("random", "chosen")):
        means = [sum(run[way][metric] for run in runs) / len(runs) for metric in ("RMSE", "LL")]
        won = sum(run[way]["RMSE"] < run[other]["RMSE"] for run in runs)
        lines.append(f"| {way} | {means[0]:.3f} | {means[1]:.2f} | {won} of {len(runs)} |")
    ways = list(next(iter(found["optimisation"].values()))[0])
    lines += [
        "",
        "| regret after 6 / 10 / 20 evaluations | " + " | ".join(ways) + " |",
        "|" + " --- |" * (len(ways) + 1),
    ]
    for name, each in found["optimisation"].items():
        cells = []
        for way in ways:
            means = [sum(run[way][count - 1] for run in each) / len(each) for count in (6, 10, 20)]
            cells.append(" / ".join(f"{mean:.2f}" for mean in means))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def general() -> str:
    found = result("bench/general.json")
    if found is None:
        return "Made by `python benchmarks/general.py`."
    lines = [
        "| case | answer |",
        "| --- | --- |",
        *(f"| {name} | {text} |" for name, text in found["behaviour"].items()),
    ]
    lines += ["", "| points | fit + predict at 400 queries, processor ms |", "| --- | --- |"]
    lines += [f"| {row['context']} | {row['ms']:.1f} |" for row in found["times"]]
    lines += ["", "| points of its prior | tasks | LL | inside 90 % | inside 50 % |", "|" + " ---: |" * 5]
    for row in found["prior"]:
        shares = f"{row['coverage90']:.1%} ± {row['coverage90_stderr']:.1%} | {row['coverage50']:.1%}"
        lines.append(f"| {row['context']} | {row['tasks']:,} | {row['LL']:.2f} | {shares} |")
    lines += ["", "| points | general LL | exact posterior LL | gap |", "| --- | --- | --- | --- |"]
    for row in found["gap"]:
        gap = f"{row['exact'] - row['ours']:.2f} ± {row['stderr']:.2f}"
        lines.append(f"| {row['context']} | {row['ours']:.2f} | {row['exact']:.2f} | {gap} |")
    lines += ["", "| points | joint LL per point, one by one | blocks of 5 | as if independent |", "|" + " --- |" * 4]
    for row in found["in_turn"]:
        values = (row[name] for name in ("one_by_one", "blocks_of_5", "independent"))
        lines.append(f"| {row['context']} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return "\n".join(lines)


def images() -> str:
    found = result("fewshot-images/omniglot.json")
    if found is None:
        return "Made by `python examples/few_shot_images.py`."
    one, five = found["accuracy"]["1-shot"], found["accuracy"]["5-shot"]
    lines = ["| accuracy | 1-shot | 5-shot |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {name} | {100 * one[name]:.1f} % | {100 * five[name]:.1f} % |" for name in one])


def store() -> str:
    found = result("bench/store.json")
    if found is None:
        return "Made by `python benchmarks/store.py --both --json results/bench/store.json`."
    kinds = {"fill": "fill", "observe_batched": "observe", "predict_batched": "predict"}
    titles = {name: f"{title} in batches of {found['batch']:,}" for name, title in kinds.items()}
    titles |= {"observe": "observe one by one", "predict": "predict one by one"}
    stores = found["stores"]
    lines = [f"| tasks per second | {' | '.join(stores)} |", f"| --- |{' ---: |' * len(stores)}"]
    for kind, title in titles.items():
        speeds = [each[f"{kind}_per_second"] for each in stores.values()]
        lines.append(f"| {title} | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |")
    rows = {"tasks that were filled in": "tasks", "bytes of a task on disk": "bytes_per_task"}
    for title, name in rows.items():
        lines.append(f"| {title} | {' | '.join(f'{each[name]:,.0f}' for each in stores.values())} |")
    whole = " and ".join(f"{each['bytes'] / 1e9:.2f} GB on {name}" for name, each in stores.items())
    times = " and ".join(
        f"{each['tasks'] / each['fill_per_second'] / 60:.1f} minutes on {name}" for name, each in stores.items()
    )
    note = f"These tasks take {whole}; filling took {times}. Server and client share {found['cores']} cores;"
    note += " seconds are of wall time. The server waits for its disk at every transaction; the file does so with"
    note += " `power_safe=True`."
    return "\n".join([*lines, "", note])


def in_turn() -> str:
    """Targets that are fed back one at a time, by updates and by adapting again."""
    found = result("bench/in_turn.json")
    if found is None:
        return "Made by `python benchmarks/in_turn.py --json results/bench/in_turn.json`."
    sizes = list(dict.fromkeys(row["targets"] for row in found["rows"]))
    lines = ["| milliseconds a target | " + " | ".join(f"{size} targets" for size in sizes) + " |"]
    lines.append("| --- |" + " ---: |" * len(sizes))
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["model"] == model]
        for way, title in (("updated", "updates"), ("adapted_again", "adapting again")):
            if f"{way}_ms" in rows[0]:
                cells = (f"{row[f'{way}_ms'] / row['targets']:.1f}" for row in rows)
                lines.append(f"| `{model}`, {title} | {' | '.join(cells)} |")
    about = f"{found['machine']['processor']}, 1 thread, from {found['rows'][0]['context']} points of context"
    return "\n".join([*lines, "", f"*{about}; `python benchmarks/in_turn.py`.*"])


WHY = "docs/findings.md#posterior-collapse-what-the-dropout-rates-carry"


def demo() -> str:
    """Scores and seconds of the demo beside the paper's NVDP."""
    found = result("bench/start.json")
    rows = [row for row in (found or {"rows": []})["rows"] if row["what"] == "demo"]
    if found is None or not rows:
        return "Made by `python benchmarks/start.py --json results/bench/start.json`."
    (row,), names = rows, ("LL", "RLL", "PLL")
    ours = " / ".join(f"{row['scores'][name]['expected_log']:.2f}" for name in names)
    attainable = " / ".join(f"{row['attainable'][name]:.2f}" for name in names)
    printed = paper_numbers()["table1"]["learned variance"]["nvdp"]
    paper = " / ".join(f"{printed[name][0]:.2f}" for name in names)
    took = f"{row['processor_seconds']:.0f} seconds of one core ({row['processor']})"
    lines = [
        f"The demo's training took {took}. On {row['tasks']:,} tasks its",
        f"LL / RLL / PLL is {ours} by E log, with the last layer in closed form; the paper's NVDP has {paper},",
        f"attainable are {attainable}. (`python benchmarks/start.py`)",
    ]
    if OF_FUNCTIONS in row:
        sampled = " / ".join(f"{row[OF_FUNCTIONS][name]:.2f}" for name in names).replace("-", "−")
        lines += [f"With whole functions sampled, as in the paper, it is {sampled}:", f"[what that means]({WHY})."]
    return "\n".join(lines)


def estimator() -> str:
    found = result("bench/estimator.json")
    if found is None:
        return "Made by `python benchmarks/estimator.py --json results/bench/estimator.json`."
    lines = [
        "| prediction from | error of mean | of standard deviation | of 5 % and 95 % quantiles | CPU time |",
        "| --- | --- | --- | --- | --- |",
    ]
    titles = {
        "closed form": "closed form (default)",
        "64 functions": "64 functions",
        "1000 functions": "1,000 functions",
    }
    times = {"closed form": found["default"], "64 functions": found["64 functions"]}
    for name, title in titles.items():
        error = found["errors"][name]
        time = f"{times[name]['cpu_ms_median']:.0f} ms" if name in times else ""
        quantiles = f"{error['q05']:.3f}, {error['q95']:.3f}"
        lines.append(f"| {title} | {error['mean']:.3f} | {100 * error['std_relative']:.1f} % | {quantiles} | {time} |")
    shape = f"{found['context_points']} context points, {found['query_points']} queries, {found['threads']} thread"
    return "\n".join([*lines, "", f"CPU time is of `fit` and `predict` together, after a warm-up: {shape}."])


def regret() -> str:
    found = result("botorch/regret.json")
    if found is None:
        return "Made by `python examples/botorch_minimise.py`."
    lines = ["| family | model | " + " | ".join(f"after {count}" for count in EVALUATIONS) + " |"]
    lines.append("| --- | --- |" + " --- |" * len(EVALUATIONS))
    for family in found.values():
        means, medians = family["summary"]["mean"], family["summary"]["median"]
        for name in means:
            cells = [f"{means[name][i - 1]:.2g} ({medians[name][i - 1]:.2g})" for i in EVALUATIONS]
            lines.append(f"| {family['title']} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def install() -> str:
    found = result("bench/install.json")
    if found is None:
        return "Made by `python benchmarks/install.py --json results/bench/install.json`."
    wheel, archive = found["files"][".whl"], found["files"][".gz"]
    total = f"{found['packages']} packages and {found['environment_MB']:,} MB in {found['seconds']:,} seconds"
    own = f"`nvdp` itself has {found['nvdp_MB']} MB, most of it weights;"
    lines = [
        f"{total} (2 cores, load average {found['load']:.0f} at the end).",
        f"{own} the wheel has {wheel:,} and the source archive {archive:,} bytes.",
        "Each row is a dependency with the packages that nothing else needs:",
        "",
        "| dependency | MB | packages |",
        "| --- | ---: | ---: |",
    ]
    lines += [f"| {n} | {a['MB']:,.1f} | {len(a['packages'])} |" for n, a in found["adds"].items()]
    hashes = found["sha256"].items()
    same = len({digest for _, digest in hashes}) == len(found["files"])
    lines += ["", f"Two builds from two copies {'have the same' if same else 'differ in their'} bytes (SHA-256):", ""]
    lines += [f"- `{name}` `{digest[:16]}…`" for name, digest in hashes]
    lines += ["", "What extras add to it:", "", "| extra | MB | packages |", "| --- | ---: | ---: |"]
    users = {name: row for name, row in found["extras"].items() if name not in DEVELOPERS}
    return "\n".join(lines + [f"| `{n}` | {a['MB']:,.1f} | {len(a['packages'])} |" for n, a in users.items()])


def checks() -> str:
    found = result("trust/sklearn.json")
    if found is None:
        return "Made by `python tests/tables/test_sklearn_checks.py`."
    lines = ["| estimator | passed | expected to fail | left out |", "| --- | ---: | --- | --- |"]
    for name, row in found.items():
        fails = "; ".join(f"`{check}`: {reason}" for check, reason in row["expected_failures"].items()) or "none"
        skips = "; ".join(f"`{check}`: {reason}" for check, reason in row["skips"].items()) or "none"
        lines.append(f"| `{name}` | {row['passed']} | {fails} | {skips} |")
    return "\n".join(lines)


def peer() -> str:
    found = result("bench/peer.json")
    if found is None:
        return "Made by `python benchmarks/peer.py --work DIR`."
    lines = ["| model | steps | LL | RLL | PLL |", "| --- | ---: | --- | --- | --- |"]
    for name, row in sorted(found["models"].items(), key=lambda item: -item[1]["PLL"]):
        title = name if name[0].isupper() else f"`{name}`"
        scored = " | ".join(f"{row[metric]:.3f}" for metric in ("LL", "RLL", "PLL"))
        lines.append(f"| {title} | {row['steps']:,} | {scored} |")
    about = f"*{found['seconds']:g} processor seconds each, {found['tasks']} tasks, single targets with σ ≥ 0.1"
    return "\n".join([*lines, "", f"{about}, {found['package']}; `python benchmarks/peer.py --work DIR`.*"])


def export() -> str:
    found = result("bench/export.json")
    if found is None:
        return "Made by `python benchmarks/export.py --json results/bench/export.json`."
    lines = ["| | model | MB | mean, or probabilities | standard deviation |", "| --- | --- | ---: | ---: | ---: |"]
    for name, row in found.items():
        if "refused" in row:
            lines.append(f"| {name} | `{row['model']}` | | refused: {row['refused']} | |")
            continue
        differences = [f"{row[key]:.1e}" for key in ("mean", "probabilities", "std") if key in row]
        lines.append(f"| {name} | `{row['model']}` | {row['bytes'] / 1e6:.1f} | {' | '.join((*differences, '')[:2])} |")
    largest = max(
        value for row in found.values() for key, value in row.items() if key in ("mean", "probabilities", "std")
    )
    return "\n".join([*lines, "", f"The largest is {largest:.1e}; the aim is at most 1e-4."])


def serve() -> str:
    found = result("bench/serve.json")
    if found is None:
        return "Made by `python benchmarks/serve.py --json results/bench/serve.json`."
    lines = ["| | answers | median, ms | 95th percentile, ms | errors | answers to the largest |"]
    lines.append("| --- |" + " ---: |" * 5)
    for row in found["rows"]:
        what = f"{row['visitors']} {row['what']}" if "visitors" in row else row["what"]
        times = f"{row['median_ms']:.0f} | {row['p95_ms']:.0f}"
        dear = row["dear_answers"].get("200", 0) if "dear_answers" in row else ""
        lines.append(f"| {what} | {row['answers']} | {times} | {row.get('errors', 0)} | {dear} |")
    return "\n".join(lines)


def statsmodels() -> str:
    """Mixed models of statsmodels and gpboost beside nvdp fit: means over sizes of contexts, on the same folds."""
    found, ours = result("bench/mixed.json"), result("bench/tables.json")
    if found is None or ours is None:
        return "Made by `python benchmarks/mixed.py --json results/bench/mixed.json`."
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    head = ["table", "context", "nvdp fit", "hierarchical GP", "our mixed model", *methods]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for table in dict.fromkeys(row["table"] for row in found["rows"]):
        for kind in ("random", "first"):
            theirs = [row for row in found["rows"] if (row["table"], row["kind"]) == (table, kind)]
            same = [row for row in ours["rows"] if (row["table"], row["kind"]) == (table, kind)]
            if not same or int(same[0]["folds"].split()[0]) != theirs[0]["folds"]:
                continue
            names = ("ours", "hierarchical", "mixed")
            pairs = [[(row[f"{name}_LL"], row[f"{name}_RMSE"]) for row in same] for name in names]
            for method in methods:
                pairs.append([(row["LL"], row["RMSE"]) for row in theirs if row["method"] == method])
            cells = [[sum(part) / len(part) for part in zip(*each, strict=True)] for each in pairs]
            lines.append(f"| {table} | {kind} points | " + " | ".join(f"{a:.3f} / {b:.3g}" for a, b in cells) + " |")
    return "\n".join([*lines, "", "*LL / RMSE, means over 2, 4 and 8 points; `python benchmarks/mixed.py`.*"])


def at_scale() -> str:
    """Folders of many tasks: processor seconds and peak memory of nvdp predict."""
    rows = [row for row in (result("bench/tables_at_scale.json") or {"rows": []})["rows"] if row["what"] == "predict"]
    if not rows:
        return "Made by `python benchmarks/tables_at_scale.py predict --json results/bench/tables_at_scale.json`."
    lines = [
        "| tasks | processes | rows predicted | seconds | processor seconds | rows a second | peak memory of one |"
    ]
    lines.append("|" + " ---: |" * 7)
    for row in rows:
        numbers = (row["tasks"], row["jobs"], row["rows"], row["seconds"], row["processor_seconds"])
        cells = [f"{each:,}" for each in (*numbers, round(row["rows"] / max(1, row["seconds"])))]
        lines.append(f"| {' | '.join(cells)} | {row['peak_mb']:,} MB |")
    about = f"{measured_on(rows)}, commit {rows[0]['commit']}, model {rows[0]['model']}, "
    about += f"{rows[0]['context']} context rows a task"
    command = "`python benchmarks/tables_at_scale.py predict`, for a short trial with `--tasks 2000x1,2000x2`"
    return "\n".join([*lines, "", f"*{about}; one process sorts the rows into parts; {command}.*"])


def whole_tables() -> str:
    """Large tables whole: processor seconds and peak memory of nvdp fit."""
    rows = [row for row in (result("bench/tables_at_scale.json") or {"rows": []})["rows"] if row["what"] == "fit"]
    if not rows:
        return "Made by `python benchmarks/tables_at_scale.py fit --json results/bench/tables_at_scale.json`."
    lines = ["| table | tasks | rows | --minutes | processor seconds in all | peak memory | verdict |"]
    lines.append("|" + " --- |" * 7)
    for row in rows:
        size = f"{row['tasks']:,} | {row['rows']:,} | {row['minutes']:g} | {row['processor_seconds']:,}"
        lines.append(f"| {row['table']} | {size} | {row['peak_mb']:,} MB | {row['verdict']} |")
    about = f"{measured_on(rows)}, one thread, report included; `python benchmarks/tables_at_scale.py fit`"
    return "\n".join([*lines, "", f"*{about}.*"])


def measured_on(rows: list[dict[str, Any]]) -> str:
    """The processors of rows."""
    return ", ".join(dict.fromkeys(row["processor"] for row in rows))


def fill(page: str, **texts: str) -> None:
    """Replace what is between the marks of a page."""
    path = HERE / "docs" / page
    text = path.read_text()
    for name, new in texts.items():
        marks = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        text = re.sub(
            f"{marks[0]}.*?{marks[1]}", lambda _, new=new, marks=marks: f"{new}\n".join(marks), text, flags=re.DOTALL
        )
    path.write_text(text)


if __name__ == "__main__":
    fill("../README.md", demo=demo())
    fill("examples.md", images=images())
    fill("store.md", store=store(), inturn=in_turn())
    fill("install.md", install=install())
    fill("export.md", export=export())
    fill("serve.md", serve=serve())
    fill("tables.md", estimator=estimator(), checks=checks())
    fill("active.md", regret=regret())
    fill("findings.md", statsmodels=statsmodels())
    fill("scale.md", million=at_scale(), whole=whole_tables())
    fill("beyond.md", peer=peer())
    fill("when-to-use.md", real=real(), losses=real_losses(), boosting=real_boosting(), mixed=mixed_model())
    fill("when-to-use.md", general=general(), choose=choose())
