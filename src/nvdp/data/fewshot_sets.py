"""The sources of classes by the name of their task, and the pictures or features that their episodes show."""

from nvdp.data.config import NO_DATA, DataConfig
from nvdp.data.episodes import EpisodeConfig, EpisodeTasks
from nvdp.data.feature_cache import CachedFeatures
from nvdp.data.fewshot_folder import FolderClasses
from nvdp.data.fewshot_mini import MINIIMAGENET, MiniImageNetClasses
from nvdp.data.fewshot_omniglot import OmniglotClasses
from nvdp.data.fewshot_pool import ClassSource
from nvdp.data.omniglot import OMNIGLOT
from nvdp.errors import unknown_name

PUBLIC_CLASS_SETS = {"omniglot-fewshot": OMNIGLOT, "miniimagenet": MINIIMAGENET}  # the files behind a task
FEWSHOT_TASKS = ("omniglot-fewshot", "miniimagenet", "folder-of-classes")


def class_source(name: str, data: DataConfig = NO_DATA) -> ClassSource:
    """The classes behind a task of that name; no file is read before it is asked for classes.

    >>> class_source("omniglot-fewshot").size, class_source("miniimagenet").channels
    (28, 3)
    """
    if name == "omniglot-fewshot":
        return OmniglotClasses()
    if name == "miniimagenet":
        return MiniImageNetClasses()
    if name == "folder-of-classes":
        return FolderClasses(data)
    raise unknown_name("task of classification", name, FEWSHOT_TASKS)


def episode_tasks(name: str, data: DataConfig, scored: str, episodes: EpisodeConfig | None) -> EpisodeTasks:
    """Episodes of a task of that name, 5-way 1-shot unless said otherwise."""
    episodes = episodes or EpisodeConfig()
    source = class_source(name, data)
    if episodes.features is not None:
        source = CachedFeatures(source, episodes.features)
    return EpisodeTasks(source, episodes, scored)
