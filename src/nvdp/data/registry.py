"""The task families by name."""

from nvdp.data.gp import GPTasks
from nvdp.data.source import TaskSource
from nvdp.data.trigonometry import TrigonometryTasks
from nvdp.errors import unknown_name

SOURCES: dict[str, type[TaskSource]] = {"gp": GPTasks, "trig": TrigonometryTasks}


def task_source(name: str) -> TaskSource:
    """The source of tasks of that name.

    >>> task_source("gp").x_dim
    1
    """
    if name not in SOURCES:
        raise unknown_name("task", name, SOURCES)
    return SOURCES[name]()
