"""From a network to the tables that `predict` works on.

Layers with weights are the units of every split; an operator without weights belongs to the latest layer
that it depends on, and what it reads from another layer becomes an edge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from jaxscale.errors import InputError, choose
from jaxscale.layers import Dropout, Flatten, Pool
from jaxscale.network import INPUT, Network
from jaxscale.nouns import KERNEL_DIMENSIONS, PHASES, PRECISIONS, Edges, KernelRows, Layers, Workload
from jaxscale.operators import FREE_VIEWS, KEEPS_INPUT, KEEPS_OUTPUT, Kernel, kernels


@dataclass(frozen=True)
class Precision:
    """Which format holds what while training; sizes in bytes per element."""

    matrix: str
    matrix_itemsize: int
    activation: int
    gradient: int
    weights: int
    """Weights and, in mixed precision, the FP32 main copy that the optimizer updates."""


TRAINING_PRECISIONS = {
    "fp32": Precision("fp32", 4, 4, 4, 4),
    "tf32": Precision("tf32", 4, 4, 4, 4),
    "fp16": Precision("fp16", 2, 2, 2, 2 + 4),
    "bf16": Precision("bf16", 2, 2, 2, 2 + 4),
    "fp8": Precision("fp8", 1, 2, 2, 2 + 4),
}
"""Mixed precision keeps FP32 main weights (Micikevicius et al. 2018); FP8 multiplies in FP8 only."""

OPTIMIZER_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
"""FP32 values per parameter that an optimizer keeps besides the weights."""


def lower(
    network: Network,
    precision: str = "fp32",
    optimizer: str = "momentum",
    messages: int | None = 8,
    first_input_gradient: bool = False,
) -> Workload:
    """Tables of one training step of `network`.

    Args:
        network: layers in topological order.
        precision: a key of `TRAINING_PRECISIONS`.
        optimizer: a key of `OPTIMIZER_MOMENTS`.
        messages: gradient buckets of about equal size; None sends one message per layer.
        first_input_gradient: whether the gradient of the network's input is computed; frameworks skip it.

    Returns:
        Workload with L layers, E edges and `messages` (or L) messages.

    >>> from jaxscale import zoo
    >>> workload = lower(zoo.build("vgg16"))
    >>> sorted(workload.kernels)[:2], workload.buckets.shape
    (['convolution_backward_data', 'convolution_backward_filter'], (8, 16))
    """
    formats = TRAINING_PRECISIONS[choose("precision", precision, TRAINING_PRECISIONS)]
    moments = OPTIMIZER_MOMENTS[choose("optimizer", optimizer, OPTIMIZER_MOMENTS)]
    if messages is not None and messages < 1:
        raise InputError(f"the number of gradient messages is {messages}, but it must be at least 1")
    if not network.weighted:
        raise InputError(f"network {network.name!r} has no convolution or linear layer, so nothing to train")

    owner = _owners(network)
    layers = len(network.weighted)
    filters = [network.nodes[i].output_shape[0] for i in network.weighted]
    parameters = [0] * layers
    for i, node in enumerate(network.nodes):
        parameters[owner[i]] += node.layer.parameters(*network.input_shapes(i))

    rows: dict[str, list[tuple[Kernel, int]]] = defaultdict(list)
    for i, node in enumerate(network.nodes):
        for kernel in kernels(node.layer, network.input_shapes(i), node.output_shape):
            is_first = kernel.phase == "backward_input" and set(node.inputs) == {INPUT}
            if first_input_gradient or not is_first:
                rows[kernel.family].append((kernel, owner[i]))
    for kernel, layer in _gradient_sums(network, owner):
        rows[kernel.family].append((kernel, layer))
    for layer, count in enumerate(parameters):
        rows["optimizer"].append((_update(count, moments, formats), layer))

    def table(family: str) -> KernelRows:
        matrix = family in ("matmul", "batched_matmul") or family.startswith("convolution")
        itemsize = {"optimizer": 4}.get(family, formats.matrix_itemsize if matrix else formats.activation)
        number = PRECISIONS.index(formats.matrix if matrix or formats.activation < 4 else "fp32")
        return _rows(family, rows[family], filters, itemsize, number)

    tables = Workload(
        kernels={family: table(family) for family in KERNEL_DIMENSIONS if family in rows},
        layers=Layers(
            parameters=_floats(parameters),
            filters=_floats(filters),
            outputs=_floats(prod(network.nodes[i].output_shape) for i in network.weighted),
            saved=_floats(_saved(network, owner, layers, formats.activation)),
            workspace=_floats(_workspace(network, owner, layers)),
        ),
        edges=_edges(network, owner),
        buckets=_buckets(parameters, messages),
        activation_bytes=_number(formats.activation),
        gradient_bytes=_number(formats.gradient),
        weight_bytes=_number(formats.weights),
        moment_bytes=_number(4 * moments),
        flops=_number(6.0 * network.multiply_adds),
        precision=_indices(PRECISIONS.index(formats.matrix)),
    )
    # Made in numpy and moved at once: small eager JAX operations would each be a compilation.
    return jax.device_put(tables)


def _owners(network: Network) -> list[int]:
    """For every node, the layer with weights that it belongs to (0 for what precedes the first one)."""
    place = {i: layer for layer, i in enumerate(network.weighted)}
    owner: list[int] = []
    for i, node in enumerate(network.nodes):
        sources = [owner[s] for s in node.inputs if s != INPUT]
        owner.append(place.get(i, max(sources, default=0)))
    return owner


def _gradient_sums(network: Network, owner: list[int]) -> Iterable[tuple[Kernel, int]]:
    """A tensor with several readers has its gradients added up, one pass per further reader."""
    readers = defaultdict(int)
    for node in network.nodes:
        for source in node.inputs:
            readers[source] += 1
    for source, count in readers.items():
        if source != INPUT and count > 1:
            size = prod(network.nodes[source].output_shape)
            sizes = (size * (count - 1), 2, 1, 1.0)
            yield Kernel("elementwise", "backward_input", sizes, (0,)), owner[source]


def _update(parameters: int, moments: int, formats: Precision) -> Kernel:
    """One fused pass: read weight, gradient and moments, write weight and moments (and the 16-bit copy)."""
    copy = formats.weights / 4 - 1
    sizes = (parameters, 1 + formats.gradient / 4 + moments, 1 + moments + copy, 2.0 + 4 * moments)
    return Kernel("optimizer", "update", sizes, (), (0,))


def _rows(
    family: str, rows: list[tuple[Kernel, int]], filters: list[int], itemsize: int, precision: int
) -> KernelRows:
    def marks(positions: Iterable[tuple[int, ...]]) -> Any:
        width = len(KERNEL_DIMENSIONS[family])
        return _floats([[float(d in marked) for d in range(width)] for marked in positions]).T

    layer = np.array([layer for _, layer in rows], np.int32)
    return KernelRows(
        dimensions=_floats([kernel.dimensions for kernel, _ in rows]).T,
        per_sample=marks(kernel.per_sample for kernel, _ in rows),
        per_filter=marks(kernel.per_filter for kernel, _ in rows),
        filters=_floats(np.array(filters, float)[layer]),
        itemsize=_floats([itemsize] * len(rows)),
        precision=_indices([precision] * len(rows)),
        phase=_indices([PHASES.index(kernel.phase) for kernel, _ in rows]),
        layer=_indices(layer),
    )


def _edges(network: Network, owner: list[int]) -> Edges:
    """A tensor read by several operators of one layer crosses to it once."""
    found: dict[tuple[int, int], tuple[int, bool]] = {}
    for i, node in enumerate(network.nodes):
        for source in node.inputs:
            if source != INPUT and owner[source] != owner[i]:
                weighted = i in network.weighted or found.get((source, owner[i]), (0, False))[1]
                found[source, owner[i]] = prod(network.nodes[source].output_shape), weighted
    edges = sorted(found.items(), key=lambda edge: (-edge[0][1], edge[0][0]))
    return Edges(
        elements=_floats(size for _, (size, _) in edges),
        producer=_indices([owner[source] for (source, _), _ in edges]),
        consumer=_indices([consumer for (_, consumer), _ in edges]),
        weighted=_floats(float(weighted) for _, (_, weighted) in edges),
    )


def _saved(network: Network, owner: list[int], layers: int, itemsize: int) -> list[float]:
    """Elements per sample that stay until the backward pass: each tensor once, whoever reads it."""
    kept: dict[int, bool] = {}
    extra = [0.0] * layers
    storage: list[int] = []
    for i, node in enumerate(network.nodes):
        is_view = isinstance(node.layer, FREE_VIEWS)
        storage.append(storage[node.inputs[0]] if is_view and node.inputs[0] != INPUT else i)
        if isinstance(node.layer, KEEPS_OUTPUT):
            kept[i] = True
        if isinstance(node.layer, KEEPS_INPUT) or (isinstance(node.layer, Pool) and node.layer.kind == "max"):
            kept.update((storage[s] if s != INPUT else INPUT, True) for s in node.inputs)
        if isinstance(node.layer, Dropout):
            extra[owner[i]] += prod(node.output_shape) / itemsize
    for source in kept:
        size = network.input_shape if source == INPUT else network.nodes[source].output_shape
        extra[0 if source == INPUT else owner[source]] += prod(size)
    return extra


def _workspace(network: Network, owner: list[int], layers: int) -> list[int]:
    """While an operator's gradient runs, the gradients of its result and of its inputs exist at once."""
    largest = [0] * layers
    for i, node in enumerate(network.nodes):
        if isinstance(node.layer, Flatten):
            continue
        size = prod(node.output_shape) + sum(map(prod, network.input_shapes(i)))
        largest[owner[i]] = max(largest[owner[i]], size)
    return largest


def _buckets(parameters: list[int], messages: int | None) -> Any:
    """[message, layer] Cut the gradients, in backward order, into messages of about equal size."""
    layers = len(parameters)
    if messages is None:
        return np.eye(layers, dtype=np.float32)[::-1]
    sizes = np.array(parameters[::-1], float)
    middle = np.cumsum(sizes) - sizes / 2
    bucket = np.minimum((messages * middle / max(sizes.sum(), 1.0)).astype(int), messages - 1)
    member = np.zeros((messages, layers), np.float32)
    member[bucket, np.arange(layers)[::-1]] = 1
    return member


def _floats(values: Iterable[object]) -> Any:
    return np.array(list(values), np.float64).astype(np.float32)


def _number(value: float) -> Any:
    return np.asarray(value, np.float32)


def _indices(values: Any) -> Any:
    return np.asarray(values, np.int32)
