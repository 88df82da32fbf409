"""Collectives: fit each system's link constants on small configurations, predict larger ones.

    python benchmarks/collectives.py [--quick] [--json] [--data FOLDER] [--write hardware_db/collectives.toml]

A system is fitted alone, by least squares on the logarithm of time with priors on the constants. `--quick`
prints the same figures without the table per configuration. `--write` fits every link technology to all its
measurements and writes the constants that hardware_db ships.

collectives_<set>.extrapolated.median_error        relative error above 1 MB
collectives_<set>.extrapolated_small.median_error  the same below
collectives_<set>_<system>[_<kind>_<algorithm>]... the same for one system, and for a forced algorithm
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from collectives_constants import write
from collectives_data import SETS
from collectives_fit import SYSTEMS, UNNAMED, errors, fit
from common import parser, report

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MEGABYTE = 1e6


def extrapolate(table: pd.DataFrame) -> pd.DataFrame:
    """The rows to predict, with `error`, after fitting each system's other rows."""
    predicted = []
    for name, rows in table.groupby("system"):
        small, large = rows.loc[rows.fit], rows.loc[~rows.fit]
        if small.empty or large.empty:
            continue
        system = SYSTEMS.get(str(name), UNNAMED)
        predicted.append(large.assign(error=errors(fit(system, small), system, large)))
    return pd.concat(predicted, ignore_index=True)


def medians(predicted: pd.DataFrame, name: str) -> dict[str, float]:
    """Median error above and below a megabyte, where there are such rows."""
    large = predicted.bytes > MEGABYTE
    parts = {"extrapolated": predicted[large], "extrapolated_small": predicted[~large]}
    return {
        f"collectives_{name}.{split}.median_error": float(part.error.abs().median())
        for split, part in parts.items()
        if len(part)
    }


def show(predicted: pd.DataFrame, name: str) -> None:
    """Print the median signed error per configuration, to see where and why the model fails."""
    above = np.where(predicted.bytes > MEGABYTE, "above 1 MB", "below 1 MB")
    where = ["system", "kind", "algorithm", "ranks_per_node", "nodes"]
    table = predicted.assign(size=above).pivot_table("error", where, "size", "median")
    print(
        f"{name}: median of predicted / measured - 1", table.round(3).to_string(), sep="\n", file=sys.stderr
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measurements")
    options.add_argument("--write", type=Path, metavar="FILE", help="write fitted constants as TOML")
    args = options.parse_args()
    if not (args.data / "collectives").is_dir():
        raise SystemExit(f"collectives: no measurements in {args.data}; name their folder with --data")
    figures: dict[str, float] = {}
    with jax.enable_x64(True):
        if args.write:
            write(args.write, args.data)
            return
        for measurements in SETS:
            name = measurements.__name__
            predicted = extrapolate(measurements(args.data))
            figures |= medians(predicted, name)
            if predicted.system.nunique() > 1:
                forced = (predicted.kind + " " + predicted.algorithm).where(predicted.algorithm != "", "")
                labels = (predicted.system + " " + forced).str.strip().str.lower()
                for label, rows in predicted.groupby(labels.str.replace("[ .]", "_", regex=True)):
                    figures |= medians(rows, f"{name}_{label}")
            if not args.quick:
                show(predicted, name)
    report("collectives", figures, args)


if __name__ == "__main__":
    main()
