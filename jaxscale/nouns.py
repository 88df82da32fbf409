"""The nouns of jaxscale: tuples of arrays and nothing else, so that jit, grad, vmap and scan just work.

`predict(workload, cluster, plan) -> Prediction`. Names, sources and units of what the arrays hold live
beside them, in host-side descriptions (`Network`, the hardware_db entries, `PlanSpec`).
Every leaf is a float32 (or wider) array; counts become floats before they meet JAX, because
JAX narrows 64-bit integers silently.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

Array = jax.Array

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
"""Arithmetic formats, in the order of every [precision] axis."""

PHASES = ("forward", "backward_input", "backward_weight", "update")
"""When in a training step a kernel runs, in the order of every [phase] axis."""

_CONVOLUTION = (
    "batch",
    "in_channels",
    "in_height",
    "in_width",
    "out_channels",
    "out_height",
    "out_width",
    "kernel_height",
    "kernel_width",
    "stride",
    "dilation",
    "groups",
)

_ATTENTION = ("batch", "query_length", "key_length", "heads", "kv_heads", "head_dim", "causal")

KERNEL_DIMENSIONS: dict[str, tuple[str, ...]] = {
    "convolution_forward": _CONVOLUTION,
    "convolution_backward_data": _CONVOLUTION,
    "convolution_backward_filter": _CONVOLUTION,
    "matmul": ("m", "n", "k"),
    "batched_matmul": ("batch", "m", "n", "k"),
    "normalization": ("elements", "channels", "reads", "writes", "across_samples"),
    "elementwise": ("elements", "reads", "writes", "flops"),
    "pooling": ("batch", "channels", "in_size", "out_size", "window", "passes"),
    "softmax": ("rows", "columns", "reads", "writes"),
    "optimizer": ("parameters", "reads", "writes", "flops"),
    "attention_forward": _ATTENTION,
    "attention_backward": _ATTENTION,
    "embedding": ("rows", "width", "vocabulary"),
    "recurrent": ("batch", "inputs", "hidden", "gates", "timesteps", "passes"),
}
"""Kernel families and the dimensions that determine the time of one kernel.

`reads`, `writes` and `flops` are per element; `in_size`, `out_size` and `window` are products of
height and width; `passes` is 1 forward and 2 backward; `causal` is 1 where a query sees no later key;
`across_samples` is 1 where statistics are per channel (batch normalization) and 0 where they are per row of
`channels` elements (layer, RMS and response normalization); `gates` is 1 in a vanilla, 3 in a GRU and 4 in
an LSTM layer.
"""

KERNEL_FAMILIES = tuple(KERNEL_DIMENSIONS)

GENERATIONS = (
    *("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"),
    *("gcn5", "cdna1", "cdna2", "cdna3", "rdna2"),
)
"""Generations of GPUs, in the order that `Device.generation` counts."""

LEVELS = ("intra_node", "inter_node")
"""Levels of the network, in the order of every [level] axis."""

PROTOCOLS = ("low_latency", "simple")
"""Ways a collective moves its data, in the order of every [protocol] axis.

`low_latency` sends small flagged words (fewer synchronizations, a fraction of the bandwidth),
`simple` sends whole buffers.
"""


class Device(NamedTuple):
    """One accelerator."""

    peak_flops: Array
    """[precision] dense matrix rate, FLOP/s."""
    vector_flops: Array
    """[precision] rate outside the matrix units, FLOP/s."""
    memory_bandwidth: Array
    """[] B/s."""
    memory_capacity: Array
    """[] B."""
    cache_capacity: Array
    """[] last-level cache, B."""
    multiprocessors: Array
    """[] streaming multiprocessors, compute units or cores."""
    clock: Array
    """[] sustained (boost) clock, Hz."""
    launch_overhead: Array
    """[] s per kernel."""
    generation: Array
    """[] index into `GENERATIONS`, below 0 where it is none of them."""
    utilization: dict[str, Array]
    """Per kernel family, [precision] share of the roofline that kernels of this generation reach; above 1
    where they need fewer operations than the direct count."""


class Links(NamedTuple):
    """How devices are connected. Bandwidth is per GPU and one direction."""

    bandwidth: Array
    """[level] B/s that the data sheet states."""
    bandwidth_share: Array
    """[level, protocol] share of it that a large message gets."""
    latency: Array
    """[level, protocol] s per hop."""
    call_overhead: Array
    """[protocol] s per collective call."""
    host_bandwidth: Array
    """[] B/s between one GPU and the memory of its host."""
    reduction_flops: Array
    """[] rate at which a rank sums received elements, FLOP/s; infinite where it is hidden."""
    in_switch_bandwidth: Array
    """[] B/s per GPU at which the switch of a node sums what its GPUs send; 0 where it cannot."""
    copy_bandwidth: Array
    """[] B/s at which a rank moves its own share of a result into place; infinite where it is hidden."""


class Cluster(NamedTuple):
    """A device, replicated, and what connects it."""

    device: Device
    links: Links
    gpus_per_node: Array
    """[]"""
    nodes: Array
    """[]"""


class KernelRows(NamedTuple):
    """The kernels of one family, one row per kernel of the step."""

    dimensions: Array
    """[dimension, row] for one sample and no split, in the order of `KERNEL_DIMENSIONS`."""
    per_sample: Array
    """[dimension, row] 1 where the dimension grows with the local batch."""
    per_filter: Array
    """[dimension, row] 1 where the dimension shrinks with the filters a rank holds."""
    filters: Array
    """[row] filters or output neurons of the layer, the unit of a split."""
    itemsize: Array
    """[row] B per element."""
    precision: Array
    """[row] int32 index into `PRECISIONS`."""
    phase: Array
    """[row] int32 index into `PHASES`."""
    layer: Array
    """[row] int32 index of the layer the kernel belongs to."""


class Layers(NamedTuple):
    """The layers with weights, in forward order; what follows one without weights belongs to it."""

    parameters: Array
    """[layer] trainable parameters."""
    filters: Array
    """[layer] filters or output neurons."""
    outputs: Array
    """[layer] elements per sample that the layer's own kernel writes."""
    saved: Array
    """[layer] elements per sample kept for the backward pass."""
    workspace: Array
    """[layer] largest temporary per sample, elements."""


