"""The task families by name."""

from collections.abc import Callable
from functools import partial

from nvdp.data.episodes import FEWSHOT_TASKS, EpisodeConfig, episode_tasks
from nvdp.data.frames import FrameTasks
from nvdp.data.gp import GPTasks, MaternTNPTasks, TNPTasks
from nvdp.data.image_files import check_split
from nvdp.data.images import PUBLIC_SETS, FolderImages, ImageTasks, PublicImages
from nvdp.data.priors import PriorTasks
from nvdp.data.source import NO_DATA, DataConfig, TaskSource
from nvdp.data.trigonometry import TrigonometryTasks
from nvdp.errors import InputError, unknown_name

GP_TASKS = (GPTasks, TNPTasks, MaternTNPTasks)
SourceOf = Callable[[DataConfig, str, EpisodeConfig | None], TaskSource]


def _public(name: str, data: DataConfig, split: str, episodes: EpisodeConfig | None) -> TaskSource:
    return ImageTasks(PublicImages(name), split, data.any_context)


def _folder(data: DataConfig, split: str, episodes: EpisodeConfig | None) -> TaskSource:
    return ImageTasks(FolderImages(data), split, data.any_context)


def _table(data: DataConfig, split: str, episodes: EpisodeConfig | None) -> TaskSource:
    return FrameTasks()  # the rows are given by `nvdp fit`, not by a name


Drawn = type[GPTasks] | type[TNPTasks] | type[TrigonometryTasks] | type[PriorTasks]


def _drawn(kind: Drawn, data: DataConfig, split: str, episodes: EpisodeConfig | None) -> TaskSource:
    if split != "validation":
        raise InputError(f"{kind.name} tasks are drawn at random and have no split '{split}'; choose another --seed")
    return kind()


SOURCES: dict[str, SourceOf] = {
    **{kind.name: partial(_drawn, kind) for kind in GP_TASKS},
    "trig": partial(_drawn, TrigonometryTasks),
    "general": partial(_drawn, PriorTasks),
    **{name: partial(_public, name) for name in PUBLIC_SETS},
    "images": _folder,
    "csv": _table,
    **{name: partial(episode_tasks, name) for name in FEWSHOT_TASKS},
}
IMAGE_TASKS = (*PUBLIC_SETS, "images")
EITHER_KIND = ("csv",)  # rows of a table have numbers or classes beside them


def image_size(name: str, data: DataConfig) -> int:
    """Rows and columns of the images of a task."""
    return data.size if name == "images" else PUBLIC_SETS[name].size


def check_task(name: str) -> None:
    """Refuse an unknown family of tasks."""
    if name not in SOURCES:
        raise unknown_name("task", name, SOURCES)


def check_kind(name: str, kind: str) -> None:
    """Refuse a model whose kind is not the task's.

    >>> check_kind("gp", "regression")
    >>> check_kind("csv", "classification")
    """
    own = "classification" if name in FEWSHOT_TASKS else "regression"
    if kind != own and name not in EITHER_KIND:
        raise InputError(f"the task {name} is one of {own}; the model's settings are not")


def task_source(
    name: str, data: DataConfig = NO_DATA, split: str = "validation", episodes: EpisodeConfig | None = None
) -> TaskSource:
    """The source of tasks of that name; no file is read before it is asked for tasks.

    `episodes` is the shape of few-shot tasks; None for the others.

    >>> task_source("gp").x_dim, task_source("mnist").x_dim, task_source("celeba").y_dim
    (1, 2, 3)
    """
    check_task(name)
    check_split(split)
    return SOURCES[name](data, split, episodes)
