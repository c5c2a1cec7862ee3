"""Loaders on tiny files: npz, idx, zips and folders give the same images; damage is one line that names the file."""

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from nvdp.data import images as image_sets
from nvdp.data.image_files import SPLITS, open_picture, picture_array, picture_channels, read_idx, write_picture
from nvdp.data.images import PUBLIC_SETS, FolderImages, PublicImages
from nvdp.data.public import fetch
from nvdp.data.source import DataConfig
from nvdp.errors import InputError

RANDOM = np.random.default_rng(0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of data that NVDP_DATA names, and an empty cache."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("NVDP_DATA", str(folder))
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    image_sets._read.cache_clear()
    return folder


def digits(count):
    return RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)


def idx(images):
    return b"\0\0\x08\x03" + struct.pack(">3I", *images.shape) + images.tobytes()


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_mnist_is_the_same_from_npz_and_from_idx_files(place):
    train, test = digits(12), digits(5)
    np.savez(place / "mnist.npz", train_images=train, test_images=test)
    from_npz = [PublicImages("mnist").split(split) for split in SPLITS]
    assert [len(images) for images in from_npz] == [10, 2, 5]
    assert np.array_equal(from_npz[1][..., 0], train[10:])
    (place / "mnist.npz").unlink()
    (place / "MNIST" / "raw").mkdir(parents=True)
    (place / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(train)))
    (place / "MNIST" / "raw" / "t10k-images-idx3-ubyte").write_bytes(idx(test))
    assert all(map(np.array_equal, from_npz, [PublicImages("mnist").split(split) for split in SPLITS]))


def test_omniglot_is_the_same_from_npz_zips_and_folders(place):
    masks = RANDOM.random((6, 105, 105)) < 0.1
    numbers = np.array([1, 836, 837, 964, 965, 1623])
    ink = [Image.fromarray(np.uint8(mask * 255)).resize((28, 28), Image.Resampling.LANCZOS) for mask in masks]
    np.savez(place / "omniglot.npz", images28=np.stack(ink), character_id=numbers)
    from_npz = [PublicImages("omniglot").split(split) for split in SPLITS]
    assert [len(images) for images in from_npz] == [2, 2, 2]
    (place / "omniglot.npz").unlink()
    for part, chosen in (("images_background", numbers < 965), ("images_evaluation", numbers >= 965)):
        with zipfile.ZipFile(place / f"{part}.zip", "w") as archive:
            for mask, number in zip(masks[chosen], numbers[chosen], strict=True):
                archive.writestr(f"{part}/Alphabet/character01/{number:04d}_01.png", png(~mask))
    from_zips = [PublicImages("omniglot").split(split) for split in SPLITS]
    assert all(map(np.array_equal, from_npz, from_zips))
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(place / f"{part}.zip") as archive:
            archive.extractall(place)
        (place / f"{part}.zip").unlink()
    image_sets._read.cache_clear()
    from_folders = [PublicImages("omniglot").split(split) for split in SPLITS]
    assert all(map(np.array_equal, from_npz, from_folders))


def faces(folder, numbers, size=(218, 178)):
    folder.mkdir(parents=True)
    for number in numbers:
        pixels = np.full((*size, 3), number % 251, dtype=np.uint8)
        pixels[:, : size[1] // 2, 0] = 250
        Image.fromarray(pixels).save(folder / f"{number:06d}.png")


def test_celeba_from_a_folder_keeps_the_official_partition_and_the_prepared_pictures_serve_again(place):
    faces(place / "celeba" / "img_align_celeba", [1, 162_770, 162_771, 182_638])
    splits = {split: PublicImages("celeba").split(split) for split in SPLITS}
    assert [len(images) for images in splits.values()] == [2, 1, 1]
    assert splits["train"].shape == (2, 32, 32, 3)
    assert (splits["train"][0, :, :15, 0] == 250).all()
    assert (splits["train"][0, :, 17:, 0] == 1).all()
    image_sets._read.cache_clear()
    assert np.array_equal(PublicImages("celeba").split("train"), splits["train"])


def test_a_missing_set_is_one_line_with_three_ways(place):
    for name in PUBLIC_SETS:
        with pytest.raises(InputError) as error:
            PublicImages(name).split("train")
        text = one_line(error)
        assert text.startswith(f"{name} is not on this machine")
        assert all(way in text for way in ("NVDP_DATA", "--data-dir", "cache" if name == "celeba" else "fetch"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mnist.npz", {"images28": digits(3)}, "expected an array 'train_images': is it another set?"),
        ("mnist.npz", {"train_images": digits(3)[:, :20], "test_images": digits(3)}, r"\(3, 20, 28\)"),
        ("mnist.npz", b"PK\3\4 no zip", "damaged"),
        ("omniglot.npz", {"images28": digits(3)}, "'character_id'"),
        ("celeba32.npz", {"images": digits(3), "file_number": np.arange(3)}, "another set"),
    ],
)
def test_a_wrong_or_damaged_npz_is_one_line(place, name, content, words):
    if isinstance(content, bytes):
        (place / name).write_bytes(content)
    else:
        np.savez(place / name, **content)
    with pytest.raises(InputError, match=words) as error:
        PublicImages(name.split(".")[0].removesuffix("32")).split("train")
    assert str(place / name) in one_line(error)


def test_the_wrong_set_in_a_folder_is_one_line(place):
    faces(place / "img_align_celeba", [1, 2], size=(64, 64))
    with pytest.raises(InputError, match=r"000001.png is 64×64; CelebA's aligned pictures are 178×218") as error:
        PublicImages("celeba").split("train")
    one_line(error)
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(place / f"{part}.zip", "w") as archive:
            archive.writestr("cats/1.png", png(np.zeros((4, 4), np.uint8)))
    with pytest.raises(InputError, match=r"images_background.zip holds no .*: is it another set") as error:
        PublicImages("omniglot").split("train")
    one_line(error)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\x08\x01" + bytes(20), "begins with bytes 00 00 08 01"),
        (idx(digits(3))[:-5], "cut short"),
        (b"", "begins with bytes"),
    ],
)
def test_a_damaged_idx_file_is_one_line(tmp_path, content, words):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        read_idx(path)
    assert str(path) in one_line(error)