class Edges(NamedTuple):
    """The tensors that pass from one layer to another, in backward order of the layers that use them."""

    elements: Array
    """[edge] elements per sample."""
    producer: Array
    """[edge] int32 index of the layer that makes the tensor."""
    consumer: Array
    """[edge] int32 index of the layer that uses it."""
    weighted: Array
    """[edge] 1 where the consumer multiplies the tensor by weights, 0 where it only adds or concatenates."""


class Workload(NamedTuple):
    """One network and how it is trained. Made by `lower`."""

    kernels: dict[str, KernelRows]
    """By kernel family."""
    layers: Layers
    edges: Edges
    buckets: Array
    """[message, layer] 1 where the layer's gradients travel in the message; messages in backward order."""
    activation_bytes: Array
    """[] B per element of activations and of the messages that carry them."""
    gradient_bytes: Array
    """[] B per parameter of a gradient, in memory and on the links."""
    weight_bytes: Array
    """[] B per parameter of the weights and, in mixed precision, of their FP32 main copy."""
    moment_bytes: Array
    """[] B per parameter of the optimizer's moments."""
    flops: Array
    """[] model FLOPs per sample, forward and backward, matrix kernels only."""
    precision: Array
    """[] int32 index into `PRECISIONS` of the matrix kernels."""


class Shard(NamedTuple):
    """The part of a plan that decides the size of kernels. Leaves share a trailing shape [...]."""

    micro_batch_size: Array
    """[...] samples that a group of `tp` ranks works on at a time."""
    tp: Array
    """[...] ranks that share the filters of a layer."""
    split: Array
    """[layer, ...] 1 where the ranks share a layer's filters, 0 where they share the samples."""


class Plan(NamedTuple):
    """How the step is distributed: numbers only."""

    global_batch_size: Array
    micro_batch_size: Array
    dp: Array
    tp: Array
    split: Array
    """[layer, ...]"""
    overlap: Array
    """Share of the backward pass behind which gradient messages may hide: 0 blocking, 1 overlapped."""


class Memory(NamedTuple):
    """B per device; the terms add up to the peak."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    workspace: Array
    buffers: Array


class Table(NamedTuple):
    """What `price` knows of a shard: everything that no link and no replica count changes."""

    forward: Array
    """[...] s of kernels per micro-batch."""
    backward: Array
    """[...] s of kernels per micro-batch."""
    update: Array
    """[...] s per step."""
    ready: Array
    """[message, ...] s from the start of the backward pass until a message's gradients exist."""
    gradients: dict[str, Array]
    """[message, ...] B to reduce, by the ranks that reduce them: `replicas` or `all_ranks`."""
    gradient_bytes: Array
    """[] B per element of a gradient."""
    outputs: dict[str, Array]
    """[tensor, ...] B exchanged within a group in the forward pass, by collective."""
    copies: dict[str, Array]
    """[tensor] how often an output of that size is exchanged."""
    input_gradients: dict[str, Array]
    """[edge, ...] B exchanged within a group in the backward pass, by collective."""
    precedes: dict[str, Array]
    """[message, edge] 1 where an edge's exchange comes before the message's gradients are complete."""
    memory: Memory
    ideal: Array
    """[] s that the model FLOPs of one sample take one device at its peak."""


class Exchange(NamedTuple):
    """s that the ranks of a group spend exchanging activations, per micro-batch."""

    forward: Array
    """[...]"""
    backward: Array
    """[...]"""
    ready: Array
    """[message, ...] part of `backward` that precedes the moment a message is ready."""


class GradientTime(NamedTuple):
    """s that the gradients of one step take to be summed over the ranks."""

    exposed: Array
    """[...] not hidden behind the backward pass."""
    link_time: Array
    """[...] on the links, hidden or not."""


class Time(NamedTuple):
    """Exposed s per step; the terms add up to the step."""

    forward: Array
    backward: Array
    activation_exchange: Array
    gradient_exchange: Array
    update: Array


class Prediction(NamedTuple):
    """What a plan costs."""

    step_time: Array
    """s."""
    time: Time
    gradient_link_time: Array
    """s that gradient messages occupy the links, hidden or not."""
    peak_memory: Array
    """B."""
    memory: Memory
    feasible: Array
    """bool."""
    reasons: Array
    """int32 bit mask of `REASONS`."""
    mfu: Array
    """Model FLOPs utilization: matrix FLOPs of the network over what the devices could do."""


REASONS = ("memory", "gpus")
"""Why a plan is infeasible, by bit of `Prediction.reasons`: it needs more memory than a device has,
or more devices than the cluster has."""
