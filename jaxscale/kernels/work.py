"""What a kernel asks of a device, whatever the device: counts, tiles, chains and the shape of its sizes.

The sizes are inputs of a network, so they are dimensionless numbers around one. Convolutions are described
as the matrix products that compute them, with what distinguishes them beside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxscale.kernels.counts import DIRECT, MATRIX_FAMILIES
from jaxscale.nouns import PRECISIONS, Array

TILES = (64.0, 128.0, 256.0)
"""Edges of the square tiles of an output that one multiprocessor may compute at a time."""

BLOCK = 16384.0
"""B that one block of a memory-bound kernel moves; the other two sizes of a block are 4 and 16 times that."""

PIPELINE = 1000.0
"""Cycles from asking memory for a number to having stored a result."""


class Work(NamedTuple):
    """The demands of kernels; leaves [...] unless they say more."""

    flops: Array
    moved: Array
    """B across the memory bus."""
    traffic: Array
    """B into the multiprocessors, each tile of 128 x 128 fetching its own operands."""
    chain: Array
    """Cycles of the longest chain of dependent instructions in a tile."""
    waiting: Array
    """Tiles that run one after another where they are more than the multiprocessors."""
    tiles: Array
    """[..., 3] independent pieces of work, by size of the piece."""
    sizes: Array
    """[..., size] what a network sees of the shape."""
    precision: Array
    """int32 index into `PRECISIONS`."""
    matrix: Array
    """1 on matrix units, 0 at the vector rate."""


def describe(family: str, dimensions: Array, itemsize: Array, precision: Array) -> Work:
    """Return the work of kernels of one family; arguments as in `KernelModel`.

    >>> work = describe("matmul", jnp.array([256.0, 256.0, 512.0]), jnp.array(2.0), jnp.array(2))
    >>> float(work.flops), work.tiles.tolist()
    (67108864.0, [16.0, 4.0, 1.0])
    """
    shape = jnp.broadcast_shapes(dimensions.shape[1:], jnp.shape(itemsize), jnp.shape(precision))
    dimensions = jnp.broadcast_to(dimensions, (len(dimensions), *shape))
    itemsize, precision = (jnp.broadcast_to(leaf, shape) for leaf in (itemsize, precision))
    flops, moved = DIRECT[family](dimensions, itemsize)
    part = _PARTS[family](dimensions, itemsize, flops, moved)
    sizes = [*part.sizes]
    if part.shows_precision:
        sizes += [jnp.where(precision == i, 1.0, 0.0) for i in range(len(PRECISIONS))]
    matrix = 1.0 if family in MATRIX_FAMILIES else 0.0
    return Work(
        flops=flops,
        moved=moved,
        traffic=jnp.broadcast_to(part.traffic, shape),
        chain=jnp.broadcast_to(part.chain, shape),
        waiting=jnp.broadcast_to(part.waiting, shape),
        tiles=jnp.stack([jnp.broadcast_to(count, shape) for count in part.tiles], -1),
        sizes=jnp.stack([jnp.broadcast_to(size, shape).astype(flops.dtype) for size in sizes], -1),
        precision=precision,
        matrix=jnp.full(shape, matrix, flops.dtype),
    )


class _Part(NamedTuple):
    traffic: Array
    chain: Array | float
    waiting: Array | float
    tiles: list[Array]
    sizes: list[Array]
    shows_precision: bool


def _product(
    batch: Array, m: Array, n: Array, k: Array, itemsize: Array, flops: Array, moved: Array
) -> _Part:
    """`batch` products of m x k by k x n."""
    tiles = [batch * _pieces(m, edge) * _pieces(n, edge) for edge in TILES]
    sizes = [
        *(_log(size) for size in (m, n, k, batch)),
        *(jnp.log2(size / (edge * _pieces(size, edge))) for size in (m, n) for edge in TILES),
        *(_alignment(size) for size in (m, n, k)),
        _log(flops / moved),
    ]
    return _Part(tiles[1] * k * 2 * TILES[1] * itemsize, k, tiles[1], tiles, sizes, True)


def _matmul(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    m, n, k = dimensions
    return _product(jnp.ones_like(m), m, n, k, itemsize, flops, moved)


def _batched_matmul(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    batch, m, n, k = dimensions
    return _product(batch, m, n, k, itemsize, flops, moved)


def _convolution(direction: int, dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    """The three products permute the same three sizes: outputs, filters, and inputs under a filter."""
    batch, c_in, h_in, w_in, c_out, h_out, w_out, kh, kw, stride, dilation, groups = dimensions
    outputs, filters, window = batch * h_out * w_out, c_out / groups, (c_in / groups) * kh * kw
    m, n, k = ((outputs, filters, window), (outputs, window, filters), (filters, window, outputs))[direction]
    part = _product(groups, m, n, k, itemsize, flops, moved)
    further = [
        *(_log(size) for size in (kh, kw, stride, dilation, c_in / groups, filters)),
        *(_log(size) for size in (h_out, w_out, h_in * w_in, batch)),
        *_one_hot(direction, 3, m),
    ]
    return part._replace(sizes=[*part.sizes, *further])


def _attention(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    """A tile of queries meets the keys one block after another."""
    batch, queries, keys, heads, kv_heads, width, causal = dimensions
    tiles = [batch * heads * _pieces(queries, edge) for edge in TILES]
    pairs = flops / (batch * heads * width)
    sizes = [
        *(_log(size) for size in (batch, queries, keys, heads, width, heads / kv_heads)),
        *(jnp.log2(queries / (edge * _pieces(queries, edge))) for edge in TILES),
        _alignment(width),
        _log(flops / moved),
        causal,
    ]
    traffic = batch * heads * pairs / TILES[1] * width * itemsize
    return _Part(traffic, pairs / queries * 2, tiles[1], tiles, sizes, True)


def _streamed(kind: int, row: Array, dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    """Kernels that read and write each number once, alone (kind 0) or together with those of its row."""
    tiles = [moved / (BLOCK * times) for times in (1.0, 4.0, 16.0)]
    sizes = [_log(moved / BLOCK), _log(flops * itemsize / moved), *_one_hot(kind, 3, moved), _log(row)]
    return _Part(moved, PIPELINE, jnp.zeros_like(moved), tiles, sizes, False)


def _elementwise(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    return _streamed(0, jnp.ones_like(moved), dimensions, itemsize, flops, moved)


def _normalization(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    """Statistics of a channel are sums over much memory, and cost no more than reading it."""
    _, channels, _, _, across_samples = dimensions
    alone = _elementwise(dimensions, itemsize, flops, moved)
    rows = _streamed(1, channels * itemsize, dimensions, itemsize, flops, moved)
    return rows._replace(
        sizes=[jnp.where(across_samples > 0, *pair) for pair in zip(alone.sizes, rows.sizes, strict=True)]
    )


def _softmax(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    return _streamed(2, dimensions[1] * itemsize, dimensions, itemsize, flops, moved)


def _recurrent(dimensions: Array, itemsize: Array, flops: Array, moved: Array) -> _Part:
    """One product of the state after another; weights that stay on chip are fetched once."""
    batch, inputs, hidden, gates, timesteps, passes = dimensions
    width = gates * hidden
    part = _product(jnp.ones_like(batch), batch, width, hidden + inputs, itemsize, flops, moved)
    weights = itemsize * width * (hidden + inputs)
    steps = passes * timesteps
    further = [_log(timesteps), _log(gates), passes - 1, _log(weights / BLOCK)]
    return part._replace(
        traffic=part.traffic * steps,
        chain=(part.chain + PIPELINE) * steps,
        sizes=[*part.sizes, *further],
    )


_PARTS: dict[str, Callable[[Array, Array, Array, Array], _Part]] = {
    "convolution_forward": partial(_convolution, 0),
    "convolution_backward_data": partial(_convolution, 1),
    "convolution_backward_filter": partial(_convolution, 2),
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "attention_forward": _attention,
    "attention_backward": _attention,
    "normalization": _normalization,
    "elementwise": _elementwise,
    "softmax": _softmax,
    "pooling": _elementwise,
    "embedding": _elementwise,
    "optimizer": _elementwise,
    "recurrent": _recurrent,
}


def _pieces(size: Array, edge: float) -> Array:
    return jnp.maximum(jnp.ceil(size / edge), 1.0)


def _log(size: Array) -> Array:
    return jnp.log2(jnp.maximum(size, 1e-6)) / 8 - 0.5


def _alignment(size: Array) -> Array:
    """How often a size can be halved, up to six times, as a share of six."""
    size = jax.lax.stop_gradient(size)
    return sum((jnp.where(size % 2.0**power == 0, 1 / 6, 0.0) for power in range(1, 7)), jnp.zeros_like(size))


def _one_hot(index: int, count: int, like: Array) -> list[Array]:
    return [jnp.full_like(like, float(i == index)) for i in range(count)]
