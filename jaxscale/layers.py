"""Layers of a network: what each one turns shapes into, how many weights it holds, what it computes.

Shapes are those of one sample, without the batch axis: (channels, height, width) or (features,).
Everything is a Python integer, so counts stay exact at any size.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from math import prod
from typing import ClassVar

from jaxscale.errors import InputError, choose

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One operator of a network; as it stands, an operator that keeps the shape of its only input."""

    arity: ClassVar[int | None] = 1
    """How many inputs the layer takes; None is any number from one."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        """Shape of the result for one sample."""
        self._check_inputs(input_shapes)
        return input_shapes[0]

    def parameters(self, *input_shapes: Shape) -> int:
        """Number of trainable weights."""
        return 0

    def multiply_adds(self, *input_shapes: Shape) -> int:
        """Multiply-adds of the forward pass for one sample; only convolutions and linear layers count."""
        return 0

    def __str__(self) -> str:
        """What was said about the layer, defaults left out."""
        said = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(said)})"

    def _check_inputs(self, input_shapes: tuple[Shape, ...], rank: int | None = None) -> None:
        wanted = "at least one input" if self.arity is None else f"{self.arity} input(s)"
        if not input_shapes or (self.arity is not None and len(input_shapes) != self.arity):
            raise InputError(f"{self} takes {wanted}, not {len(input_shapes)}")
        for shape in input_shapes:
            if any(not _is_positive(size) for size in shape):
                raise InputError(
                    f"{self} got an input of shape {shape}: every size must be a positive integer"
                )
            if rank is not None and len(shape) != rank:
                kind = "(channels, height, width)" if rank == 3 else "(features,)"
                raise InputError(f"{self} takes an input of shape {kind}, not {shape}")


@dataclass(frozen=True)
class Conv2d(Layer):
    """Two-dimensional convolution; `groups` equal to the input channels makes it depthwise.

    Args:
        out_channels: number of filters.
        kernel: (height, width).
        stride: (vertical, horizontal).
        padding: (top, left, bottom, right).
        dilation: (vertical, horizontal) distance between the taps of a filter.
        groups: number of independent groups of channels.
        bias: whether every filter has a bias.

    >>> conv = Conv2d(96, kernel=(11, 11), stride=(4, 4))
    >>> conv.output_shape((3, 227, 227)), conv.parameters((3, 227, 227)), conv.multiply_adds((3, 227, 227))
    ((96, 55, 55), 34944, 105415200)
    """

    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        _check_positive(self, "out_channels", (self.out_channels,))
        _check_window(self, self.kernel, self.stride, self.padding)
        _check_positive(self, "dilation", self.dilation, length=2)
        _check_positive(self, "groups", (self.groups,))
        if self.out_channels % self.groups:
            raise InputError(
                f"{self}: {self.groups} groups do not divide {self.out_channels} output channels"
            )

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes, rank=3)
        channels, *size = input_shapes[0]
        if channels % self.groups:
            raise InputError(f"{self}: {self.groups} groups do not divide {channels} input channels")
        extent = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        return (self.out_channels, *_windows(self, size, extent, self.stride, self.padding))

    def parameters(self, *input_shapes: Shape) -> int:
        return self.out_channels * (self._reduction(input_shapes[0]) + self.bias)

    def multiply_adds(self, *input_shapes: Shape) -> int:
        return prod(self.output_shape(*input_shapes)) * self._reduction(input_shapes[0])

    def _reduction(self, input_shape: Shape) -> int:
        return input_shape[0] // self.groups * prod(self.kernel)


@dataclass(frozen=True)
class Linear(Layer):
    """Fully connected layer on (features,).

    >>> Linear(4096).parameters((9216,)), Linear(4096).multiply_adds((9216,))
    (37752832, 37748736)
    """

    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        _check_positive(self, "out_features", (self.out_features,))

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes, rank=1)
        return (self.out_features,)

    def parameters(self, *input_shapes: Shape) -> int:
        return self.out_features * (input_shapes[0][0] + self.bias)

    def multiply_adds(self, *input_shapes: Shape) -> int:
        return self.out_features * input_shapes[0][0]


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalization, a trained scale and shift per channel; its running statistics are not trained."""

    def parameters(self, *input_shapes: Shape) -> int:
        return 2 * input_shapes[0][0]


@dataclass(frozen=True)
class LocalResponseNorm(Layer):
    """Local response normalization over `size` neighbouring channels."""

    size: int

    def __post_init__(self) -> None:
        _check_positive(self, "size", (self.size,))


@dataclass(frozen=True)
class Activation(Layer):
    """Pointwise non-linearity without weights ("relu", "relu6", "sigmoid", ...)."""

    kind: str = "relu"


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling over windows, "max" or "average".

    With `ceil_mode` a last, partly empty window counts if it starts inside the input or its leading padding.

    >>> Pool("max", kernel=(3, 3), stride=(2, 2)).output_shape((96, 55, 55))
    (96, 27, 27)
    """

    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        choose("kind of pooling", self.kind, ("max", "average"))
        _check_window(self, self.kernel, self.stride, self.padding)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes, rank=3)
        channels, *size = input_shapes[0]
        return (channels, *_windows(self, size, self.kernel, self.stride, self.padding, self.ceil_mode))


@dataclass(frozen=True)
class GlobalPool(Layer):
    """Pooling of every channel to one value, "average" or "max": (channels, 1, 1)."""

    kind: str = "average"

    def __post_init__(self) -> None:
        choose("kind of pooling", self.kind, ("max", "average"))

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes, rank=3)
        return (input_shapes[0][0], 1, 1)


@dataclass(frozen=True)
class Dropout(Layer):
    """Random zeroing of elements while training."""


@dataclass(frozen=True)
class Softmax(Layer):
    """The classifier's softmax together with its cross-entropy loss."""


