"""A network as a graph of layers, and the builder that writes one down."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jaxscale.errors import InputError
from jaxscale.layers import (
    Activation,
    Add,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalPool,
    Layer,
    Linear,
    LocalResponseNorm,
    Pool,
    Shape,
    Softmax,
)

INPUT = -1
"""Index that stands for the network's input among a node's inputs."""


@dataclass(frozen=True)
class Node:
    """A layer in its place: the earlier nodes it reads (-1 is the network's input), the shape it gives."""

    name: str
    layer: Layer
    inputs: tuple[int, ...]
    output_shape: Shape


@dataclass(frozen=True)
class Network:
    """Layers in topological order; every shape is that of one sample.

    Raises:
        InputError: no layer, a node that reads a later one, a repeated name, a shape that does not follow.

    >>> from jaxscale import zoo
    >>> network = zoo.build("resnet-50")
    >>> network.parameters, len(network.weighted)
    (25557032, 54)
    """

    name: str
    input_shape: Shape
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.input_shape):
            raise InputError(f"{self.name}: the input shape {self.input_shape} must hold positive integers")
        if not self.nodes:
            raise InputError(f"{self.name} has no layers")
        repeated = [name for name, count in Counter(node.name for node in self.nodes).items() if count > 1]
        if repeated:
            raise InputError(f"{self.name} has several layers named {repeated[0]!r}")
        for i, node in enumerate(self.nodes):
            if any(not INPUT <= source < i for source in node.inputs):
                raise InputError(
                    f"layer {node.name!r} of {self.name} reads a layer that does not come before it"
                )
            if node.layer.output_shape(*self.input_shapes(i)) != node.output_shape:
                raise InputError(
                    f"layer {node.name!r} of {self.name} does not give the shape {node.output_shape}"
                )

    def input_shapes(self, i: int) -> tuple[Shape, ...]:
        """Shapes that node `i` reads."""
        return tuple(self._shape(source) for source in self.nodes[i].inputs)

    @property
    def parameters(self) -> int:
        """Number of trainable weights."""
        return sum(node.layer.parameters(*self.input_shapes(i)) for i, node in enumerate(self.nodes))

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one forward pass over one sample, in convolutions and linear layers."""
        return sum(node.layer.multiply_adds(*self.input_shapes(i)) for i, node in enumerate(self.nodes))

    @property
    def weighted(self) -> tuple[int, ...]:
        """Indices of the convolutions and linear layers."""
        return tuple(i for i, node in enumerate(self.nodes) if isinstance(node.layer, (Conv2d, Linear)))

    def _shape(self, i: int) -> Shape:
        return self.input_shape if i == INPUT else self.nodes[i].output_shape


class NetworkBuilder:
    """Writes a network down layer by layer: every method takes and returns indices of nodes.

    >>> b = NetworkBuilder("tiny", (3, 32, 32))
    >>> x = b.relu(b.conv(b.input, 16, 3, padding=1))
    >>> x = b.softmax(b.linear(b.flatten(b.global_pool(x)), 10))
    >>> [node.name for node in b.build().nodes]
    ['conv1', 'relu1', 'globalpool1', 'flatten1', 'linear1', 'softmax1']
    """

    input = INPUT

    def __init__(self, name: str, input_shape: Shape) -> None:
        self.name = name
        self.input_shape = input_shape
        self._nodes: list[Node] = []
        self._counts: Counter[str] = Counter()

    def build(self) -> Network:
        """The network written so far."""
        return Network(self.name, self.input_shape, tuple(self._nodes))

    def shape(self, x: int) -> Shape:
        """Shape of what node `x` gives."""
        return self.input_shape if x == INPUT else self._nodes[x].output_shape

    def node(self, x: int) -> Node:
        """Node `x`."""
        return self._nodes[x]

    def apply(self, layer: Layer, *inputs: int, name: str | None = None) -> int:
        """Append `layer`, reading `inputs`; the name is its kind and a running number unless given."""
        name = name or self._next_name(layer)
        try:
            shape = layer.output_shape(*map(self.shape, inputs))
        except InputError as error:
            raise InputError(f"layer {name!r} of {self.name}: {error}") from None
        self._nodes.append(Node(name, layer, inputs, shape))
        return len(self._nodes) - 1

    def conv(
        self,
        x: int,
        out_channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        name: str | None = None,
    ) -> int:
        """Convolution; one number stands for height and width, padding is the same on opposite sides."""
        layer = Conv2d(out_channels, _pair(kernel), _pair(stride), _sides(padding), groups=groups, bias=bias)
        return self.apply(layer, x, name=name)

    def linear(self, x: int, out_features: int, *, bias: bool = True, name: str | None = None) -> int:
        return self.apply(Linear(out_features, bias), x, name=name)

    def batch_norm(self, x: int) -> int:
        return self.apply(BatchNorm(), x)

    def local_response_norm(self, x: int, size: int) -> int:
        return self.apply(LocalResponseNorm(size), x)

    def relu(self, x: int) -> int:
        return self.apply(Activation("relu"), x)

    def activation(self, x: int, kind: str) -> int:
        return self.apply(Activation(kind), x)

    def max_pool(self, x: int, kernel: int, *, stride: int, padding: int = 0, ceil_mode: bool = False) -> int:
        return self._pool("max", x, kernel, stride, padding, ceil_mode)

    def average_pool(
        self, x: int, kernel: int, *, stride: int, padding: int = 0, ceil_mode: bool = False
    ) -> int:
        return self._pool("average", x, kernel, stride, padding, ceil_mode)

    def global_pool(self, x: int, kind: str = "average") -> int:
        return self.apply(GlobalPool(kind), x)

    def dropout(self, x: int) -> int:
        return self.apply(Dropout(), x)

    def flatten(self, x: int) -> int:
        return self.apply(Flatten(), x)

    def add(self, *xs: int) -> int:
        return self.apply(Add(), *xs)

    def concat(self, *xs: int) -> int:
        return self.apply(Concat(), *xs)

    def softmax(self, x: int) -> int:
        return self.apply(Softmax(), x)

    def _pool(self, kind: str, x: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
        layer = Pool(kind, _pair(kernel), _pair(stride), _sides(padding), ceil_mode)
        return self.apply(layer, x)

    def _next_name(self, layer: Layer) -> str:
        kind = layer.kind if isinstance(layer, Activation) else type(layer).__name__.lower()
        kind = "conv" if isinstance(layer, Conv2d) else kind
        self._counts[kind] += 1
        return f"{kind}{self._counts[kind]}"


def _sides(padding: int | tuple[int, int]) -> tuple[int, int, int, int]:
    vertical, horizontal = _pair(padding)
    return (vertical, horizontal, vertical, horizontal)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)
