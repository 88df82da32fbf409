"""Which kernels to measure: those of a network, or a designed sample of a family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from jaxscale.errors import InputError, choose
from jaxscale.lowering import lower
from jaxscale.measurement_format import ENGINE_FAMILIES, MEASUREMENT_DIMENSIONS, Table
from jaxscale.network import Network
from jaxscale.nouns import KERNEL_DIMENSIONS, PRECISIONS, Shard
from jaxscale.shapes import distinct

MEASURED_AS = {
    family: (measured, direction)
    for measured, directions in ENGINE_FAMILIES.items()
    for direction, families in directions.items()
    if len(families) == 1 and direction != "training"
    for family in families
    if family not in ("matmul",) or direction == "forward"
}
"""Kernel family of the engine -> family and direction of a measurement that times one such kernel."""

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "convolution": {
        "batch": (1, 128), "in_channels": (3, 1024), "in_height": (7, 128), "out_channels": (16, 1024),
    },
    "matmul": {"m": (1, 8192), "n": (16, 8192), "k": (16, 8192)},
    "batched_matmul": {"batch": (1, 256), "m": (1, 2048), "n": (16, 2048), "k": (16, 512)},
    "attention": {"batch": (1, 16), "query_length": (32, 4096), "heads": (4, 64)},
    "normalization": {"rows": (64, 1e6), "channels": (16, 4096)},
    "elementwise": {"elements": (1e3, 1e8)},
    "softmax": {"rows": (16, 1e5), "columns": (16, 32768)},
    "pooling": {"batch": (1, 128), "channels": (16, 512), "edge": (8, 112)},
    "embedding": {"rows": (64, 65536), "width": (64, 4096), "vocabulary": (1e3, 1e5)},
    "recurrent": {"batch": (1, 128), "hidden": (64, 2048), "timesteps": (5, 100)},
    "optimizer": {"parameters": (1e3, 1e8)},
}  # fmt: skip
"""Family -> sizes that are drawn, evenly on a logarithmic scale, between two ends."""


def network_shapes(network: Network, batches: Sequence[int], precision: str, optimizer: str) -> Table:
    """The distinct kernels of training steps of a network on one device, in the measurement format.

    Args:
        network: whose kernels.
        batches: samples per step.
        precision: a format as `lower` knows it.
        optimizer: as `lower` knows it.

    >>> from jaxscale import zoo
    >>> shapes = network_shapes(zoo.build("lenet-5"), [32], "fp32", "sgd")
    >>> shapes.groupby("family").size()["convolution"]  # 3 forward, 2 gradients of data, 3 of filters
    np.int64(8)
    """
    workload = lower(network, precision, optimizer)
    layers = len(workload.layers.parameters)
    sizes: Any = (
        np.array(batches, np.float32),
        np.ones(len(batches), np.float32),
        np.zeros((layers, len(batches))),
    )
    rows = []
    for family, shapes in distinct(workload, Shard(*sizes)).items():
        measured, direction = MEASURED_AS[family]
        formats = [PRECISIONS[i] for i in np.asarray(shapes.precision)]
        for kernel, name in zip(np.asarray(shapes.dimensions).T, formats, strict=True):
            labels = {"family": measured, "direction": direction, "precision": name}
            rows.append(labels | dict(zip(KERNEL_DIMENSIONS[family], map(float, kernel), strict=True)))
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)


def designed_shapes(family: str, count: int, precision: str, seed: int = 0) -> Table:
    """A sample of a family, in the measurement format: half of the sizes multiples of 8, half arbitrary.

    Args:
        family: a key of `RANGES`.
        count: kernels, shared out evenly among the directions.
        precision: a format.
        seed: of everything drawn.

    >>> shapes = designed_shapes("matmul", 6, "fp32")
    >>> shapes.direction.value_counts().to_dict()
    {'forward': 2, 'backward_data': 2, 'backward_filter': 2}
    """
    family = choose("family", family, RANGES)
    if count < 1:
        raise InputError(f"the number of kernels to measure is {count}, but it must be at least 1")
    draw = np.random.default_rng(seed)
    directions = [direction for direction in ENGINE_FAMILIES[family] if direction != "training"]
    rows = []
    for number in range(count):
        labels = {"family": family, "direction": directions[number % len(directions)], "precision": precision}
        drawn = {
            name: _round(np.exp(draw.uniform(*np.log(ends))), bool(draw.integers(2)), ends[0])
            for name, ends in RANGES[family].items()
        }
        complete = _complete(family, drawn, labels["direction"], draw)
        rows.append(labels | {name: float(complete[name]) for name in MEASUREMENT_DIMENSIONS[family]})
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)


def _round(value: float, to_eights: bool, least: float) -> int:
    return max(round(value / 8) * 8 if to_eights and value >= 8 else round(value), int(least))


def _complete(family: str, sizes: dict[str, int], direction: str, draw: Any) -> dict[str, Any]:
    """The sizes that follow from those that were drawn, or that are a choice among a few."""
    if family == "convolution":
        kernel, stride = int(draw.choice([1, 3, 3, 3, 5, 7])), int(draw.choice([1, 1, 2]))
        edge = max(sizes["in_height"], kernel)
        out = (edge - 1) // stride + 1
        square = {"in_height": edge, "in_width": edge, "out_height": out, "out_width": out}
        fixed = {
            "kernel_height": kernel,
            "kernel_width": kernel,
            "stride": stride,
            "dilation": 1,
            "groups": 1,
        }
        return sizes | square | fixed
    if family == "attention":
        shared = int(draw.choice([1, 4]))
        heads = -(-sizes["heads"] // shared) * shared
        few = {"heads": heads, "kv_heads": heads // shared, "head_dim": int(draw.choice([64, 128]))}
        return sizes | few | {"key_length": sizes["query_length"], "causal": int(draw.integers(2))}
    if family == "normalization":
        across = int(draw.integers(2))
        elements = sizes["rows"] * sizes["channels"]
        reads = (4 if across else 3) if direction == "backward" else 1 + across
        return sizes | {"elements": elements, "reads": reads, "writes": 1, "across_samples": across}
    if family == "pooling":
        window = int(draw.choice([4, 9]))
        size = {"in_size": sizes["edge"] ** 2, "out_size": max(sizes["edge"] // 2, 1) ** 2, "window": window}
        return sizes | size | {"passes": 2 if direction == "backward" else 1}
    if family == "recurrent":
        few = {"inputs": sizes["hidden"], "gates": int(draw.choice([1, 3, 4]))}
        return sizes | few | {"passes": 2 if direction == "backward" else 1}
    moved = {"elementwise": {"reads": int(draw.choice([1, 2])), "writes": 1, "flops": 1},
             "softmax": {"reads": 1, "writes": 1},
             "optimizer": {"reads": 3, "writes": 2, "flops": 4}}  # fmt: skip
    return sizes | moved.get(family, {})
