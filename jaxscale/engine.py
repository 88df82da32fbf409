"""The one evaluation of a plan, in two tiers.

`price` times the kernels of a shard on a device; `exchange` and `reduce_gradients` time the messages of a
shard and of its replicas; `compose` puts a plan together from them with a handful of adds; `predict` is one
after the other. Every leaf of a `Shard`, a `Table` and a `Plan` may carry trailing axes that broadcast, so
the same lines evaluate one plan and a block of millions.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from jaxscale import collectives
from jaxscale.collectives import Envelope
from jaxscale.kernels import KernelModel, Roofline
from jaxscale.memory import memory
from jaxscale.nouns import (
    PHASES,
    Array,
    Cluster,
    Device,
    Exchange,
    GradientTime,
    KernelRows,
    Plan,
    Prediction,
    Shard,
    Table,
    Time,
    Workload,
)

GRADIENT_ALGORITHMS = collectives.DEFAULT_ALGORITHMS["all_reduce"]
"""What reduces gradients unless the caller names something else: what GPU libraries choose from."""


def price(workload: Workload, device: Device, shard: Shard, kernel_model: KernelModel | None = None) -> Table:
    """Time every kernel of `shard` on `device`: tier one.

    Args:
        workload: L layers, E edges, J messages.
        device: where the kernels run.
        shard: leaves [...] and [L, ...].
        kernel_model: times one kernel; the roofline when None.

    Returns:
        Table with leaves [...], [J, ...] and [tensor, ...].
    """
    whole, batch, held = local_sizes(workload, shard)
    forward, backward_input, backward_weight, update = layer_seconds(workload, device, shard, kernel_model)
    backward = backward_input + backward_weight

    finished = jnp.cumsum(workload.buckets, 0)
    gradients = _gradient_bytes(workload, whole, held)
    outputs, input_gradients = exchanged_bytes(workload, shard)
    return Table(
        forward=forward.sum(0),
        backward=backward.sum(0),
        update=update.sum(0),
        ready=jnp.tensordot(finished, backward, 1),
        gradients=gradients,
        outputs=outputs,
        copies={kind: jnp.ones(len(sizes), sizes.dtype) for kind, sizes in outputs.items()},
        input_gradients=input_gradients,
        gradient_bytes=workload.gradient_bytes,
        precedes=dict.fromkeys(input_gradients, finished[:, workload.edges.consumer]),
        memory=memory(workload, batch, held, gradients["replicas"] + gradients["all_ranks"]),
        ideal=workload.flops / device.peak_flops[workload.precision],
    )


def layer_seconds(
    workload: Workload, device: Device, shard: Shard, kernel_model: KernelModel | None = None
) -> Array:
    """[phase, L, ...] s of the kernels of each layer; arguments as in `price`, which adds them up."""
    kernel_model = Roofline() if kernel_model is None else kernel_model
    tables = workload.kernels.values()
    phase, layer = (jnp.concatenate([getattr(rows, leaf) for rows in tables]) for leaf in ("phase", "layer"))
    times = []
    for family, dimensions in local_dimensions(workload, shard).items():
        rows = workload.kernels[family]
        itemsize, precision = (_beside(leaf, dimensions[0]) for leaf in (rows.itemsize, rows.precision))
        times.append(kernel_model(family, dimensions, itemsize, precision, device))
    every = jnp.concatenate(times)
    layers = len(workload.layers.parameters)
    return jnp.zeros((len(PHASES), layers, *every.shape[1:]), every.dtype).at[phase, layer].add(every)


def local_dimensions(workload: Workload, shard: Shard) -> dict[str, Array]:
    """[dimension, row, ...] sizes of the kernels on one rank, by family."""
    _, batch, held = local_sizes(workload, shard)
    layer = jnp.concatenate([rows.layer for rows in workload.kernels.values()])
    batch_of_row, held_of_row = batch[layer], held[layer]
    found, first = {}, 0
    for family, rows in workload.kernels.items():
        mine = slice(first, first := first + len(rows.layer))
        found[family] = _localize(rows, batch_of_row[mine], held_of_row[mine])
    return found


def local_sizes(workload: Workload, shard: Shard) -> tuple[Array, Array, Array]:
    """[L, ...] Whether a rank sees all samples of its group, how many that is, its share of the filters."""
    whole = (shard.split > 0) | (shard.tp == 1)
    batch = jnp.where(whole, shard.micro_batch_size, shard.micro_batch_size / shard.tp)
    filters = _beside(workload.layers.filters, batch)
    return whole, batch, jnp.where(whole, jnp.ceil(filters / shard.tp) / filters, 1.0)


def exchange(
    table: Table, cluster: Cluster, tp: Array, algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS
) -> Exchange:
    """Time what the ranks of a group exchange within each micro-batch, while nothing computes.

    Args:
        table: from `price`.
        cluster: its links carry the messages.
        tp: [...] ranks per group, neighbours in the numbering of devices.
        algorithms: what may sum input gradients, names of all-reduce algorithms.

    Returns:
        Exchange with leaves [...] and [J, ...].
    """
    forward, backward, ready = (jnp.zeros_like(leaf) for leaf in (table.forward, table.backward, table.ready))
    envelopes = tensor_envelopes({*table.outputs, *table.input_gradients}, cluster, tp, algorithms)
    for kind, sizes in table.outputs.items():
        forward += _tensor_clock(envelopes[kind], sizes, table.copies[kind])[0]
    for kind, sizes in table.input_gradients.items():
        whole, passed = _tensor_clock(envelopes[kind], sizes, jnp.ones(len(sizes), sizes.dtype))
        backward += whole
        ready += passed[table.precedes[kind].sum(1).astype(jnp.int32)]
    return Exchange(forward, backward, ready)


def tensor_envelopes(
    kinds: Iterable[str], cluster: Cluster, tp: Array, algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS
) -> dict[str, Envelope]:
    """How long the ranks of a group, which are neighbours, exchange tensors, per kind of collective."""
    ranks = collectives.group(tp, 1, cluster.gpus_per_node)
    chosen = {"all_reduce": _reductions(algorithms) or GRADIENT_ALGORITHMS}
    return collectives.envelopes(
        cluster.links, ranks, 4.0, {kind: chosen.get(kind) for kind in sorted(kinds)}
    )


def gradient_envelopes(
    table: Table, cluster: Cluster, plan: Plan, algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS
) -> dict[str, Envelope]:
    """How long gradient messages take: among the ranks that hold the same filters, and among all ranks.

    Args:
        table: names the groups that reduce anything.
        cluster: its links carry the messages.
        plan: only `dp` and `tp` are read.
        algorithms: as in `predict`.

    Returns:
        Per group, an envelope with leaves [...].
    """
    groups = {
        "replicas": collectives.group(plan.dp, plan.tp, cluster.gpus_per_node),
        "all_ranks": collectives.group(plan.dp * plan.tp, 1, cluster.gpus_per_node),
    }
    kinds = {"all_reduce": _reductions(algorithms), "parameter_server": None}
    wanted = {kind: kinds[kind] for kind in kinds if kinds[kind] or kind in algorithms}
    found = {}
    for who in table.gradients:
        parts = collectives.envelopes(cluster.links, groups[who], table.gradient_bytes, wanted).values()
        found[who] = Envelope(*(sum(rows, ()) for rows in zip(*parts, strict=True)))
    return found


def reduce_gradients(
    table: Table, exchanged: Exchange, envelopes: dict[str, Envelope], overlap: Array
) -> GradientTime:
    """Time the gradient messages behind the backward pass of the last micro-batch.

    Messages leave in backward order, each when its gradients exist and the link is free: walking the
    messages, net = max(ready, net) + all_reduce, and the step ends no earlier than both clocks
    (Barrachina et al. 2021, one message per layer; here one per bucket).

    Args:
        table: from `price`.
        exchanged: from `exchange`, for the same table.
        envelopes: from `gradient_envelopes`, for the same groups.
        overlap: as in `Plan`.

    Returns:
        GradientTime with leaves [...].
    """
    backward = table.backward + exchanged.backward
    ready = table.ready + exchanged.ready
    messages = reduction_seconds(envelopes, table.gradients)
    net = jnp.zeros(())
    for moment, message in zip(backward + overlap * (ready - backward), messages, strict=True):
        net = jnp.maximum(net, moment) + message
    return GradientTime(jnp.maximum(net - backward, 0.0), messages.sum(0))


def compose(
    table: Table, exchanged: Exchange, reduction: GradientTime, cluster: Cluster, plan: Plan
) -> Prediction:
    """What plans cost, given the priced table of their shards: tier two.

    Accumulated micro-batches repeat the passes and the exchange of activations, and reduce gradients once.

    Args:
        table: from `price`, for the plan's shard.
        exchanged: from `exchange`, for the same table.
        reduction: from `reduce_gradients`, for the same groups and overlap.
        cluster: how many devices there are and what they hold.
        plan: leaves [...]; `split` and `overlap` are not read, the other tiers have used them.

    Returns:
        Prediction with leaves [...].
    """
    micro_batches = plan.global_batch_size / (plan.dp * plan.micro_batch_size)
    time = Time(
        forward=micro_batches * table.forward,
        backward=micro_batches * table.backward,
        activation_exchange=micro_batches * (exchanged.forward + exchanged.backward),
        gradient_exchange=reduction.exposed,
        update=table.update,
    )
    step_time = sum(time, jnp.zeros(()))
    held = table.memory._replace(buffers=jnp.where(plan.dp * plan.tp > 1, table.memory.buffers, 0.0))
    peak_memory = sum(held, jnp.zeros(()))
    too_big = peak_memory > cluster.device.memory_capacity
    too_many = plan.dp * plan.tp > cluster.nodes * cluster.gpus_per_node
    reasons = jnp.int32(1) * too_big + jnp.int32(2) * too_many
    return Prediction(
        step_time=step_time,
        time=time,
        gradient_link_time=reduction.link_time,
        peak_memory=peak_memory,
        memory=held,
        feasible=~(too_big | too_many),
        reasons=reasons,
        mfu=table.ideal * plan.global_batch_size / (step_time * plan.dp * plan.tp),
    )


def predict(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    kernel_model: KernelModel | None = None,
    algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS,
) -> Prediction:
    """Time, memory and feasibility of `plan` for `workload` on `cluster`.

    A pure function of arrays: jit, vmap and differentiate it in any leaf.

    Args:
        workload: from `lower`.
        cluster: from `hardware_db.cluster`.
        plan: from `PlanSpec.lower`.
        kernel_model: times one kernel; the roofline when None.
        algorithms: what may reduce gradients, names of all-reduce algorithms or "parameter_server".
    """
    shard = Shard(plan.micro_batch_size, plan.tp, plan.split)
    table = price(workload, cluster.device, shard, kernel_model)
    exchanged = exchange(table, cluster, plan.tp, algorithms)
    envelopes = gradient_envelopes(table, cluster, plan, algorithms)
    reduction = reduce_gradients(table, exchanged, envelopes, plan.overlap)
    return compose(table, exchanged, reduction, cluster, plan)


def usable(algorithms: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """Without in-switch sums where no switch sums, since those would never be the fastest.

    >>> from jaxscale import hardware_db
    >>> usable(GRADIENT_ALGORITHMS, hardware_db.cluster("dgx-1-v100"))
    ('ring', 'tree')
    """
    absent = float(cluster.links.in_switch_bandwidth) == 0
    return tuple(name for name in algorithms if not (absent and name == "in_switch")) or algorithms


def reduction_seconds(envelopes: dict[str, Envelope], sizes: dict[str, Array]) -> Array:
    """[...] s of reducing gradient messages, of which each kind of group has `sizes` [...] B to reduce."""
    return jnp.asarray(sum(collectives.time(envelopes[who], size) for who, size in sizes.items()))


def _localize(rows: KernelRows, batch: Array, held: Array) -> Array:
    """[dimension, row, ...] sizes of the kernels on one rank."""
    samples = jnp.where(_beside(rows.per_sample, batch) > 0, batch, 1.0)
    filters = jnp.where(_beside(rows.per_filter, batch) > 0, held, 1.0)
    return _beside(rows.dimensions, batch) * filters * samples


def _gradient_bytes(workload: Workload, whole: Array, held: Array) -> dict[str, Array]:
    """[J, ...] B by who reduces: ranks that hold the same filters, or all that hold the same layer."""
    size = _beside(workload.layers.parameters, held) * held * workload.gradient_bytes
    return {
        "replicas": jnp.tensordot(workload.buckets, jnp.where(whole, size, 0.0), 1),
        "all_ranks": jnp.tensordot(workload.buckets, jnp.where(whole, 0.0, size), 1),
    }


def exchanged_bytes(workload: Workload, shard: Shard) -> tuple[dict[str, Array], dict[str, Array]]:
    """B of activations, forward, and of their gradients, backward, that cross a group of ranks.

    A layer with split filters gathers its outputs, and sums its input gradients over the ranks (Castelló et
    al. 2019). Between a layer with split samples and one with split filters the samples are gathered on the
    way in and scattered on the way out.
    """
    batch = jnp.where(shard.tp > 1, shard.micro_batch_size, 0.0) * workload.activation_bytes
    layers, edges = workload.layers, workload.edges
    before, after = shard.split[edges.producer], shard.split[edges.consumer]
    elements, weighted = (_beside(leaf, before) for leaf in (edges.elements, edges.weighted))
    gathered = jnp.concatenate(
        [_beside(layers.outputs, before) * shard.split, elements * (1 - before) * after]
    )
    return {"all_gather": gathered * batch}, {
        "all_reduce": elements * weighted * before * after * batch,
        "reduce_scatter": elements * weighted * (1 - before) * after * batch,
        "all_gather": elements * before * (1 - after) * batch,
    }


def _tensor_clock(envelope: Envelope, sizes: Array, copies: Array) -> tuple[Array, Array]:
    """[...] s of exchanging all tensors, and [n + 1, ...] s passed after 0, 1, ... n of them.

    A loop, so that no more than one tensor's times are worked on at once.
    """

    def tick(now: Array, tensor: tuple[Array, Array]) -> tuple[Array, Array]:
        size, copies = tensor
        now += copies * collectives.time(envelope, size)
        return now, now

    shape = jnp.broadcast_shapes(sizes.shape[1:], *(row.shape for row in envelope.latency))
    start = jnp.zeros(shape, sizes.dtype)
    whole, passed = jax.lax.scan(tick, start, (sizes, copies))
    return whole, jnp.concatenate([start[None], passed])


def _reductions(algorithms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in algorithms if name != "parameter_server")


def _beside(leaf: Array, batch: Array) -> Array:
    """Append the trailing axes of `batch`, [layer, ...], to a leaf of the workload."""
    return leaf.reshape(leaf.shape + (1,) * (batch.ndim - 1))
