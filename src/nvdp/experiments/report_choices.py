"""The section of choices for NVDP's classifier on the results page: scores of validation classes, none of test."""

from collections.abc import Iterator

from nvdp.experiments.fewshot_choices import SHIPPED
from nvdp.experiments.report_parts import steps_of
from nvdp.experiments.results import Result

TEXT = """One change at a time from the shipped classifier, which is the row `{shipped}`: 5-way 1-shot on miniImageNet's
features, {steps} steps of 4 episodes, one seed, so directions, not verdicts. Accuracy in per cent on {tasks} episodes
of validation classes, ± the 95 % interval over episodes; *rate* is the mean dropout rate. `kl-…` is the weight of the
KL, 1e-05 as shipped. `paper-rates` has the rates as the paper describes them."""


def choices_section(results: dict[str, Result]) -> str:
    """The section as Markdown; empty if there are no results."""
    if not results:
        return ""
    tasks = next(iter(results.values()))["evaluation"]["tasks"]
    text = TEXT.format(shipped=SHIPPED, steps=steps_of(results), tasks=tasks)
    return "\n".join(["## Choices for few-shot classification", "", text, "", *_table(results)])


def _table(results: dict[str, Result]) -> Iterator[str]:
    yield "| run | accuracy | NLL | ECE | rate | seconds |"
    yield "|" + " --- |" * 6
    for name, row in results.items():
        scores = row["evaluation"]
        rate = "" if scores["mean_rate"] is None else f"{scores['mean_rate']:.3f}"
        accuracy = f"{100 * scores['accuracy']:.2f} ± {100 * scores['interval95']:.2f}"
        yield f"| `{name}` | {accuracy} | {scores['nll']:.3f} | {scores['ece']:.3f} | {rate} | {row['seconds']:.0f} |"