@dataclass(frozen=True)
class Flatten(Layer):
    """(channels, height, width) seen as (features,); moves nothing."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        return (prod(input_shapes[0]),)


@dataclass(frozen=True)
class View(Layer):
    """The same elements under another shape; counted as free."""

    shape: Shape

    def __post_init__(self) -> None:
        _check_positive(self, "shape", self.shape)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        if prod(input_shapes[0]) != prod(self.shape):
            raise InputError(f"{self} cannot hold the {prod(input_shapes[0])} elements of {input_shapes[0]}")
        return self.shape


@dataclass(frozen=True)
class Add(Layer):
    """Sum of its inputs; sizes of one are broadcast."""

    arity = None

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        return _broadcast(self, input_shapes)


@dataclass(frozen=True)
class Multiply(Layer):
    """Product of its inputs; sizes of one are broadcast (a gate per channel, for one)."""

    arity = None

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        return _broadcast(self, input_shapes)


@dataclass(frozen=True)
class Concat(Layer):
    """Its inputs one after the other along the first axis (channels, or features)."""

    arity = None

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        first = input_shapes[0]
        if any(shape[1:] != first[1:] for shape in input_shapes):
            raise InputError(f"{self} cannot join {_listed(input_shapes)}: only the first size may differ")
        return (sum(shape[0] for shape in input_shapes), *first[1:])


@dataclass(frozen=True)
class Elementwise(Layer):
    """An imported operator that reads its inputs and writes its output once, without a kernel of its own.

    Args:
        kind: the operator's name where it came from.
        inputs: number of inputs.
        weights: trained elements of a constant operand.
        shape: shape of the output where it is not that of the (broadcast) inputs.

    >>> Elementwise("Erf", 1).output_shape((64, 7, 7))
    (64, 7, 7)
    """

    arity = None

    kind: str
    inputs: int = 1
    weights: int = 0
    shape: Shape | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "inputs", (self.inputs,))
        if self.shape is not None:
            _check_positive(self, "shape", self.shape)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        self._check_inputs(input_shapes)
        if len(input_shapes) != self.inputs:
            raise InputError(f"{self} takes {self.inputs} input(s), not {len(input_shapes)}")
        return _broadcast(self, input_shapes) if self.shape is None else self.shape

    def parameters(self, *input_shapes: Shape) -> int:
        return self.weights


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_positive(layer: Layer, what: str, values: tuple[int, ...], length: int | None = None) -> None:
    if not isinstance(values, tuple) or (length is not None and len(values) != length):
        raise InputError(f"{layer}: {what} must hold {length} sizes, not {values!r}")
    if not all(_is_positive(value) for value in values):
        shown = values[0] if length is None and len(values) == 1 else values
        raise InputError(f"{layer}: {what} must be positive integers, not {shown!r}")


def _check_window(
    layer: Layer, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int, int, int]
) -> None:
    _check_positive(layer, "kernel", kernel, length=2)
    _check_positive(layer, "stride", stride, length=2)
    if not isinstance(padding, tuple) or len(padding) != 4:
        raise InputError(f"{layer}: padding must hold 4 sizes (top, left, bottom, right), not {padding!r}")
    if not all(_is_positive(side) or side == 0 for side in padding):
        raise InputError(f"{layer}: padding must be integers from 0, not {padding!r}")


def _windows(
    layer: Layer,
    size: list[int],
    extent: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """Number of windows along height and width, for windows of `extent` (dilation included)."""
    before, after = padding[:2], padding[2:]
    padded = [n + b + a for n, b, a in zip(size, before, after, strict=True)]
    if any(e > n for e, n in zip(extent, padded, strict=True)):
        shown = "x".join(map(str, extent)), "x".join(map(str, padded))
        raise InputError(f"{layer}: a window of {shown[0]} is larger than the padded input of {shown[1]}")
    counts = []
    for n, b, p, e, s in zip(size, before, padded, extent, stride, strict=True):
        count = (p - e + (s - 1 if ceil_mode else 0)) // s + 1
        starts_outside = ceil_mode and (count - 1) * s >= n + b
        counts.append(count - starts_outside)
    return tuple(counts)


def _broadcast(layer: Layer, shapes: tuple[Shape, ...]) -> Shape:
    """Common shape under the usual rule: axes align at the end and sizes of one stretch."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    sizes = [set(column) - {1} or {1} for column in columns]
    if any(len(choices) > 1 for choices in sizes):
        raise InputError(f"{layer} cannot combine {_listed(shapes)}: the sizes differ")
    return tuple(choices.pop() for choices in sizes)


def _listed(shapes: tuple[Shape, ...]) -> str:
    return " and ".join(map(str, shapes))
