"""What commands about tables share: column names, notes, and predictions as rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from nvdp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from nvdp.posteriors.prediction import Prediction

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def column_names(text: str) -> tuple[str, ...]:
    """Names separated by commas.

    >>> column_names("day, height")
    ('day', 'height')
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InputError(f"'{text}' names no column; expected names separated by commas")
    return names


def say(note: str | None) -> None:
    """A note for a person, on standard error."""
    if note is not None:
        typer.echo(f"note: {note}", err=True)


def predicted_rows(rows: np.ndarray, prediction: "Prediction", outputs: Sequence[str] = ()) -> "pd.DataFrame":
    """Mean, standard deviation and quantiles of one task, under the places of its rows.

    With several outputs each column begins with its output's name.
    """
    import pandas as pd

    numbers = {"mean": prediction.mean, "std": prediction.std}
    numbers |= {name: prediction.quantile(level) for name, level in QUANTILES.items()}
    width = prediction.mean.shape[-1]
    names = list(outputs) if len(outputs) == width else [f"y{index + 1}" for index in range(width)]
    prefix = [""] if width == 1 else [f"{name}_" for name in names]
    columns = {prefix[i] + kind: values[:, i].numpy() for i in range(width) for kind, values in numbers.items()}
    return pd.DataFrame(columns, index=rows)


def write_predictions(frame: "pd.DataFrame", parts: Sequence["pd.DataFrame"], out: Path) -> None:
    """Write a table's rows with their predictions; a row without one keeps empty cells."""
    import pandas as pd

    from nvdp.system import write_text

    predicted = pd.concat(list(parts)).reindex(range(len(frame)))
    kept = frame.reset_index(drop=True).drop(columns=[name for name in predicted if name in frame.columns])
    if out.parent != Path():
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, pd.concat([kept, predicted], axis=1).to_csv(index=False, float_format="%.9g"))
