"""The experiments by name."""

from nvdp.errors import unknown_name
from nvdp.experiments.ablations import ABLATIONS
from nvdp.experiments.attentive import ATTENTIVE, LIVING
from nvdp.experiments.fewshot_choices import FEWSHOT_CHOICES
from nvdp.experiments.figure2 import FIGURE2
from nvdp.experiments.figure3 import FIGURE3
from nvdp.experiments.figure4 import FIGURE4
from nvdp.experiments.figure9 import FIGURE9
from nvdp.experiments.learning import LEARNING
from nvdp.experiments.plan import Experiment
from nvdp.experiments.quarter import QUARTER
from nvdp.experiments.recipes import RECIPES
from nvdp.experiments.table1 import TABLE1
from nvdp.experiments.table2 import TABLE2
from nvdp.experiments.table3 import TABLE3

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        TABLE1,
        FIGURE2,
        FIGURE3,
        TABLE2,
        TABLE3,
        FEWSHOT_CHOICES,
        FIGURE4,
        FIGURE9,
        LEARNING,
        RECIPES,
        QUARTER,
        ABLATIONS,
        ATTENTIVE,
        LIVING,
    )
}


def experiment_named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
