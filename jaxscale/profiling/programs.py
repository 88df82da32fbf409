"""The program that stands for a measured kernel, by family: what a framework on JAX would run.

Images have their channels last, as flax keeps them. A program computes one kernel: what its gradient alone
does not need is dead code to XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isqrt
from typing import Any

import jax
import jax.numpy as jnp

Sizes = dict[str, int]
"""Dimensions of a measurement by name."""

Program = tuple[Callable[..., Any], list[tuple[int, ...]]]
"""A function of arrays, and their shapes."""

IMAGES, WEIGHTS = "NHWC", "HWIO"


def convolution(sizes: Sizes, direction: str) -> Program:
    """Padding is what gives the output its size."""
    n, h, w, c = (sizes[name] for name in ("batch", "in_height", "in_width", "in_channels"))
    ho, wo, filters = (sizes[name] for name in ("out_height", "out_width", "out_channels"))
    kh, kw, groups = (sizes[name] for name in ("kernel_height", "kernel_width", "groups"))
    stride, dilation = sizes["stride"], sizes["dilation"]
    padding = [
        _padding(inner, outer, kernel, stride, dilation)
        for inner, outer, kernel in ((h, ho, kh), (w, wo, kw))
    ]

    def forward(x: Any, weights: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            weights,
            (stride, stride),
            padding,
            rhs_dilation=(dilation, dilation),
            dimension_numbers=(IMAGES, WEIGHTS, IMAGES),
            feature_group_count=groups,
        )

    image, kernel, output = (n, h, w, c), (kh, kw, c // groups, filters), (n, ho, wo, filters)
    return _linear(forward, image, kernel, output, direction)


def matmul(sizes: Sizes, direction: str) -> Program:
    """The forward product m x k by k x n; its gradients are m x k and k x n."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    return _linear(jnp.matmul, (m, k), (k, n), (m, n), direction)


def batched_matmul(sizes: Sizes, direction: str) -> Program:
    batch, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    return _differentiated(jnp.matmul, [(batch, m, k), (batch, k, n)], (batch, m, n), direction)


def attention(sizes: Sizes, direction: str) -> Program:
    batch, queries, keys = (sizes[name] for name in ("batch", "query_length", "key_length"))
    heads, kv_heads, width = (sizes[name] for name in ("heads", "kv_heads", "head_dim"))

    def forward(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=bool(sizes["causal"]))

    shapes = [(batch, queries, heads, width), *[(batch, keys, kv_heads, width)] * 2]
    return _differentiated(forward, shapes, (batch, queries, heads, width), direction)


