"""MNIST: handwritten digits, 28 × 28 grey, ink 255 on 0 (LeCun, Cortes, Burges).

Training images are the first 50,000 of the official training set, validation its last 10,000; the official 10,000
test images are for final numbers alone.
"""

from collections.abc import Sequence
from pathlib import Path

from nvdp.data.image_files import Images, Splits, checked_images, read_idx, read_npz
from nvdp.data.public.fetch import PublicFile, PublicSet

SIZE = 28
VALIDATION_SHARE = 6  # one sixth of the official training images


def from_npz(path: Path) -> Splits:
    """The splits of mnist.npz."""
    train, test = read_npz(path, "train_images", "test_images")
    return _splits(checked_images(train, SIZE, 1, path), checked_images(test, SIZE, 1, path))


def from_public_files(paths: Sequence[Path]) -> Splits:
    """The splits of the two idx files of images."""
    train, test = (checked_images(read_idx(path), SIZE, 1, path) for path in paths)
    return _splits(train, test)


def _splits(train: Images, test: Images) -> Splits:
    border = len(train) - len(train) // VALIDATION_SHARE
    return {"train": train[:border], "validation": train[border:], "test": test}


MNIST = PublicSet(
    name="mnist",
    size=SIZE,
    channels=1,
    counts={"train": 50_000, "validation": 10_000, "test": 10_000},
    npz="mnist.npz",
    npz_sha256="a7fc047498e954e53d55d03dbe87a1afe957df36d51a6bac7c5c1f098a9b2786",
    files=(
        PublicFile(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ("train-images-idx3-ubyte", "train-images.idx3-ubyte"),
        ),
        PublicFile(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"),
        ),
    ),
    folders=("MNIST/raw", "mnist"),
    download="https://ossci-datasets.s3.amazonaws.com/mnist/",
    home="http://yann.lecun.com/exdb/mnist/",
    terms="CC BY-SA 3.0; Y. LeCun, C. Cortes, C. Burges",
    from_npz=from_npz,
    from_public_files=from_public_files,
)
