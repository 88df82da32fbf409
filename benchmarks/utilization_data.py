"""Measured kernels, each source brought to the dimensions of jaxscale's kernel families."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

Table = Any
"""A pandas table, of which type checkers know too little."""

FLOOR_QUANTILE = 0.005
"""The fastest calls of a framework on a device: what a call costs whatever it computes."""


class Part(NamedTuple):
    """What one source measured of one family on one device."""

    device: str
    family: str
    precision: str
    dimensions: np.ndarray
    """[dimension, row]"""
    seconds: np.ndarray
    overhead: float | None
    """s that every row includes besides its kernel; the launch overhead of the device where None."""


def _part(
    device: str,
    family: str,
    precision: str,
    columns: list[object],
    milliseconds: Any,
    overhead: float | None,
) -> Part:
    seconds = milliseconds.to_numpy(float) / 1e3
    dimensions = np.stack([np.broadcast_to(np.asarray(column, float), seconds.shape) for column in columns])
    return Part(device, family, precision, dimensions, seconds, overhead)


def _floor(milliseconds: Any) -> float:
    return float(milliseconds.quantile(FLOOR_QUANTILE)) / 1e3


DEEPBENCH = {
    "NV_M40": "m40",
    "NV_TitanX": "titan-x-maxwell",
    "NV_TitanX_Pascal": "titan-x-pascal",
    "NV_TitanXp": "titan-xp",
    "NV_1080Ti": "gtx-1080-ti",
    "NV_P100": "p100-pcie-16gb",
    "NV_V100": "v100-sxm2-16gb",
    "NV_T4": "t4",
    "AMD_MI25": "mi25",
    "AMD_VegaFE": "vega-frontier",
}
FORMATS = {"FP32": "fp32", "FP16_mixed": "fp16", "FP16_pseudo": "fp16"}
"""Both 16-bit modes compute with FP32 accumulation."""


def deepbench(folder: Path) -> Iterator[Part]:
    """Kernels in a loop, the fastest algorithm of the library."""
    table: Table = pd.read_csv(folder / "deepbench" / "conv.csv.gz")
    families = {
        "fwd_ms": "convolution_forward",
        "bwd_data_ms": "convolution_backward_data",
        "bwd_filter_ms": "convolution_backward_filter",
    }
    for (gpu, precision), rows in table[table.gpu.isin(DEEPBENCH)].groupby(["gpu", "precision"]):
        for column, family in families.items():
            t = rows[rows[column].notna()]
            h_out = (t.H + 2 * t.pad_h - t.R) // t.stride_h + 1
            w_out = (t.W + 2 * t.pad_w - t.S) // t.stride_w + 1
            stride = np.sqrt(t.stride_h * t.stride_w)
            sizes = [t.N, t.C, t.H, t.W, t.K, h_out, w_out, t.R, t.S, stride, 1, 1]
            yield _part(DEEPBENCH[gpu], family, FORMATS[precision], sizes, t[column], None)
    table: Table = pd.read_csv(folder / "deepbench" / "gemm.csv.gz")
    table = table[table.gpu.isin(DEEPBENCH) & (table["mode"] == "train")]
    for (gpu, precision), t in table.groupby(["gpu", "precision"]):
        yield _part(DEEPBENCH[gpu], "matmul", FORMATS[precision], [t.M, t.N, t.K], t.time_ms, None)


NEUSIGHT = {
    "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-16gb",
    "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
}
BINARY = ("add", "mul", "div", "pow")
"""Elementwise operators of NeuSight that read two tensors; the others read one."""


def neusight(folder: Path) -> Iterator[Part]:
    """Calls from PyTorch, forward, FP32 without TF32."""
    shapes = {
        "conv3x3_forward": lambda t: ("convolution_forward", _neusight_convolution(t)),
        "linear": lambda t: ("matmul", [t.batch * t.m, t.n, t.k]),
        "bmm": lambda t: ("batched_matmul", [t.batch, t.m, t.n, t.k]),
        "elem": lambda t: ("elementwise", [t.rows * t.cols, np.where(t.op.isin(BINARY), 2, 1), 1, 1]),
        "ln": lambda t: ("normalization", [t.rows * t.cols, t.cols, 1, 1, 0]),
        "softmax": lambda t: ("softmax", [t.rows, t.cols, 1, 1]),
    }
    for name, shape in shapes.items():
        table: Table = pd.read_csv(folder / "neusight" / f"{name}_fp32.csv.gz")
        for gpu, rows in table.groupby("device"):
            family, sizes = shape(rows)
            yield _part(NEUSIGHT[str(gpu)], family, "fp32", sizes, rows.time_ms, _floor(rows.time_ms))


def _neusight_convolution(t: Table) -> list[object]:
    out = (t.hw + 2 * t["pad"] - t.k) // t.stride + 1
    return [t.n, t.ci, t.hw, t.hw, t.co, out, out, t.k, t.k, t.stride, 1, 1]


JUSTUS = {
    "K40": "k40",
    "K80": "k80",
    "M60": "m60",
    "GTX1080Ti": "gtx-1080-ti",
    "P100": "p100-pcie-16gb",
    "V100": "v100-sxm2-16gb",
}


def justus(folder: Path) -> Iterator[Part]:
    """Convolution layers called from TensorFlow, forward.

    Its training rows are left out: they time forward, both gradients, a loss and updates of weights and input
    together. Its dense layers are too small for their overhead of 0.1 to 0.3 ms.
    """
    columns = [
        "gpu", "optimizer", "batchsize", "matsize", "channels_in", "channels_out", "kernelsize", "strides",
        "padding", "timeUsed_median",
    ]  # fmt: skip
    table: Table = pd.read_csv(folder / "justus2018" / "convolution_fp32.csv.gz", usecols=columns)
    for gpu, t in table[table.optimizer == "fwd_only"].groupby("gpu"):
        cut = np.where(t.padding == 1, 0, t.kernelsize - 1)
        out = np.maximum(np.ceil((t.matsize - cut) / t.strides), 0)
        sizes = [
            t.batchsize, t.channels_in, t.matsize, t.matsize, t.channels_out, out, out, t.kernelsize,
            t.kernelsize, t.strides, 1, 1,
        ]  # fmt: skip
        floor = _floor(t.timeUsed_median)
        yield _part(JUSTUS[str(gpu)], "convolution_forward", "fp32", sizes, t.timeUsed_median, floor)


MIOPEN = {
    "gfx900_56CU": "vega-56",
    "gfx906_60CU": "mi50",
    "gfx908_120CU": "mi100",
    "gfx90a_104CU": "mi210",
    "gfx1030_36WGP": "rx-6800-xt",
}


def miopen(folder: Path) -> Iterator[Part]:
    """Kernel times alone, of the fastest solver."""
    families = {
        "F": "convolution_forward",
        "B": "convolution_backward_data",
        "W": "convolution_backward_filter",
    }
    for name, device in MIOPEN.items():
        table: Table = pd.read_csv(folder / "miopen" / f"conv2d_{name}.csv.gz")
        for (kind, direction), t in table.groupby(["dtype", "dir"]):
            sizes = [
                t.N, t.C, t.H, t.W, t.K, t.Ho, t.Wo, t.fh, t.fw, np.sqrt(t.sh * t.sw), np.sqrt(t.dh * t.dw),
                t.groups,
            ]  # fmt: skip
            yield _part(device, families[direction], kind.lower(), sizes, t.time_ms, 0.0)


AICONFIGURATOR = {
    "a100_sxm": "a100-sxm4-80gb",
    "h100_sxm": "h100-sxm5-80gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-186gb",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}


def aiconfigurator(folder: Path) -> Iterator[Part]:
    """Matrix products replayed from a CUDA graph: no launch."""
    for name, precision in (("bfloat16", "bf16"), ("fp8", "fp8")):
        table: Table = pd.read_csv(folder / "aiconfigurator" / f"gemm_{name}_sglang.csv.gz")
        for column, device in AICONFIGURATOR.items():
            if column in table:
                t = table[table[column].notna()]
                yield _part(device, "matmul", precision, [t.m, t.n, t.k], t[column], 0.0)


SOURCES = (deepbench, neusight, justus, miopen, aiconfigurator)
