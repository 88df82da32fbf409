"""Which layer an ONNX operator becomes. Sources: the operator descriptions of the ONNX standard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxscale.errors import InputError
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
class Operator:
    """An operator of an imported graph with what is known of its operands.

    Args:
        kind: the operator's ONNX name.
        where: how an error names it.
        attributes: its attributes as Python values.
        activations: shapes, for one sample, of the operands that depend on the input.
        constants: for every operand its whole shape if it is constant, None otherwise.
        values: for every operand its value if it is a small constant, None otherwise.
        weights: number of real elements in constant operands of more than one element.
        output_shape: shape of the result for one sample.
    """

    kind: str
    where: str
    attributes: dict[str, Any]
    activations: tuple[Shape, ...]
    constants: tuple[Shape | None, ...]
    values: tuple[Any, ...]
    weights: int
    output_shape: Shape

    def constant(self, i: int) -> Shape | None:
        """Shape of operand `i` if it is there and constant."""
        return self.constants[i] if i < len(self.constants) else None


def is_known(kind: str) -> bool:
    """Whether an operator of this name counts as more than elementwise by default."""
    return kind in LAYERS or kind in ACTIVATIONS or kind in SCALINGS or kind in PASSES


def to_layer(operator: Operator) -> Layer | None:
    """The layer that `operator` becomes; None if its result is its operand under the same shape.

    Raises:
        InputError: the operator carries weights in a way that jaxscale cannot count.
    """
    if operator.kind in LAYERS:
        return LAYERS[operator.kind](operator)
    if operator.kind in SCALINGS:
        return _combination(operator)
    if operator.weights and operator.kind not in UNTRAINED:
        raise InputError(
            f"{operator.where} carries {operator.weights} weights, and jaxscale has no layer for it"
        )
    if operator.kind in ACTIVATIONS:
        return Activation(ACTIVATIONS[operator.kind])
    return _pass(operator)


def _conv(op: Operator) -> Layer:
    weight = op.constant(1)
    if weight is None:
        raise InputError(f"{op.where} has computed filters: jaxscale counts only constant ones")
    if len(weight) != 4:
        raise InputError(f"{op.where} is {len(weight) - 2}-dimensional: jaxscale reads 2-D convolutions")
    groups = op.attributes.get("group", 1)
    if weight[1] * groups != op.activations[0][0]:
        raise InputError(
            f"{op.where} has filters for {weight[1] * groups} channels, not {op.activations[0][0]}"
        )
    kernel = (weight[2], weight[3])
    stride, dilation = _sizes(op, "strides"), _sizes(op, "dilations")
    return Conv2d(
        out_channels=weight[0],
        kernel=kernel,
        stride=stride,
        padding=_padding(op, kernel, stride, dilation),
        dilation=dilation,
        groups=groups,
        bias=op.constant(2) is not None,
    )


def _linear(op: Operator) -> Layer:
    weight = op.constant(1)
    if weight is None or len(weight) != 2:
        raise InputError(f"{op.where}: jaxscale reads products of an activation and a constant matrix only")
    if op.attributes.get("transA"):
        raise InputError(f"{op.where} transposes its input, which mixes the samples of a batch")
    return Linear(weight[0] if op.attributes.get("transB") else weight[1], bias=op.constant(2) is not None)


def _pool(op: Operator) -> Layer:
    kernel, stride = _sizes(op, "kernel_shape"), _sizes(op, "strides")
    if _sizes(op, "dilations") != (1, 1):
        raise InputError(f"{op.where} is dilated: jaxscale reads pooling without dilation")
    kind = "max" if op.kind == "MaxPool" else "average"
    return Pool(
        kind, kernel, stride, _padding(op, kernel, stride, (1, 1)), bool(op.attributes.get("ceil_mode", 0))
    )


def _mean(op: Operator) -> Layer:
    """ReduceMean over height and width is global pooling; over anything else, one pass."""
    channels = op.activations[0][0]
    spatial = len(op.activations[0]) == 3 and op.output_shape == (channels, 1, 1)
    return GlobalPool("average") if spatial else _pass(op)


def _softmax(op: Operator) -> Layer:
    """The classifier's if it runs over one vector per sample."""
    return Softmax() if prod(op.output_shape) == max(op.output_shape) else _pass(op)


