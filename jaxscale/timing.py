"""Which kernels a measurement adds up, and how long a kernel model says that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale import hardware_db
from jaxscale.kernels import KernelModel
from jaxscale.kernels.weights import Measuring
from jaxscale.measurement_format import ENGINE_FAMILIES, ITEMSIZES, MEASUREMENT_DIMENSIONS, Table
from jaxscale.nouns import PRECISIONS, Array, Device
from jaxscale.runtime import quick_jit

CHUNK = 8192
"""Measured kernels timed at once, so that one compiled program serves tables of any length."""

AT_ONCE = 512
"""Kernels of a few plans timed at once."""

_ORDERS: dict[tuple[str, str], tuple[tuple[int, ...], ...]] = {
    ("matmul", "backward_data"): ((0, 2, 1),),
    ("matmul", "backward_filter"): ((1, 2, 0),),
    ("matmul", "training"): ((0, 1, 2), (0, 2, 1), (1, 2, 0)),
    ("batched_matmul", "backward"): ((0, 1, 3, 2), (0, 2, 3, 1)),
}
"""Products that a direction stands for, as orders of the dimensions of the forward one: m k n for the
gradient of the input, n k m for that of the weight."""


class Kernels(NamedTuple):
    """The same kernel of several measurements."""

    family: str
    """A key of `KERNEL_DIMENSIONS`."""
    dimensions: np.ndarray
    """[dimension, row]"""
    itemsize: np.ndarray
    """[row] B"""
    precision: np.ndarray
    """[row] int32 index into `PRECISIONS`"""


def kernels_of(frame: Table) -> Iterator[tuple[np.ndarray, list[Kernels]]]:
    """Yield, per family and direction, the rows [row] and the kernels that each of them adds up.

    Args:
        frame: a table that `check_measurements` returned.

    >>> import pandas as pd
    >>> layer = {"family": "matmul", "direction": "training", "precision": "fp32", "device": "v100"}
    >>> frame = pd.DataFrame([layer | {"m": 64, "n": 1000, "k": 4096, "seconds": 1e-3}])
    >>> [[kernel.dimensions[:, 0].tolist() for kernel in kernels] for rows, kernels in kernels_of(frame)]
    [[[64.0, 1000.0, 4096.0], [64.0, 4096.0, 1000.0], [1000.0, 4096.0, 64.0]]]
    """
    groups: Table = frame.groupby(["family", "direction"], sort=False).indices
    for (family, direction), rows in groups.items():
        sizes = frame[list(MEASUREMENT_DIMENSIONS[family])].to_numpy(float)[rows].T
        formats = frame.precision.iloc[rows]
        itemsize = formats.map(ITEMSIZES).to_numpy(float)
        precision = formats.map({name: i for i, name in enumerate(PRECISIONS)}).to_numpy(np.int32)
        families = ENGINE_FAMILIES[family][direction]
        orders = _ORDERS.get((family, direction), (tuple(range(len(sizes))),) * len(families))
        yield (
            rows,
            [
                Kernels(name, sizes[list(order)], itemsize, precision)
                for name, order in zip(families, orders, strict=True)
            ],
        )


def devices_of(frame: Table) -> tuple[Device, np.ndarray]:
    """Return the devices of a table, leaves [device, ...], and [row] the index of each row's own."""
    names = list(dict.fromkeys(frame.device))
    described = [hardware_db.device(name) for name in names]
    number = {name: i for i, name in enumerate(names)}
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *described)
    return stacked, frame.device.map(number).to_numpy(np.int32)


def measured_seconds(
    frame: Table, kernel_model: KernelModel, measuring: Mapping[tuple[str, str], Measuring] | None = None
) -> np.ndarray:
    """[row] s that the rows of a table should have measured, according to a kernel model.

    Args:
        frame: a table that `check_measurements` returned.
        kernel_model: times the kernels.
        measuring: (source, family) -> how it measures; others have the launch overhead of the device and
            move extra bytes at the bandwidth.

    >>> import pandas as pd
    >>> from jaxscale.kernels import Roofline
    >>> kernel = {"family": "matmul", "direction": "forward", "precision": "fp32", "device": "v100-sxm2-16gb"}
    >>> frame = pd.DataFrame([kernel | {"source": "mine", "m": 4096, "n": 4096, "k": 4096, "seconds": 0.01}])
    >>> float(measured_seconds(frame, Roofline())[0]) > 2 * 4096**3 / 15.7e12
    True
    """
    devices, of_row = devices_of(frame)
    extra_bytes, extra_kernels = (
        frame[name].fillna(0).to_numpy(float) if name in frame else np.zeros(len(frame))
        for name in ("extra_bytes", "extra_kernels")
    )
    launch, count, total = (
        np.asarray(devices.launch_overhead)[of_row],
        extra_kernels.copy(),
        np.zeros(len(frame)),
    )
    for rows, kernels in kernels_of(frame):
        count[rows] += len(kernels)
        for kernel in kernels:
            total[rows] += kernel_seconds(kernel, devices, of_row[rows], kernel_model) - launch[rows]
    overhead, share = _measuring(frame, launch, measuring or {})
    return total + count * overhead + extra_bytes / (share * np.asarray(devices.memory_bandwidth)[of_row])


def _measuring(
    frame: Table, launch: np.ndarray, measuring: Mapping[tuple[str, str], Measuring]
) -> tuple[np.ndarray, np.ndarray]:
    """[row] s per kernel, and share of the memory bandwidth."""
    overhead, share = launch.copy(), np.ones(len(frame))
    groups: Table = frame.groupby(["source", "family", "device"], sort=False).indices
    for (source, family, device), rows in groups.items():
        known = measuring.get((source, family))
        if known is not None:
            overhead[rows] = known.overhead * known.deviations.get(device, 1.0)
            share[rows] = known.bandwidth_share
    return overhead, share


def kernel_seconds(
    kernel: Kernels, devices: Device, of_row: np.ndarray, kernel_model: KernelModel, chunk: int = CHUNK
) -> np.ndarray:
    """[row] s.

    Args:
        kernel: the kernels.
        devices: leaves [device, ...].
        of_row: [row] int32 index of the device on which a kernel runs.
        kernel_model: times them.
        chunk: how many at once, so that one compiled program serves any number.
    """
    columns = [*kernel.dimensions, kernel.itemsize, kernel.precision, of_row]
    parts = []
    for start in range(0, len(of_row), chunk):
        part = [column[start : start + chunk] for column in columns]
        filled = [np.resize(column, chunk) for column in part]
        found = _timed(kernel.family, kernel_model, devices, np.stack(filled[:-3]), *filled[-3:])
        parts.append(np.asarray(found, float)[: len(part[0])])
    return np.concatenate(parts)


@partial(quick_jit, static_argnames=("family",))
def _timed(
    family: str,
    kernel_model: KernelModel,
    devices: Any,
    dimensions: Array,
    itemsize: Array,
    precision: Array,
    of_row: Array,
) -> Array:
    def one(dimensions: Array, itemsize: Array, precision: Array, device: Array) -> Array:
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[device], devices)
        return kernel_model(family, dimensions, itemsize, precision, own)

    return jax.vmap(one, in_axes=(1, 0, 0, 0))(dimensions, itemsize, precision, of_row)
