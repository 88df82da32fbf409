"""Kernels that others measured, as tidy tables (see `jaxscale.measurements`); run to print what teaches what.

    python benchmarks/kernels_data.py [--data FOLDER]

One reader per set in `READERS`; what a reader leaves out it notes in `DROPPED`. A kernel that a set timed
several times on a device has one row, the median.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from jaxscale.measurements import (
    ENGINE_FAMILIES,
    Table,
    least_seconds,
    measurement_map,
    median_of_repeats,
    shape_position,
    split_by_shape,
)
from kernels_layers import justus_conv, justus_dense
from kernels_profiles import aceso, sailor
from kernels_tidy import DATA, DROPPED, drop, tidy
from utilization_data import AICONFIGURATOR, BINARY, DEEPBENCH, FORMATS, MIOPEN, NEUSIGHT

__all__ = ["DROPPED", "READERS", "load", "shape_position", "split_by_shape"]

ABOVE_ROOFLINE = 10.0
"""Fourier transforms do 7 x 7 convolutions up to 6.5 times faster than the direct count allows."""


def _neusight(folder: Path, name: str) -> Table:
    table: Table = pd.read_csv(folder / "neusight" / f"{name}_fp32.csv.gz")
    return table.assign(device=table.device.map(NEUSIGHT), seconds=table.time_ms / 1e3)


def neusight_linear(folder: Path) -> Table:
    """Linear layers; the bias is added by the product itself. The slow T4 is a source of its own."""
    t = _neusight(folder, "linear")
    table = tidy(
        "neusight", "matmul", "forward", "fp32", t.device,
        m=t.batch * t.m, n=t.n, k=t.k, seconds=t.seconds,
    )  # fmt: skip
    table["source"] = np.where(table.device == "t4", "neusight_t4_linear", "neusight")
    return median_of_repeats(table)


def neusight_bmm(folder: Path) -> Table:
    t = _neusight(folder, "bmm")
    table = tidy(
        "neusight", "batched_matmul", "forward", "fp32", t.device, batch=t.batch, m=t.m, n=t.n, k=t.k,
        seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def neusight_conv3x3(folder: Path) -> Table:
    t = _neusight(folder, "conv3x3_forward")
    out = (t.hw + 2 * t["pad"] - t.k) // t.stride + 1
    table = tidy(
        "neusight", "convolution", "forward", "fp32", t.device, batch=t.n, in_channels=t.ci, in_height=t.hw,
        in_width=t.hw, out_channels=t.co, out_height=out, out_width=out, kernel_height=t.k, kernel_width=t.k,
        stride=t.stride, dilation=1, groups=1, seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def neusight_elem(folder: Path) -> Table:
    """Operators that move the same bytes take the same time, so the operator is no dimension."""
    t = _neusight(folder, "elem")
    table = tidy(
        "neusight", "elementwise", "forward", "fp32", t.device, elements=t["rows"] * t.cols,
        reads=np.where(t.op.isin(BINARY), 2, 1), writes=1, flops=1, seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def neusight_ln(folder: Path) -> Table:
    """A second read of the input is a matter of the kernel and the cache: the bound has one."""
    t = _neusight(folder, "ln")
    table = tidy(
        "neusight", "normalization", "forward", "fp32", t.device, elements=t["rows"] * t.cols,
        channels=t.cols, reads=1, writes=1, across_samples=0, seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def neusight_softmax(folder: Path) -> Table:
    t = _neusight(folder, "softmax")
    table = tidy(
        "neusight", "softmax", "forward", "fp32", t.device, rows=t["rows"], columns=t.cols, reads=1,
        writes=1, seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def miopen(folder: Path) -> Table:
    """The fastest solver of each convolution."""
    tables = [
        pd.read_csv(folder / "miopen" / f"conv2d_{name}.csv.gz").assign(device=device)
        for name, device in MIOPEN.items()
    ]
    t: Table = pd.concat(tables, ignore_index=True)
    t = drop("miopen", "no solver but the naive one was tried", t, t.n_solvers == 0)
    directions = {"F": "forward", "B": "backward_data", "W": "backward_filter"}
    table = tidy(
        "miopen", "convolution", t.dir.map(directions), t.dtype.str.lower(), t.device,
        batch=t.N, in_channels=t.C, in_height=t.H, in_width=t.W, out_channels=t.K, out_height=t.Ho,
        out_width=t.Wo, kernel_height=t.fh, kernel_width=t.fw, stride=np.sqrt(t.sh * t.sw),
        dilation=np.sqrt(t.dh * t.dw), groups=t.groups, seconds=t.time_ms / 1e3,
    )  # fmt: skip
    fast = table.seconds * ABOVE_ROOFLINE < least_seconds(table)
    table = drop("miopen", "over ten times the roofline", table, fast)
    return median_of_repeats(table)


def _deepbench(folder: Path, name: str) -> Table:
    table: Table = pd.read_csv(folder / "deepbench" / f"{name}.csv.gz")
    unknown = ~table.gpu.isin(DEEPBENCH)
    table = drop(f"deepbench_{name}", "not a GPU", table, unknown)
    return table.assign(device=table.gpu.map(DEEPBENCH), precision=table.precision.map(FORMATS))


def deepbench_conv(folder: Path) -> Table:
    """The three products of a convolution; the gradient of the data was not taken for first layers."""
    rows = _deepbench(folder, "conv")
    columns = {"forward": "fwd_ms", "backward_data": "bwd_data_ms", "backward_filter": "bwd_filter_ms"}
    tables = []
    for direction, column in columns.items():
        t = rows[rows[column].notna()]
        table = tidy(
            "deepbench", "convolution", direction, t.precision, t.device, batch=t.N, in_channels=t.C,
            in_height=t.H, in_width=t.W, out_channels=t.K, out_height=(t.H + 2 * t.pad_h - t.R) // t.stride_h
            + 1, out_width=(t.W + 2 * t.pad_w - t.S) // t.stride_w + 1, kernel_height=t.R, kernel_width=t.S,
            stride=np.sqrt(t.stride_h * t.stride_w), dilation=1, groups=1, seconds=t[column] / 1e3,
        )  # fmt: skip
        tables.append(table)
    return median_of_repeats(pd.concat(tables, ignore_index=True))


def deepbench_gemm(folder: Path) -> Table:
    """Matrix products as such; which operand is transposed is no dimension.

    The products for inference reach twice (T4) to four times (Pascal) the FP16 peak: they are in INT8.
    """
    t = _deepbench(folder, "gemm")
    t = drop("deepbench_gemm", "INT8", t, t["mode"] == "inference")
    table = tidy(
        "deepbench", "matmul", "forward", t.precision, t.device, m=t.M, n=t.N, k=t.K, seconds=t.time_ms /
        1e3,
    )  # fmt: skip
    return median_of_repeats(table)


def deepbench_rnn(folder: Path) -> Table:
    """Layers that add their input to the gates without a product; backward is data and weights together."""
    t = _deepbench(folder, "rnn")
    times = {"forward": t.fwd_ms, "backward": t.bwd_total_ms.fillna(t.bwd_data_ms + t.bwd_weight_ms)}
    tables = [
        tidy(
            "deepbench", "recurrent", direction, t.precision, t.device, batch=t.batch, inputs=0,
            hidden=t.hidden, gates=t.cell.map({"Vanilla": 1, "GRU": 3, "LSTM": 4}), timesteps=t.timesteps,
            passes=1 if direction == "forward" else 2, seconds=time / 1e3,
        ).dropna()
        for direction, time in times.items()
    ]  # fmt: skip
    return median_of_repeats(pd.concat(tables, ignore_index=True))


def _aiconfigurator(folder: Path, name: str) -> Table:
    table: Table = pd.read_csv(folder / "aiconfigurator" / f"{name}.csv.gz")
    sizes = [column for column in table if column not in AICONFIGURATOR]
    long = table.melt(sizes, var_name="gpu", value_name="ms").dropna(subset="ms")
    return long.assign(device=long.gpu.map(AICONFIGURATOR), seconds=long.ms / 1e3)


def _aiconfigurator_gemm(folder: Path, name: str, precision: str) -> Table:
    t = _aiconfigurator(folder, f"gemm_{name}_sglang")
    table = tidy(
        "aiconfigurator_sglang", "matmul", "forward", precision, t.device, m=t.m, n=t.n, k=t.k,
        seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def aiconfigurator_gemm_bf16(folder: Path) -> Table:
    return _aiconfigurator_gemm(folder, "bfloat16", "bf16")


def aiconfigurator_gemm_fp8(folder: Path) -> Table:
    """Times include that the activations are brought to FP8."""
    return _aiconfigurator_gemm(folder, "fp8", "fp8")


def _attention(t: Table, kv_heads: object, causal: int) -> Table:
    table = tidy(
        "aiconfigurator_vllm", "attention", "forward", "bf16", t.device, batch=t.batch_size,
        query_length=t.isl, key_length=t.isl, heads=t.num_heads, kv_heads=kv_heads, head_dim=t.head_dim,
        causal=causal, seconds=t.seconds,
    )  # fmt: skip
    return median_of_repeats(table)


def aiconfigurator_attention_context(folder: Path) -> Table:
    t = _aiconfigurator(folder, "context_attention_bf16_vllm")
    return _attention(t, t.num_key_value_heads, 1)


def aiconfigurator_attention_encoder(folder: Path) -> Table:
    t = _aiconfigurator(folder, "encoder_attention_bf16_vllm")
    return _attention(t, t.num_heads, 0)


READERS = {
    reader.__name__: reader
    for reader in (
        neusight_linear, neusight_bmm, neusight_conv3x3, neusight_elem, neusight_ln, neusight_softmax, miopen,
        justus_conv, justus_dense, deepbench_conv, deepbench_gemm, deepbench_rnn, aiconfigurator_gemm_bf16,
        aiconfigurator_gemm_fp8, aiconfigurator_attention_context, aiconfigurator_attention_encoder, aceso,
        sailor,
    )
}  # fmt: skip
"""Set -> function(folder of the measurements) -> tidy table."""


def load(names: Iterable[str] = tuple(READERS), folder: Path = DATA) -> Table:
    """Return the named sets as one tidy table with a further column `set`."""
    tables = [READERS[name](folder).assign(set=name) for name in names]
    return pd.concat(tables, ignore_index=True)


def missing(mapped: Table) -> list[str]:
    """Family, direction, precision and vendor of which there is no measurement."""
    known = set(mapped[["family", "direction", "precision", "vendor"]].itertuples(index=False, name=None))
    lines = []
    for family, directions in ENGINE_FAMILIES.items():
        for direction in (d for d in directions if d != "training"):
            cells = product(("nvidia", "amd"), ("fp32", "tf32", "fp16", "bf16", "fp8"))
            gaps = [
                f"{vendor} {precision}"
                for vendor, precision in cells
                if (family, direction, precision, vendor) not in known
                and (vendor, precision) not in (("amd", "tf32"), ("amd", "fp8"))
            ]
            lines.append(f"{family} {direction}: {', '.join(gaps) or 'nothing'}")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measured kernels")
    folder = options.parse_args().data
    if not folder.is_dir():
        raise SystemExit(f"kernels_data: no measurements in {folder}; name their folder with --data")
    table = load(folder=folder)
    mapped = measurement_map(table)
    print(table.groupby("set", sort=False).size().to_string(), "\n")
    print(mapped.to_string(index=False), "\n\nno measurement of")
    print("\n".join(missing(mapped)), "\n\nleft out")
    print("\n".join(f"{name}: {rows} rows: {reason}" for (name, reason), rows in DROPPED.items()))


if __name__ == "__main__":
    main()
