"""Sources of classes: splits share no class, decoded images are kept, damage is repaired, folders are checked."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from nvdp.data import class_pools as fewshot_cache
from nvdp.data import class_pools as fewshot_folder
from nvdp.data.class_pools import FolderClasses, cached_array, split_classes
from nvdp.data.episodes import EpisodeConfig, episode_tasks
from nvdp.data.features import CachedFeatures, write_features
from nvdp.data.public import miniimagenet as fewshot_mini
from nvdp.data.public import omniglot as fewshot_omniglot
from nvdp.data.public.fetch import data_folder
from nvdp.data.public.miniimagenet import MiniImageNetClasses
from nvdp.data.public.omniglot import OmniglotClasses, characters_of
from nvdp.data.registry import task_source
from nvdp.data.source import DataConfig
from nvdp.errors import InputError

RANDOM = np.random.default_rng(0)
REAL = os.environ.get("NVDP_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and nothing remembered from another test."""
    monkeypatch.setenv("NVDP_CACHE", str(tmp_path / "cache"))
    for remembered in (fewshot_folder._split, fewshot_mini._pool, fewshot_omniglot._pool, fewshot_omniglot._numbered):
        remembered.cache_clear()
    return tmp_path / "cache"


def picture(shape=(12, 10, 3)):
    return Image.fromarray(RANDOM.integers(0, 256, shape, dtype=np.uint8))


def class_folders(root, classes=20, images=4, shape=(12, 10, 3)):
    for c in range(classes):
        (root / f"class{c:02d}").mkdir(parents=True)
        for k in range(images):
            picture(shape).save(root / f"class{c:02d}" / f"{k}.png")
    return root


def jpeg(size=84):
    buffer = io.BytesIO()
    picture((size, size, 3)).save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def mini_files(folder, classes=2, images=3):
    """Two npz files as miniImageNet's are, but small; the names are those of the splits."""
    for name, splits in (("train", ["train"]), ("val_test", ["val", "test"])):
        files = [jpeg() for _ in range(len(splits) * classes * images)]
        np.savez(
            folder / f"miniimagenet_{name}.npz",
            jpeg=np.concatenate(files),
            offsets=np.concatenate([[0], np.cumsum([len(file) for file in files])]),
            labels=np.repeat(np.arange(len(splits) * classes), images).astype(np.uint8),
            class_names=np.array([f"{split}{c}" for split in splits for c in range(classes)]),
            class_split=np.repeat(splits, classes),
        )


