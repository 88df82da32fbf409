"""Measured kernels as arrays to learn from: the work that each row times, once for a group of families."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.kernels.learned import BACKWARD_ATTENTION, GROUP_OF
from jaxscale.kernels.work import Work, describe
from jaxscale.measurement_format import ENGINE_FAMILIES, Table
from jaxscale.nouns import KERNEL_DIMENSIONS, Array
from jaxscale.timing import CHUNK, Kernels, kernels_of


class Block(NamedTuple):
    """Rows that add up equally many kernels."""

    row: np.ndarray
    """[row] index into the table."""
    work: Work
    """Leaves [row, kernel, ...]."""
    doubled: Work
    """The work of twice as many samples."""
    slower: np.ndarray
    """[row, kernel] factor on the time."""
    extra_bytes: np.ndarray
    """[row] B"""
    extra_kernels: np.ndarray
    """[row]"""


def group_of(family: str) -> str:
    """Return the group that a family of measurements teaches.

    >>> group_of("softmax")
    'memory_bound'
    """
    return GROUP_OF[ENGINE_FAMILIES[family]["forward"][0]]


def arrange(frame: Table) -> list[Block]:
    """Return the rows of one group, one block per number of kernels in a row."""
    by_count: dict[int, list[Block]] = {}
    extra = {
        name: frame[name].fillna(0).to_numpy(np.float32)
        if name in frame
        else np.zeros(len(frame), np.float32)
        for name in ("extra_bytes", "extra_kernels")
    }
    for rows, kernels in kernels_of(frame):
        slower = [
            np.full(len(rows), BACKWARD_ATTENTION if kernel.family == "attention_backward" else 1.0)
            for kernel in kernels
        ]
        block = Block(
            row=rows,
            work=_beside(_described(kernel, 1.0) for kernel in kernels),
            doubled=_beside(_described(kernel, 2.0) for kernel in kernels),
            slower=np.stack(slower, 1).astype(np.float32),
            extra_bytes=extra["extra_bytes"][rows],
            extra_kernels=extra["extra_kernels"][rows],
        )
        by_count.setdefault(len(kernels), []).append(block)
    return [jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks) for blocks in by_count.values()]


def _beside(works: Iterator[Work]) -> Work:
    return jax.tree.map(lambda *leaves: np.stack(leaves, 1), *works)


def _described(kernel: Kernels, times: float) -> Work:
    """Leaves [row, ...]; `times` as many samples."""
    dimensions = kernel.dimensions.astype(np.float32)
    dimensions[_samples(kernel.family)] *= times
    columns = [*dimensions, kernel.itemsize.astype(np.float32), kernel.precision]
    parts = []
    for start in range(0, len(kernel.itemsize), CHUNK):
        part = [column[start : start + CHUNK] for column in columns]
        filled = [np.resize(column, CHUNK) for column in part]
        found = _describe(kernel.family, np.stack(filled[:-2]), *filled[-2:])
        count = len(part[0])
        parts.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf)[:n], found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _samples(family: str) -> int:
    """The dimension that is proportional to the number of samples."""
    names = KERNEL_DIMENSIONS[family]
    return next(i for i, name in enumerate(names) if name in ("batch", "m", "elements", "rows", "parameters"))


@partial(jax.jit, static_argnums=0)
def _describe(family: str, dimensions: Array, itemsize: Array, precision: Array) -> Work:
    return describe(family, jnp.asarray(dimensions), itemsize, precision)
