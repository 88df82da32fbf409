"""Utilization: the share of the roofline that kernels reach, one number per family, generation and format.

    python benchmarks/utilization.py [--quick] [--json] [--data FOLDER] [--write hardware_db/utilization.toml]

time = overhead + roofline / utilization, so each measurement gives roofline / (time - overhead). A row counts
where its roofline exceeds the overhead five times and its shape is one that networks have (`typical`). The
overhead is the device's launch overhead for DeepBench, which repeats each kernel in a queue; nothing for
MIOpen and aiconfigurator, which time the kernel alone; and for a framework call (NeuSight, Justus et al.)
what its smallest kernels take on that device. Every pair of source and device has one vote, the median of
its rows; the shipped number is the median of the votes, which is least absolute deviation in the logarithm.
What nobody measured follows `Fit.resolve`. `--quick` prints the same figures without the table of the votes.

utilization_<generation>.<family>_<format>.median_error  median over the votes of the median relative error
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from common import parser, report
from jaxscale import hardware_db
from jaxscale.hardware_db.loader import has_rate, runs_in
from jaxscale.hardware_db.schema import GENERATIONS
from jaxscale.kernels import MATRIX_FAMILIES, Roofline
from jaxscale.nouns import KERNEL_DIMENSIONS, KERNEL_FAMILIES, PRECISIONS
from utilization_data import SOURCES, Table

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DATE = "2026-11-30"

OVERHEADS = 5.0
"""A row counts where its roofline is this many times its overhead: launches then are under a sixth of it."""

LEAST_ROWS = 10
"""Fewer rows of one source on one device have no vote."""

SIBLING = {
    "convolution_backward_data": "convolution_forward",
    "convolution_backward_filter": "convolution_forward",
    "batched_matmul": "matmul",
    "normalization": "elementwise",
    "softmax": "elementwise",
    "pooling": "elementwise",
    "optimizer": "elementwise",
    "attention_forward": "batched_matmul",
    "attention_backward": "batched_matmul",
    "embedding": "elementwise",
    "recurrent": "matmul",
}
"""Family -> the family it resembles, where its own was not measured."""

NEAR_FORMATS = {
    "fp32": (),
    "tf32": ("bf16", "fp16"),
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "fp8": ("fp16", "bf16"),
}
"""Format of matrix units -> formats whose share of their own peak stands in for it, nearest first."""


KEY = ["generation", "family", "precision"]


class Value(NamedTuple):
    """A utilization and where it comes from."""

    share: float
    source: str


def roofline(device: str, family: str, precision: str, dimensions: np.ndarray) -> np.ndarray:
    """[row] s at utilization 1, without launch."""
    ideal = hardware_db.device(device)._replace(launch_overhead=jnp.zeros(()), utilization={})
    number = PRECISIONS.index(precision)
    itemsize = {"fp32": 4.0, "tf32": 4.0, "fp8": 1.0}.get(precision, 2.0)
    return np.asarray(
        Roofline()(family, jnp.asarray(dimensions), jnp.asarray(itemsize), jnp.int32(number), ideal)
    )


def typical(family: str, dimensions: np.ndarray) -> np.ndarray:
    """[row] Whether a convolution has 32 channels or more on both sides, one group, an odd kernel, a stride
    of 1 or 2 and no dilation; every shape of the other families counts."""
    if not family.startswith("convolution"):
        return np.ones(dimensions.shape[1], bool)
    shape = dict(zip(KERNEL_DIMENSIONS[family], dimensions, strict=True))
    wide = (shape["in_channels"] >= 32) & (shape["out_channels"] >= 32)
    odd = (shape["kernel_height"] % 2 == 1) & (shape["kernel_width"] % 2 == 1)
    return wide & odd & (shape["stride"] <= 2) & (shape["dilation"] == 1) & (shape["groups"] == 1)


def votes(data: Path) -> Table:
    """One row per source, device, family and format that has enough rows."""
    found = []
    for source in SOURCES:
        for part in source(data / "kernels"):
            launch = float(hardware_db.device(part.device).launch_overhead)
            overhead = launch if part.overhead is None else part.overhead
            ideal = roofline(part.device, part.family, part.precision, part.dimensions)
            busy = part.seconds - overhead
            counts = (ideal > OVERHEADS * max(overhead, launch)) & (busy > 0)
            counts &= typical(part.family, part.dimensions)
            if counts.sum() < LEAST_ROWS:
                continue
            found.append(
                {
                    "source": source.__name__,
                    "device": part.device,
                    "generation": hardware_db.load_device(part.device).generation,
                    "family": part.family,
                    "precision": part.precision,
                    "rows": int(counts.sum()),
                    "share": float(np.median(ideal[counts] / busy[counts])),
                    "overhead": overhead,
                    "ideal": ideal[counts],
                    "seconds": part.seconds[counts],
                }
            )
    return pd.DataFrame(found)


class Fit:
    """Measured utilizations, and the rule for the rest."""

    def __init__(self, found: Table) -> None:
        self.measured: dict[tuple[str, str, str], Value] = {}
        self.errors: dict[tuple[str, str, str], float] = {}
        for generation, family, precision in found[KEY].drop_duplicates().itertuples(index=False):
            here = (found.generation == generation) & (found.family == family)
            group = found[here & (found.precision == precision)]
            share = float(group.share.median())
            error = float(np.median([_error(vote, share) for vote in group.to_dict("records")]))
            names = ", ".join(sorted(group.source + " " + group.device))
            note = f"{group.rows.sum()} rows of {names}; median error {error:.2f}"
            self.measured[generation, family, precision] = Value(share, note)
            self.errors[generation, family, precision] = error

    def resolve(self, generation: str, family: str, precision: str) -> Value:
        """The measured value, or else the first of these.

        1. The value of the format in which the generation runs one that it lacks.
        2. Another format of matrix units, measured in the same family and generation.
        3. For a family that resembles another (`SIBLING`), the other's value in this generation, times the
           ratio of the two in the nearest generation that has both.
        4. The nearest generation of the vendor that measured the family or the one it resembles.
        5. The median over all generations of the family, or of the one it resembles, in a near format.
        """
        own = self._own(generation, family, precision)
        native = _runs_in(generation, precision)
        if (generation, family, precision) not in self.measured and native != precision:
            return Value(self.resolve(generation, family, native).share, f"as {native}")
        if own:
            return own
        sibling = SIBLING.get(family, family)
        other = self._own(generation, sibling, precision)
        if other:
            return self._by_sibling(generation, family, sibling, precision, other.share)
        for near in _neighbours(generation):
            value = self._own(near, family, precision)
            if value:
                return Value(value.share, f"as {near}")
            other = self._own(near, sibling, precision)
            if other:
                share = self._by_sibling(near, family, sibling, precision, other.share).share
                return Value(share, f"as {near}")
        formats = (precision, *NEAR_FORMATS[precision], "fp32")
        for name, stand_in in product((family, sibling), formats):
            shares = [
                value.share
                for (where, *rest), value in self.measured.items()
                if rest == [name, stand_in] and _runs_in(where, stand_in) == stand_in
            ]
            if shares:
                note = f"median of {name}.{stand_in} in {len(shares)} generations"
                return Value(float(np.median(shares)), note)
        raise SystemExit(f"utilization: nothing stands in for {family} in {precision} on {generation}")

    def _own(self, generation: str, family: str, precision: str) -> Value | None:
        """Measured in this generation, in this format or a near one."""
        for stand_in in (precision, *NEAR_FORMATS[precision]):
            value = self.measured.get((generation, family, stand_in))
            if value:
                return value if stand_in == precision else Value(value.share, f"as {stand_in}")
        return None

    def _by_sibling(self, generation: str, family: str, sibling: str, precision: str, share: float) -> Value:
        for near in _neighbours(generation):
            mine, its = self._own(near, family, precision), self._own(near, sibling, precision)
            if mine and its:
                return Value(
                    share * mine.share / its.share, f"{sibling} times the ratio of the two on {near}"
                )
        return Value(share, f"as {sibling}")


def _error(vote: dict[str, Any], share: float) -> float:
    predicted = vote["overhead"] + vote["ideal"] / share
    return float(np.median(np.abs(predicted / vote["seconds"] - 1)))


@cache
def _runs_in(generation: str, precision: str) -> str:
    """The format itself where a device of the generation has it, else the one in which it runs."""
    entries = map(hardware_db.load_device, hardware_db.device_names())
    devices = [entry for entry in entries if entry.generation == generation]

    return runs_in(precision, lambda name: any(has_rate(entry, name) for entry in devices))


def _neighbours(generation: str) -> list[str]:
    """Other generations of the vendor, nearest first, of two equally near ones the older."""
    order = next(names for names in GENERATIONS.values() if generation in names)
    if order is GENERATIONS["others"]:
        return []
    place = order.index(generation)
    return sorted(
        (name for name in order if name != generation), key=lambda name: abs(order.index(name) - place)
    )


def toml(fit: Fit) -> str:
    """The file: per generation a table of values and a table of their sources."""
    lines = [
        "# Share of the roofline that kernels reach, by generation of devices, kernel family and format.",
        "# Generated; do not edit: python benchmarks/utilization.py --write hardware_db/utilization.toml",
        "# Values above 1 are convolutions by fewer multiplications than the direct count (Winograd, FFT).",
    ]
    for generation in (name for names in GENERATIONS.values() for name in names):
        values, sources = [], []
        for family in KERNEL_FAMILIES:
            formats = PRECISIONS if family in MATRIX_FAMILIES else ("fp32",)
            each = {precision: fit.resolve(generation, family, precision) for precision in formats}
            if family in MATRIX_FAMILIES:
                shares = ", ".join(f"{precision} = {value.share:.3g}" for precision, value in each.items())
                values.append(f"{family} = {{ {shares} }}")
                sources += [f'"{family}.{precision}" = "{value.source}"' for precision, value in each.items()]
            else:
                values.append(f"{family} = {each['fp32'].share:.3g}")
                sources.append(f'{family} = "{each["fp32"].source}"')
        head = [
            'source = "fitted to kernels that others measured, or as said under sources"',
            f"date = {DATE}",
        ]
        lines += ["", f"[{generation}]", *values, *head, "", f"[{generation}.sources]", *sources]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measurements")
    options.add_argument("--write", type=Path, metavar="FILE", help="write the fitted values as TOML")
    args = options.parse_args()
    if not (args.data / "kernels").is_dir():
        raise SystemExit(f"utilization: no measurements in {args.data}; name their folder with --data")
    found = votes(args.data)
    fit = Fit(found)
    if not args.quick:
        columns = ["family", "generation", "precision", "source", "device", "rows", "share"]
        print(found[columns].sort_values(columns[:5]).round(3).to_string(index=False), file=sys.stderr)
    if args.write:
        write(args.write, toml(fit))
    figures = {
        f"utilization_{generation}.{family}_{precision}.median_error": error
        for (generation, family, precision), error in fit.errors.items()
    }
    report("utilization", figures, args)


if __name__ == "__main__":
    main()