def test_a_folder_named_by_the_variable_that_is_not_there_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("NVDP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere, which is not a folder"):
        PublicImages("mnist").split("train")


def test_verification_compares_checksums(place):
    np.savez(place / "mnist.npz", train_images=digits(3), test_images=digits(3))
    found = fetch.locate(PUBLIC_SETS["mnist"])
    with pytest.raises(InputError, match=r"has sha256 .* the published file has a7fc"):
        fetch.verify(PUBLIC_SETS["mnist"], found)


def test_a_download_with_the_wrong_checksum_is_refused_and_celeba_is_never_downloaded(place, monkeypatch):
    import pooch

    def wrong(url, known_hash, fname, path):
        assert known_hash.startswith("sha256:")
        raise ValueError(f"{known_hash} does not match\nthe file")

    monkeypatch.setattr(pooch, "retrieve", wrong)
    with pytest.raises(InputError, match="is not the file it should be") as error:
        fetch.download(PUBLIC_SETS["mnist"])
    one_line(error)
    with pytest.raises(InputError, match="accept its terms"):
        fetch.download(PUBLIC_SETS["celeba"])


@pytest.fixture
def pictures(tmp_path):
    """A folder of twelve coloured pictures of different sizes."""
    folder = tmp_path / "pictures"
    (folder / "inner").mkdir(parents=True)
    for k in range(12):
        pixels = np.full((10 + k, 20, 3), 20 * k, dtype=np.uint8)
        pixels[..., 1] = 7
        Image.fromarray(pixels).save(folder / ("inner" if k % 2 else ".") / f"p{k:02d}.png")
    return folder


def test_a_folder_of_pictures_is_split_once_and_for_all(pictures):
    images = FolderImages(DataConfig(str(pictures), size=8))
    assert images.channels == 3
    parts = [images.split(split) for split in SPLITS]
    assert [part.shape for part in parts] == [(10, 8, 8, 3), (1, 8, 8, 3), (1, 8, 8, 3)]
    reds = sorted(int(image[0, 0, 0]) for part in parts for image in part)
    assert reds == [20 * k for k in range(12)]
    assert all((part[..., 1] == 7).all() for part in parts)


def test_grey_among_colour_is_one_line_unless_told_what_to_make_of_it(pictures):
    Image.fromarray(np.full((9, 9), 30, dtype=np.uint8)).save(pictures / "z-grey.png")
    with pytest.raises(InputError, match=r"z-grey.png is grey but .* is colour; .*--channels") as error:
        FolderImages(DataConfig(str(pictures), size=8)).split("train")
    one_line(error)
    assert FolderImages(DataConfig(str(pictures), size=8, channels=1)).split("train").shape == (11, 8, 8, 1)
    assert FolderImages(DataConfig(str(pictures), size=8, channels=3)).split("train").shape == (11, 8, 8, 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [(png(RANDOM.integers(0, 256, (40, 40, 3), dtype=np.uint8))[:900], "damaged"), (b"text", "no image"), (b"", "no")],
)
def test_a_damaged_picture_is_one_line_that_names_it(pictures, content, words):
    (pictures / "broken.png").write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        FolderImages(DataConfig(str(pictures), size=8, channels=3)).split("train")
    assert "broken.png" in one_line(error)


def test_an_empty_or_absent_folder_is_one_line(tmp_path):
    with pytest.raises(InputError, match="holds 0 pictures; expected at least 3"):
        FolderImages(DataConfig(str(tmp_path))).split("train")
    with pytest.raises(InputError, match="is not a folder"):
        FolderImages(DataConfig(str(tmp_path / "absent"))).split("train")
    with pytest.raises(InputError, match="--folder"):
        FolderImages(DataConfig()).split("train")
    with pytest.raises(InputError, match="'size' is 2"):
        DataConfig(str(tmp_path), size=2)
    with pytest.raises(InputError, match="'channels' is 2"):
        DataConfig(str(tmp_path), channels=2)


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("I;16", 1), ("RGB", 3), ("RGBA", 3), ("P", 3), ("CMYK", 3)]
)
def test_every_kind_of_picture_is_grey_or_colour(tmp_path, mode, channels):
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    if mode == "I;16":
        Image.fromarray(np.full((12, 20), 51_400, dtype=np.uint16)).save(path)
    else:
        Image.new("L", (20, 12), 200).convert(mode).save(path)
    picture = open_picture(path, "picture")
    assert picture_channels(picture) == channels
    pixels = picture_array(picture, 6, channels)
    assert pixels.shape == (6, 6, channels)
    if mode != "1":
        assert (np.abs(pixels.astype(int) - 200) <= 3).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_written_picture_comes_back_as_it_was(tmp_path, channels):
    pixels = RANDOM.integers(0, 256, (5, 5, channels), dtype=np.uint8)
    write_picture(tmp_path / "new" / "p.png", pixels / 255)
    assert np.array_equal(picture_array(open_picture(tmp_path / "new" / "p.png", "p"), 5, channels), pixels)