def test_omniglot_splits_all_characters_and_no_test_character_trains():
    parts = [set(characters_of(split).tolist()) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [1_100, 100, 423]
    assert set.union(*parts) == set(range(1, 1_624))
    assert characters_of("test")[:5].tolist() == [4, 12, 14, 22, 23]  # published numbers rest on this choice


def test_omniglot_turns_training_characters_alone(tmp_path, monkeypatch):
    numbers = np.repeat(np.arange(1, 1_624), 2)
    images = np.zeros((len(numbers), 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = numbers // 100, numbers % 100
    shuffled = RANDOM.permutation(len(numbers))
    np.savez(tmp_path / "omniglot.npz", images28=images[shuffled], character_id=numbers[shuffled])
    monkeypatch.setenv("NVDP_DATA", str(tmp_path))
    source = OmniglotClasses()
    train, test = source.split("train"), source.split("test")
    assert (train.classes, source.split("validation").classes, test.classes) == (4_400, 100, 423)
    shown = test.points[:, 0, 0, 0].astype(int) * 100 + test.points[:, 0, 1, 0]
    assert (shown == np.repeat(characters_of("test"), 2)).all()
    shown = set((train.points[:, 0, 0, 0].astype(int) * 100 + train.points[:, 0, 1, 0]).tolist())
    assert not shown & set(characters_of("test").tolist())


@pytest.mark.skipif(not REAL, reason="NVDP_DATA is not set")
def test_real_omniglot_gives_episodes_of_ink_on_black():
    assert data_folder() is not None
    batch = task_source("omniglot-fewshot", episodes=EpisodeConfig(20, 5)).training_batch(0, 0, 2)
    assert batch.x.shape == (2, 400, 784)
    assert 0.03 < batch.x.mean() < 0.3


def test_mini_is_decoded_once_kept_and_made_again_when_damaged(tmp_path, monkeypatch, cache):
    mini_files(tmp_path)
    monkeypatch.setenv("NVDP_DATA", str(tmp_path))
    source, opened = MiniImageNetClasses(), []
    real = fewshot_mini.open_picture
    monkeypatch.setattr(fewshot_mini, "open_picture", lambda *a: opened.append(1) or real(*a))
    pool = source.split("validation")
    assert (list(pool.names), pool.counts.tolist(), len(opened)) == (["val0", "val1"], [3, 3], 6)
    assert isinstance(pool.points, np.memmap)
    with np.load(tmp_path / "miniimagenet_val_test.npz") as file:
        third = file["jpeg"][file["offsets"][2] : file["offsets"][3]].tobytes()
    expected = np.array(Image.open(io.BytesIO(third)))
    assert (pool.points[2] == expected).all()
    fewshot_mini._pool.cache_clear()
    source.split("validation")
    assert len(opened) == 6
    path = cache / "decoded" / "miniimagenet-validation.npy"
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:5_000] + b"x" + whole[5_001:], b"", b"rubbish"):
        path.write_bytes(damaged)
        fewshot_mini._pool.cache_clear()
        before = len(opened)
        assert (source.split("validation").points[2] == expected).all()
        assert len(opened) == before + 6
        assert path.read_bytes() == whole
    mini_files(tmp_path)  # other images under the same name
    fewshot_mini._pool.cache_clear()
    assert not (source.split("validation").points[2] == expected).all()


def test_mini_from_class_folders_and_a_damaged_jpeg(tmp_path, monkeypatch):
    for split in ("train", "val", "test"):
        class_folders(tmp_path / "data" / "miniimagenet" / split, 2, 2)
    monkeypatch.setenv("NVDP_DATA", str(tmp_path / "data"))
    assert MiniImageNetClasses().split("test").points.shape == (4, 84, 84, 3)
    (tmp_path / "other").mkdir()
    mini_files(tmp_path / "other")
    with np.load(tmp_path / "other" / "miniimagenet_train.npz") as file:
        arrays = dict(file)
    arrays["jpeg"][arrays["offsets"][4] :][:2_000] = 7
    np.savez(tmp_path / "other" / "miniimagenet_train.npz", **arrays)
    monkeypatch.setenv("NVDP_DATA", str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"image 4 \(train1\) is no image, or a damaged one$"):
        MiniImageNetClasses().split("train")
    monkeypatch.setenv("NVDP_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(exist_ok=True)
    with pytest.raises(InputError, match=r"not on this machine: name a folder with miniimagenet_train\.npz and"):
        MiniImageNetClasses().split("train")


def test_cached_arrays_stay_in_memory_where_nothing_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(fewshot_cache, "_writable", lambda folder: False)
    array = cached_array(tmp_path / "no" / "a.npy", "", (2, 2), "uint8", lambda: iter([np.ones((2, 2), np.uint8)]))
    assert array.tolist() == [[1, 1], [1, 1]]
    assert not (tmp_path / "no").exists()


def test_a_folder_of_classes_is_split_by_names_and_read_again_when_it_changes(tmp_path):
    folder = class_folders(tmp_path / "pictures")
    source = FolderClasses(DataConfig(folder=str(folder), size=8))
    parts = {split: set(source.split(split).names) for split in ("train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [14, 3, 3]
    assert len(set.union(*parts.values())) == 20
    assert {split: set(part) for split, part in split_classes(sorted(set.union(*parts.values()))).items()} == parts
    assert (source.channels, source.features) == (3, 192)
    name = source.split("test").names[0]
    before = np.array(source.split("test").points[0])
    picture().save(folder / name / "0.png")
    fewshot_folder._split.cache_clear()
    assert not (source.split("test").points[0] == before).all()


def test_folders_that_cannot_be_used_are_told_in_one_line(tmp_path):
    folder = class_folders(tmp_path / "pictures", classes=10, images=3)

    def tasks(way=2, shot=1, queries=2, where=folder, **data):
        shape = EpisodeConfig(way, shot, queries)
        return episode_tasks("folder-of-classes", DataConfig(str(where), 8, **data), "test", shape)

    assert len(tasks().training_batch(0, 0, 2)) == 2
    with pytest.raises(InputError, match=r"class 'class\d\d' has 3 images; 1-shot with 15 queries needs 16"):
        tasks(queries=15).training_batch(0, 0, 2)
    with pytest.raises(InputError, match="the train split of folder-of-classes has 6 classes; 9-way needs 9"):
        tasks(way=9).training_batch(0, 0, 2)
    with pytest.raises(InputError, match="is not a folder"):
        tasks(where=tmp_path / "absent").training_batch(0, 0, 2)
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="holds 1 sub-folders and no picture"):
        tasks(where=tmp_path / "empty").training_batch(0, 0, 2)
    with pytest.raises(InputError, match="--folder DIR"):
        episode_tasks("folder-of-classes", DataConfig(), "test", None).training_batch(0, 0, 2)
    train = split_classes(sorted(path.name for path in folder.iterdir()))["train"]
    picture((9, 9)).save(folder / train[-1] / "2.png")
    fewshot_folder._split.cache_clear()
    with pytest.raises(InputError, match=r"2\.png is grey but 0\.png is colour; convert all with --channels"):
        tasks().training_batch(0, 0, 2)
    assert tasks(channels=1).x_dim == 64
    (folder / train[0] / "1.png").write_bytes(b"\x89PNG rubbish")
    fewshot_folder._split.cache_clear()
    with pytest.raises(InputError, match=r"1\.png is no image, or a damaged one$"):
        tasks(channels=3).training_batch(0, 0, 2)


def test_an_episode_of_features_has_the_images_of_an_episode_of_images(tmp_path, monkeypatch):
    numbers = np.repeat(np.arange(1, 1_624), 3)
    np.savez(
        tmp_path / "omniglot.npz",
        images28=RANDOM.integers(0, 256, (len(numbers), 28, 28), dtype=np.uint8),
        character_id=numbers,
    )
    monkeypatch.setenv("NVDP_DATA", str(tmp_path))
    mix = torch.randn(784, 3, generator=torch.Generator().manual_seed(0))
    said = []
    monkeypatch.setattr("nvdp.data.features.LONG_MINUTES", 0.0)
    write_features(OmniglotClasses(), tmp_path / "out", lambda x: x @ mix, 3, "weights", said.append)
    assert said[0].startswith("train: features of 13,200 images will take about 2 minutes")
    assert said[1] == "train: features of 13,200 images of 4,400 classes"
    shape = EpisodeConfig(3, 1, 2)
    images = task_source("omniglot-fewshot", episodes=shape)
    kept = EpisodeConfig(3, 1, 2, "features", str(tmp_path / "out"))
    features = task_source("omniglot-fewshot", episodes=kept)
    for draw in (lambda source: source.training_batch(0, 3, 8), lambda source: source.validation_chunk(0, 3)):
        shown, cached = draw(images), draw(features)
        assert torch.allclose(shown.x @ mix, cached.x, atol=1e-4)
        assert torch.equal(shown.y, cached.y)
    assert features.x_dim == 3
    with pytest.raises(InputError, match="holds features of omniglot-fewshot; the task is miniimagenet"):
        CachedFeatures(MiniImageNetClasses(), str(tmp_path / "out")).split("train")
    with pytest.raises(InputError, match="holds no features; make them with `nvdp pretrain"):
        CachedFeatures(OmniglotClasses(), "nothing").split("train")