def _view(op: Operator) -> Layer | None:
    if op.output_shape == op.activations[0]:
        return None
    return Flatten() if len(op.output_shape) == 1 else View(op.output_shape)


def _transpose(op: Operator) -> Layer | None:
    """Free if only axes of one element move, otherwise one pass."""
    moved = [size for size in op.output_shape if size > 1]
    return _view(op) if moved == [size for size in op.activations[0] if size > 1] else _pass(op)


def _concat(op: Operator) -> Layer:
    layer = Concat()
    joins_channels = len(op.activations) == len(op.constants) and _fits(layer, op)
    return layer if joins_channels else _pass(op, op.weights)


def _combination(op: Operator) -> Layer:
    """A sum or product of activations, or of one with trained weights."""
    layer = {"Add": Add(), "Sum": Add(), "Mul": Multiply()}.get(op.kind)
    if layer is not None and len(op.activations) == len(op.constants) > 1 and _fits(layer, op):
        return layer
    return _pass(op, op.weights)


def _pass(op: Operator, weights: int = 0) -> Layer:
    return Elementwise(op.kind, len(op.activations), weights, op.output_shape)


def _fits(layer: Layer, op: Operator) -> bool:
    try:
        return layer.output_shape(*op.activations) == op.output_shape
    except InputError:
        return False


def _sizes(op: Operator, attribute: str) -> tuple[int, int]:
    sizes = tuple(op.attributes.get(attribute, (1, 1)))
    if len(sizes) != 2:
        raise InputError(f"{op.where} has {attribute} {list(sizes)}: jaxscale reads 2-D windows")
    return sizes


def _padding(
    op: Operator, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right); the "same" modes give ceil(size / stride) windows."""
    mode = op.attributes.get("auto_pad", b"NOTSET").decode()
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode == "NOTSET":
        return tuple(op.attributes.get("pads", (0, 0, 0, 0)))
    total = [
        max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        for size, k, s, d in zip(op.activations[0][1:], kernel, stride, dilation, strict=True)
    ]
    less, more = [n // 2 for n in total], [n - n // 2 for n in total]
    before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
    return (before[0], before[1], after[0], after[1])


LAYERS: dict[str, Callable[[Operator], Layer | None]] = {
    "Conv": _conv,
    "Gemm": _linear,
    "MatMul": _linear,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "ReduceMean": _mean,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Transpose": _transpose,
    "Concat": _concat,
    "BatchNormalization": lambda op: BatchNorm(),
    "Dropout": lambda op: Dropout(),
    "GlobalAveragePool": lambda op: GlobalPool("average"),
    "GlobalMaxPool": lambda op: GlobalPool("max"),
    "LRN": lambda op: LocalResponseNorm(op.attributes["size"]),
    **dict.fromkeys(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _view),
}
"""Operators with a layer of their own."""

ACTIVATIONS = {
    "Celu": "celu",
    "Clip": "clip",
    "Elu": "elu",
    "Gelu": "gelu",
    "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish",
    "LeakyRelu": "leaky_relu",
    "Mish": "mish",
    "Relu": "relu",
    "Selu": "selu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Swish": "swish",
    "Tanh": "tanh",
    "ThresholdedRelu": "thresholded_relu",
}
"""Pointwise non-linearities, by jaxscale's name."""

SCALINGS = frozenset({"Add", "Sum", "Mul", "Sub", "Div", "PRelu"})
"""Pointwise operators whose constant operands are trained."""

PASSES = frozenset(
    {
        *(
            "Abs",
            "CastLike",
            "Ceil",
            "Erf",
            "Exp",
            "Floor",
            "Log",
            "Neg",
            "Pow",
            "Reciprocal",
            "Round",
            "Sqrt",
        ),
        *("Max", "Mean", "Min", "ReduceMax", "ReduceSum", "Where"),
        *("DepthToSpace", "Expand", "Gather", "Pad", "Resize", "Slice", "SpaceToDepth", "Split", "Tile"),
        "Upsample",
    }
)
"""Operators that read their operands and write their result once."""

UNTRAINED = frozenset({"Resize", "Upsample"})
"""Operators whose real constant operands are settings."""
