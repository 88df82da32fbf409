"""Kernel times against the measurements of others: the roofline, boosted trees and the learned networks.

    python benchmarks/accuracy_kernels.py [--quick] [--data FOLDER] [--weights FILE] [--steps N]

One row per set: mean absolute percentage error on held-out shapes, share of them inside the 95 % interval,
and the error on each device by networks that never met it. The script repeats the training; --quick scores
the weights that come with jaxscale, on at most 2,000 held-out kernels of each set and device. Boosted trees
(LightGBM, where it is installed) learn log(time / roofline) from the same rows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import jaxscale.training as training
from common import parser, report
from jaxscale.kernels import Roofline
from jaxscale.kernels.doubt import FOLDS, LEVELS
from jaxscale.kernels.weights import Weights, shipped, write_weights
from jaxscale.measurements import Table, least_seconds
from jaxscale.timing import measured_seconds
from jaxscale.training.arrange import group_of
from jaxscale.training.folds import device_folds, held_out
from jaxscale.validate import interval_half_widths
from kernels_data import load
from kernels_tidy import DATA

WITHHELD = ("deepbench",)
"""Sources that a member of its own never sees."""

SETS = {
    "aiconfigurator_gemm_bf16": ("aiconfigurator_gemm_bf16", ""),
    "aiconfigurator_gemm_fp8": ("aiconfigurator_gemm_fp8", ""),
    "aiconfigurator_attention": ("aiconfigurator_attention", ""),
    "neusight_linear": ("neusight_linear", ""),
    "neusight_bmm": ("neusight_bmm", ""),
    "neusight_conv3x3": ("neusight_conv3x3", ""),
    "neusight_memory_bound": ("neusight_elem neusight_ln neusight_softmax", ""),
    "miopen_fp32": ("miopen", "fp32"),
    "miopen_fp16": ("miopen", "fp16"),
    "justus_conv": ("justus_conv", ""),
    "justus_dense": ("justus_dense", ""),
    "deepbench_conv": ("deepbench_conv", ""),
    "deepbench_gemm": ("deepbench_gemm", ""),
    "deepbench_rnn": ("deepbench_rnn", ""),
}
"""Row of the table -> beginnings of the names of its sets, and its precision where it has one of several."""

NEVER_SHOWN = {"deepbench_conv": ("p100", "v100", "t4"), "deepbench_gemm": ("p100", "v100", "t4")}
"""Rows that are judged by the member that never saw their source -> the GPUs they are judged on."""

SAMPLE = 2000


def sample(table: Table) -> Table:
    """At most `SAMPLE` held-out kernels of every set and device; all of a set that has few."""
    kept = table[held_out(table) | table.set.isin(["deepbench_conv", "deepbench_gemm"])]
    mixed = kept.sample(frac=1, random_state=0)
    return mixed.groupby(["set", "precision", "device"]).head(SAMPLE).sort_index().reset_index(drop=True)


def judged(table: Table, weights: Weights, folds: dict[str, dict[str, int]]) -> Table:
    """The table with what the members of `weights` expect, as `training.train` returns it."""

    def by(member: int) -> np.ndarray:
        return measured_seconds(table, weights.member(member), weights.measuring)

    fold = np.array([folds[group_of(f)][d] for f, d in zip(table.family, table.device, strict=True)])
    lacking = np.stack([by(1 + i) for i in range(FOLDS)])
    return table.assign(
        held_out=held_out(table),
        expected=by(0),
        unseen=lacking[fold, np.arange(len(table))],
        withheld=np.where(table.source.isin(WITHHELD), by(1 + FOLDS), np.nan),
    )


def trees(table: Table, learn: np.ndarray, judge: np.ndarray) -> np.ndarray | None:
    """[judged row] s that boosted trees expect, or None where LightGBM is not installed."""
    try:
        import lightgbm  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    sizes = [c for c in table if c not in ("seconds", "spread") and table[c].dtype.kind == "f"]
    features = np.log1p(table[sizes].dropna(axis=1, how="all").to_numpy(float))
    numbers = np.array([_numbers(name) for name in table.device])
    kinds = pd.get_dummies(table[["direction", "precision"]]).to_numpy(float)
    features = np.concatenate([features, numbers, kinds], 1)
    bound = np.log(least_seconds(table))
    model: Any = lightgbm.LGBMRegressor(
        n_estimators=400, num_leaves=127, learning_rate=0.08, objective="l1", verbose=-1
    )
    model.fit(features[learn], np.log(table.seconds.to_numpy())[learn] - bound[learn])
    return np.exp(model.predict(features[judge]) + bound[judge])


def _numbers(name: str) -> list[float]:
    from jaxscale import hardware_db

    device = hardware_db.device(name)
    rates = (
        *(device.peak_flops[0], device.peak_flops[2], device.memory_bandwidth),
        *(device.multiprocessors, device.cache_capacity, device.clock),
    )
    return [float(np.log(rate)) for rate in rates]


def score(name: str, table: Table, baseline: bool) -> dict[str, float | None]:
    """The figures of one row of the table."""
    prefixes, precision = SETS[name]
    of_set = table.set.str.startswith(tuple(prefixes.split()))
    rows = table[of_set & ((table.precision == precision) if precision else True)].reset_index(drop=True)
    unseen = {device: _mape(part, part.unseen) for device, part in _kept(rows).groupby("device")}
    if name in NEVER_SHOWN:
        shown = rows[rows.device.str.startswith(NEVER_SHOWN[name])]
        judged = shown.assign(expected=shown.withheld)
    else:
        judged = _kept(rows)
    figures: dict[str, float | None] = {
        f"{name}.heldout.mape": _mape(judged, judged.expected),
        f"{name}.heldout.coverage95": _coverage(judged) if name not in NEVER_SHOWN else None,
        f"{name}.heldout.roofline_mape": _mape(judged, judged.roofline),
    }
    if baseline and name not in NEVER_SHOWN:
        guess = trees(rows, (~rows.held_out).to_numpy(), rows.held_out.to_numpy())
        figures[f"{name}.heldout.trees_mape"] = None if guess is None else _mape(rows[rows.held_out], guess)
    return figures | {f"{name}.without_{device}.mape": value for device, value in unseen.items()}


def _kept(rows: Table) -> Table:
    return rows[rows.held_out]


def _mape(rows: Table, expected: Any) -> float:
    return float(100 * np.mean(np.abs(np.asarray(expected) / rows.seconds.to_numpy() - 1)))


def _coverage(rows: Table) -> float:
    return float(100 * np.mean(np.abs(np.log(rows.expected / rows.seconds)) <= rows.half_width))


def worst(table: Table, count: int = 10) -> Table:
    """The cells (set, device, direction, precision) with the largest error on held-out shapes."""
    error = (table.expected / table.seconds - 1).abs()
    cells = error[table.held_out].groupby(
        [table[name] for name in ("set", "device", "direction", "precision")], observed=True
    )
    return cells.agg(["mean", "median", "size"]).sort_values("mean", ascending=False).head(count)


def main(args: argparse.Namespace) -> None:
    table = load(folder=args.data)
    folds = {group: device_folds(rows) for group, rows in table.groupby(table.family.map(group_of))}
    figures: dict[str, float | None] = {}
    if args.quick:
        weights = shipped()
        table = judged(sample(table), weights, folds)
    else:
        started = time.monotonic()

        def progress(group: str, step: int, steps: int, error: np.ndarray) -> None:
            if step * 10 // steps != (step - steps // 40) * 10 // steps:
                print(f"{group} {step}/{steps}: {100 * error[0]:.1f} %", flush=True)

        weights, table = training.train(table, WITHHELD, steps=args.steps, progress=progress)
        figures["training.seconds"] = time.monotonic() - started
        if args.weights:
            write_weights(weights, args.weights)
    table = table.assign(
        roofline=measured_seconds(table, Roofline(), weights.measuring),
        half_width=interval_half_widths(table, weights)[LEVELS.index(0.95)],
    )
    for name in SETS:
        figures |= score(name, table, baseline=not args.quick)
    if not args.json:
        print(worst(table).to_string(), "\n")
    report("accuracy_kernels", figures, args)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measured kernels")
    options.add_argument("--weights", type=Path, help="where to write the weights")
    options.add_argument("--steps", type=int, help="training steps of every network")
    main(options.parse_args())
