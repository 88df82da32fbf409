"""Which kernels an operator runs, forward and backward, and what it keeps in memory.

`kernels(layer, inputs, output)` gives one `Kernel` per launch, with sizes for one sample and no split.
A new operator registers one function here; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from math import prod

from jaxscale.layers import (
    Activation,
    Add,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Elementwise,
    Flatten,
    GlobalPool,
    Layer,
    Linear,
    LocalResponseNorm,
    Multiply,
    Pool,
    Shape,
    Softmax,
    View,
)


@dataclass(frozen=True)
class Kernel:
    """One kernel for one sample; see `KERNEL_DIMENSIONS` for what its dimensions are."""

    family: str
    phase: str
    dimensions: tuple[float, ...]
    per_sample: tuple[int, ...]
    """Positions of the dimensions that grow with the batch."""
    per_filter: tuple[int, ...] = ()
    """Positions of the dimensions that shrink where ranks share the layer's filters."""


@singledispatch
def kernels(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    """Kernels of one training step of `layer`, without the optimizer's.

    >>> [k.family for k in kernels(Linear(10), ((512,),), (10,))]
    ['matmul', 'matmul', 'matmul', 'elementwise']
    >>> kernels.registry[Linear] is not None
    True
    """
    raise TypeError(f"no kernels are registered for {type(layer).__name__}")


def _per_element(phase: str, shape: Shape, reads: float, writes: float, per_filter: bool = False) -> Kernel:
    split = (0,) if per_filter else ()
    return Kernel("elementwise", phase, (prod(shape), reads, writes, 1.0), (0,), split)


@kernels.register
def _(layer: Conv2d, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    (c_in, h_in, w_in), (c_out, h_out, w_out) = inputs[0], output
    stride = (layer.stride[0] * layer.stride[1]) ** 0.5
    dilation = (layer.dilation[0] * layer.dilation[1]) ** 0.5
    sizes = (1, c_in, h_in, w_in, c_out, h_out, w_out, *layer.kernel, stride, dilation, layer.groups)
    filters = (4,) if layer.groups == 1 else (1, 4, 11)
    for family, phase in (
        ("convolution_forward", "forward"),
        ("convolution_backward_data", "backward_input"),
        ("convolution_backward_filter", "backward_weight"),
    ):
        yield Kernel(family, phase, sizes, (0,), filters)
    if layer.bias:
        yield _per_element("backward_weight", output, 1, 0, per_filter=True)


@kernels.register
def _(layer: Linear, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    (n_in,), (n_out,) = inputs[0], output
    yield Kernel("matmul", "forward", (1, n_out, n_in), (0,), (1,))
    yield Kernel("matmul", "backward_input", (1, n_in, n_out), (0,), (2,))
    yield Kernel("matmul", "backward_weight", (n_out, n_in, 1), (2,), (0,))
    if layer.bias:
        yield _per_element("backward_weight", output, 1, 0, per_filter=True)


@kernels.register
def _(layer: BatchNorm, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    """Forward reads its input for the statistics and again to scale; backward does both with two tensors."""
    yield Kernel("normalization", "forward", (prod(output), output[0], 2, 1, 1), (0,))
    yield Kernel("normalization", "backward_input", (prod(output), output[0], 4, 1, 1), (0,))


@kernels.register
def _(layer: LocalResponseNorm, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    yield Kernel("normalization", "forward", (prod(output), output[0], 1, 1, 0), (0,))
    yield Kernel("normalization", "backward_input", (prod(output), output[0], 3, 1, 0), (0,))


@kernels.register(Activation)
@kernels.register(Dropout)
def _(layer: Activation | Dropout, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    yield _per_element("forward", output, 1, 1)
    yield _per_element("backward_input", output, 2, 1)


@kernels.register
def _(layer: Pool, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    return _pooling(layer.kind, inputs[0], output, prod(layer.kernel))


@kernels.register
def _(layer: GlobalPool, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    return _pooling(layer.kind, inputs[0], output, prod(inputs[0][1:]))


def _pooling(kind: str, source: Shape, output: Shape, window: int) -> Iterator[Kernel]:
    """The gradient of a maximum also reads where it was found."""
    sizes = (1, output[0], prod(source[1:]), prod(output[1:]), window)
    yield Kernel("pooling", "forward", (*sizes, 1), (0,))
    yield Kernel("pooling", "backward_input", (*sizes, 2 if kind == "max" else 1), (0,))


@kernels.register(Add)
@kernels.register(Elementwise)
def _(layer: Add | Elementwise, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    """The gradient of a sum is the gradient of its result, so nothing runs backward."""
    yield _per_element("forward", output, len(inputs), 1)
    if isinstance(layer, Elementwise):
        yield _per_element("backward_input", output, 2, len(inputs))


@kernels.register
def _(layer: Multiply, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    yield _per_element("forward", output, len(inputs), 1)
    yield _per_element("backward_input", output, 1 + len(inputs), len(inputs))


@kernels.register
def _(layer: Concat, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    yield _per_element("forward", output, 1, 1)
    yield _per_element("backward_input", output, 1, 1)


@kernels.register
def _(layer: Softmax, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    classes, rows = output[0], prod(output[1:])
    yield Kernel("softmax", "forward", (rows, classes, 2, 1), (0,))
    yield Kernel("softmax", "backward_input", (rows, classes, 1, 1), (0,))


@kernels.register(Flatten)
@kernels.register(View)
def _(layer: Flatten | View, inputs: tuple[Shape, ...], output: Shape) -> Iterator[Kernel]:
    return iter(())


FREE_VIEWS = (Flatten, View)
"""Operators whose result is the same memory under another shape."""

KEEPS_INPUT = (Conv2d, Linear, BatchNorm, LocalResponseNorm, Multiply, Elementwise)
"""Operators whose backward pass reads their input."""

KEEPS_OUTPUT = (Activation, Softmax)
"""Operators whose backward pass reads their output."""
