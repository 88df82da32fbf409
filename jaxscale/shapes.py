"""Distinct kernels: layers repeat and plans share shards, so steps consist of few different ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxscale.engine import local_dimensions
from jaxscale.kernels import KernelModel
from jaxscale.nouns import Array, Device, Shard, Workload
from jaxscale.runtime import quick_jit


class Shapes(NamedTuple):
    """The distinct kernels of one family, and which of them every kernel of some shards is."""

    dimensions: Array
    """[dimension, kernel]"""
    itemsize: Array
    """[kernel] B per element."""
    precision: Array
    """[kernel] int32 index into `PRECISIONS`."""
    place: Array
    """[row, ...] int32 index of the kernel that a row of the workload is."""


def distinct(workload: Workload, shard: Shard) -> dict[str, Shapes]:
    """Return the distinct kernels of shards, leaves [...], by family.

    Two that differ in nothing but rounding are one.

    >>> from jaxscale import zoo
    >>> from jaxscale.lowering import lower
    >>> workload = lower(zoo.build("resnet50"))
    >>> flags = np.zeros((len(workload.layers.parameters), 2), np.float32)
    >>> shapes = distinct(workload, Shard(np.array([8.0, 16.0]), np.array([1.0, 2.0]), flags))
    >>> forward = shapes["convolution_forward"]  # both ranks of the second shard take half of its samples
    >>> forward.place.shape, forward.dimensions.shape
    ((53, 2), (12, 23))
    """
    found = {}
    for family, dimensions in _dimensions(workload, shard).items():
        rows, sizes = workload.kernels[family], np.asarray(dimensions)
        shape = sizes.shape[1:]
        beside = (len(sizes[0]), *(1,) * (len(shape) - 1))
        formats = [np.reshape(leaf, beside) for leaf in (rows.itemsize, rows.precision)]
        formats = [np.broadcast_to(leaf, shape) for leaf in formats]
        every = np.stack([*sizes, *formats]).reshape(len(sizes) + len(formats), -1)
        first, place = _unique(every)
        kernels: Any = every[:, first].astype(sizes.dtype)
        place: Any = place.reshape(shape).astype(np.int32)
        found[family] = Shapes(kernels[:-2], kernels[-2], kernels[-1].astype(np.int32), place)
    return found


@register_dataclass
@dataclass(frozen=True)
class Distinct:
    """A kernel model that times every distinct kernel of some shards once.

    Args:
        kernel_model: times them.
        shapes: from `distinct`, for the workload and the shards that it is asked about.
    """

    kernel_model: KernelModel
    shapes: dict[str, Shapes]

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        dimensions, itemsize, precision, place = self.shapes[family]
        return self.kernel_model(family, dimensions, itemsize, precision, device)[place]


@register_dataclass
@dataclass(frozen=True)
class Timed:
    """A kernel model that knows the times already.

    Args:
        seconds: by family, [row, ...] s of the kernels of the workload and the shards that it is asked about.
    """

    seconds: dict[str, Array]

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        return self.seconds[family]


def _unique(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of columns [dimension, n]: [distinct] the place of one of each, and [n] which of them each is."""
    rows = np.ascontiguousarray(columns.T.astype(np.float32))
    as_bytes = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, place = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, place


@quick_jit
def _dimensions(workload: Workload, shard: Shard) -> dict[str, Array]:
    return {family: jnp.asarray(sizes) for family, sizes in local_dimensions(workload, shard).items()}