def normalization(sizes: Sizes, direction: str) -> Program:
    """Statistics per channel or per row; the gradient where more is read than the input, twice."""
    channels = sizes["channels"]
    shape = (max(sizes["elements"] // channels, 1), channels)
    axis = 0 if sizes["across_samples"] else 1

    def forward(x: Any) -> Any:
        middle = x.mean(axis, keepdims=True)
        return (x - middle) * jax.lax.rsqrt(((x - middle) ** 2).mean(axis, keepdims=True) + 1e-5)

    return _differentiated(forward, [shape], shape, "backward" if sizes["reads"] > 2 else "forward")


def elementwise(sizes: Sizes, direction: str) -> Program:
    """As many inputs as are read; a sum where nothing is written."""
    elements = (sizes["elements"],)
    reads, writes = max(sizes["reads"], 1), sizes["writes"]

    def forward(*inputs: Any) -> Any:
        result = jax.nn.relu(sum(inputs[1:], inputs[0]))
        return [result * (1 + i) for i in range(writes)] if writes else result.sum()

    return forward, [elements] * reads


def softmax(sizes: Sizes, direction: str) -> Program:
    return jax.nn.softmax, [(sizes["rows"], sizes["columns"])]


def pooling(sizes: Sizes, direction: str) -> Program:
    """Maxima over square windows; the gradient where there are two passes."""
    batch, channels = sizes["batch"], sizes["channels"]
    inner, outer, window = (_edge(sizes[name]) for name in ("in_size", "out_size", "window"))
    if outer == 1:
        window = inner
    stride = max(1, inner // outer)
    low, high = _padding(inner, outer, window, stride, 1)

    def forward(x: Any) -> Any:
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, window, window, 1), (1, stride, stride, 1),
            ((0, 0), (low, high), (low, high), (0, 0)),
        )  # fmt: skip

    shapes = (batch, inner, inner, channels), (batch, outer, outer, channels)
    return _differentiated(forward, [shapes[0]], shapes[1], "backward" if sizes["passes"] > 1 else "forward")


def embedding(sizes: Sizes, direction: str) -> Program:
    rows, width, vocabulary = (sizes[name] for name in ("rows", "width", "vocabulary"))

    def forward(table: Any) -> Any:
        return table[jnp.arange(rows) * 7919 % vocabulary]

    return _differentiated(forward, [(vocabulary, width)], (rows, width), direction)


def recurrent(sizes: Sizes, direction: str) -> Program:
    """A layer of vanilla (1 gate), GRU (3) or LSTM (4) cells, one step after another."""
    batch, inputs, hidden = (sizes[name] for name in ("batch", "inputs", "hidden"))
    gates, steps = sizes["gates"], sizes["timesteps"]

    def forward(x: Any, weights: Any) -> Any:
        def step(state: Any, now: Any) -> tuple[Any, Any]:
            h, c = state
            parts = jnp.split(jnp.concatenate([now, h], -1) @ weights, gates, -1)
            if gates == 4:
                c = jax.nn.sigmoid(parts[0]) * c + jax.nn.sigmoid(parts[1]) * jnp.tanh(parts[2])
                h = jax.nn.sigmoid(parts[3]) * jnp.tanh(c)
            elif gates == 3:
                z = jax.nn.sigmoid(parts[0])
                h = z * h + (1 - z) * jnp.tanh(parts[2] * jax.nn.sigmoid(parts[1]))
            else:
                h = jnp.tanh(parts[0])
            return (h, c), h

        start = jnp.zeros((batch, hidden), x.dtype)
        return jax.lax.scan(step, (start, start), x)[1]

    shapes = [(steps, batch, inputs), (inputs + hidden, gates * hidden)]
    return _differentiated(forward, shapes, (steps, batch, hidden), direction)


def optimizer(sizes: Sizes, direction: str) -> Program:
    """One fused update with as many moments as are written besides the parameters: momentum or Adam."""
    moments = max(sizes["writes"] - 1, 0)

    def forward(parameters: Any, gradient: Any, *moments: Any) -> Any:
        moments = tuple(0.9 * moment + gradient ** (1 + i) for i, moment in enumerate(moments))
        direction = moments[0] if moments else gradient
        if len(moments) > 1:
            direction = direction / (jnp.sqrt(moments[1]) + 1e-8)
        return parameters - 0.1 * direction, *moments

    return forward, [(sizes["parameters"],)] * (2 + moments)


PROGRAMS: dict[str, Callable[[Sizes, str], Program]] = {
    program.__name__: program
    for program in (
        convolution, matmul, batched_matmul, attention, normalization, elementwise, softmax, pooling,
        embedding, recurrent, optimizer,
    )
}  # fmt: skip
"""By family of a measurement."""


def _linear(
    forward: Callable[..., Any],
    x: tuple[int, ...],
    weights: tuple[int, ...],
    output: tuple[int, ...],
    direction: str,
) -> Program:
    """One of the three products of an operator that is linear in its input and in its weights."""
    if direction == "forward":
        return forward, [x, weights]
    if direction == "backward_data":
        return lambda given, dy: _transposed(lambda x: forward(x, given), x, dy), [weights, output]
    return lambda given, dy: _transposed(lambda weights: forward(given, weights), weights, dy), [x, output]


def _transposed(function: Callable[[Any], Any], shape: tuple[int, ...], dy: Any) -> Any:
    example = jax.ShapeDtypeStruct(shape, dy.dtype)
    [gradient] = jax.linear_transpose(function, example)(dy)
    return gradient


def _differentiated(
    forward: Callable[..., Any], shapes: list[tuple[int, ...]], output: tuple[int, ...], direction: str
) -> Program:
    if direction == "forward":
        return forward, shapes
    return lambda dy, *inputs: jax.vjp(forward, *inputs)[1](dy), [output, *shapes]


def _padding(inner: int, outer: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Zeros on either side that make `outer` positions of `inner`; below 0 where some are not reached."""
    total = (outer - 1) * stride + (kernel - 1) * dilation + 1 - inner
    return total // 2, ceil(total / 2)


def _edge(area: int) -> int:
    return max(isqrt(area), 1)
