"""What a kernel computes and moves, stated once per family in a table of counts.

Two such tables exist: `DIRECT` (each operand crosses the memory bus once) and `IM2COL` (convolutions as the
matrix products of their unrolled input, the convention of Barrachina et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from jaxscale.nouns import Array

Count = Callable[[Array, Array], tuple[Array, Array]]
"""(dimensions [dimension, ...], itemsize [...]) -> (FLOPs [...], bytes [...])"""


def _convolution(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """2 FLOPs per multiply-add; input, output and weights cross the bus once, in every direction."""
    batch, c_in, h_in, w_in, c_out, h_out, w_out, kh, kw, _, _, groups = dimensions
    filters = c_out * (c_in / groups) * kh * kw
    moved = batch * (c_in * h_in * w_in + c_out * h_out * w_out) + filters
    return 2 * batch * h_out * w_out * filters, itemsize * moved


def _convolution_im2col(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """matmul(co, b ho wo, ci kh kw); both backward products permute the same three sizes."""
    batch, c_in, _, _, c_out, h_out, w_out, kh, kw, _, _, groups = dimensions
    return _matmul(jnp.stack([c_out, batch * h_out * w_out, (c_in / groups) * kh * kw]), itemsize)


def _matmul(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    m, n, k = dimensions
    return 2 * m * n * k, itemsize * (m * n + m * k + n * k)


def _batched_matmul(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    flops, moved = _matmul(dimensions[1:], itemsize)
    return dimensions[0] * flops, dimensions[0] * moved


def _per_element(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    elements, reads, writes, flops = dimensions
    return elements * flops, itemsize * elements * (reads + writes)


def _normalization(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    elements, _, reads, writes, _ = dimensions
    return elements * 4 * (reads + writes), itemsize * elements * (reads + writes)


def _softmax(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    rows, columns, reads, writes = dimensions
    return rows * columns * 5, itemsize * rows * columns * (reads + writes)


def _pooling(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    batch, channels, in_size, out_size, window, passes = dimensions
    maps = batch * channels
    return maps * out_size * window, itemsize * passes * maps * (in_size + out_size)


def _pooling_window(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """Every window is read: kh kw b ho wo c elements, forward and once more backward (no cache)."""
    batch, channels, _, out_size, window, _ = dimensions
    elements = batch * channels * out_size * window
    return elements, itemsize * elements


def _attention(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """Two products over the pairs of query and key; the score matrix stays on chip (Dao et al. 2022).

    Under a causal mask the last query sees every key, each earlier one sees one key less.
    """
    batch, queries, keys, heads, kv_heads, width, causal = dimensions
    square = jnp.minimum(queries, keys)
    pairs = queries * keys - causal * square * (square - 1) / 2
    moved = batch * width * 2 * (queries * heads + keys * kv_heads)
    return 4 * batch * heads * width * pairs, itemsize * moved


def _attention_backward(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """Five products, the scores among them once more; each of the four tensors and its gradient."""
    flops, moved = _attention(dimensions, itemsize)
    return 2.5 * flops, 2 * moved


def _embedding(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """Rows looked up in, or added to, a table; a row that is wanted again need not be fetched again."""
    rows, width, vocabulary = dimensions
    return rows * width, itemsize * width * (rows + jnp.minimum(rows, vocabulary))


def _recurrent(dimensions: Array, itemsize: Array) -> tuple[Array, Array]:
    """Products with inputs and state at every step; the weights cross the bus once per pass.

    A layer whose weights fit neither registers nor cache fetches those of the state at every step, which
    is for a utilization to say: whether they fit depends on the device.
    """
    batch, inputs, hidden, gates, timesteps, passes = dimensions
    weights = gates * hidden * (inputs + hidden)
    moved = weights + batch * timesteps * (inputs + hidden)
    return 2 * passes * batch * timesteps * weights, itemsize * passes * moved


DIRECT: dict[str, Count] = {
    "convolution_forward": _convolution,
    "convolution_backward_data": _convolution,
    "convolution_backward_filter": _convolution,
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "normalization": _normalization,
    "elementwise": _per_element,
    "pooling": _pooling,
    "softmax": _softmax,
    "optimizer": _per_element,
    "attention_forward": _attention,
    "attention_backward": _attention_backward,
    "embedding": _embedding,
    "recurrent": _recurrent,
}

IM2COL: dict[str, Count] = DIRECT | {
    "convolution_forward": _convolution_im2col,
    "convolution_backward_data": _convolution_im2col,
    "convolution_backward_filter": _convolution_im2col,
    "pooling": _pooling_window,
}

MATRIX_FAMILIES = frozenset(
    (
        "convolution_forward",
        "convolution_backward_data",
        "convolution_backward_filter",
        "matmul",
        "batched_matmul",
        "attention_forward",
        "attention_backward",
        "recurrent",
    )
)
"""Families that run on matrix units; the others run at the vector rate."""


COUNTS = {"direct": DIRECT, "im2col": IM2COL}
