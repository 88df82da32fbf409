"""The best assignment of layers to data or model parallelism within the groups of a plan.

Tables of what each layer and each edge costs come from the engine; the labels of `search.labels` walk them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale import collectives
from jaxscale.engine import (
    GRADIENT_ALGORITHMS,
    exchanged_bytes,
    gradient_envelopes,
    layer_seconds,
    local_sizes,
    predict,
    price,
    reduction_seconds,
    tensor_envelopes,
)
from jaxscale.errors import InfeasibleError, InputError
from jaxscale.kernels import KernelModel, Roofline
from jaxscale.memory import memory
from jaxscale.network import Network
from jaxscale.nouns import Array, Cluster, Plan, Prediction, Shard, Workload
from jaxscale.plans import SPLITS, PlanSpec, Split
from jaxscale.runtime import quick_jit
from jaxscale.search.labels import FASTEST_KEPT, Step, Walk, frontiers, projection, walk
from jaxscale.units import format_quantity

CAPACITY = 4096
"""Labels kept per state."""

BEAM = 64
"""Labels kept per state in a first walk where memory binds; what it finds prunes the exact one."""

WIDEST = 12
"""Layers whose flags a state may hold; published networks need at most five."""

TOGETHER = 16
"""Plans whose tables are worked out at a time."""


class Stats(NamedTuple):
    """How `best_split` came to its answer."""

    prediction: Prediction
    """Of the chosen plan, in float64."""
    bound: float
    """s that no assignment undercuts when every layer sends its gradients by itself."""
    labels: int
    """Partial assignments that were kept, over all layers."""
    most_labels: int
    """Of them in the fullest state."""
    frontier: int
    """Layers whose flags a state holds, at most."""
    dropped: int
    """Labels for which a state had no room; an answer as fast as `bound` is the best one even so."""
    seconds: float


class Choices(NamedTuple):
    """What each layer, [plan, L, flag], and each edge, [plan, E, flag, flag], costs; s and B.

    The flags of an edge are its producer's and its consumer's; a layer's own exchange is part of `forward`.
    """

    forward: Array
    backward: Array
    update: Array
    message: Array
    least_message: Array
    """Share of the layer in any message that it is part of, at least."""
    edge_forward: Array
    edge_backward: Array
    memory: Array
    """[plan, 3, L, flag]: what adds up over layers, workspace, buffers."""


def best_split(
    network: Network,
    workload: Workload,
    cluster: Cluster,
    plan: PlanSpec,
    kernel_model: KernelModel | None = None,
    algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS,
    capacity: int = CAPACITY,
) -> tuple[PlanSpec, Stats]:
    """Find the assignment of layers to data or model parallelism whose step is shortest among those that fit.

    Exact where every layer sends its gradients by itself, `lower(..., messages=None)`, unless
    `Stats.dropped` labels were lost and the answer stays above `Stats.bound`. For other workloads the search
    assumes one message per layer, and buffers as large as the messages can get; the best assignments that it
    finds are then compared, with each other and with the named ones, by the workload's own messages. That is
    good, but not proven to be the best.

    Args:
        network: what is trained.
        workload: its tables.
        cluster: devices and links.
        plan: batches, degrees and overlap; its split is replaced.
        kernel_model: times kernels; the roofline when None.
        algorithms: what may reduce gradients, as in `predict`.
        capacity: labels kept per state.

    Returns:
        The plan with one flag per layer with weights, and how it was found.

    Raises:
        InfeasibleError: no assignment fits, or the plan needs more devices than there are.
        InputError: branches so entangled that a state would hold more than `WIDEST` flags.

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> network = zoo.build("alexnet")
    >>> workload, dgx = lower(network, messages=None), hardware_db.cluster("dgx-1-v100")
    >>> best, stats = best_split(network, workload, dgx, PlanSpec(512, 512, tp=8, overlap=False))
    >>> best.split == SPLITS["classifier"](network), stats.dropped
    (True, 0)
    """
    if capacity < 1:
        raise InputError(f"capacity is {capacity!r}, but a state must hold at least one label")
    solver = Solver(network, workload, cluster, kernel_model, algorithms)
    if solver.width > WIDEST:
        raise InputError(
            f"the branches of {network.name} tie {solver.width} layers together, but a free assignment can"
            f" follow at most {WIDEST}"
        )
    choices = solver.choices([plan])[0]
    obstacle = solver.obstacle(plan, choices)
    if obstacle:
        raise InfeasibleError(obstacle)
    found = solver.solve(plan, choices, capacity)
    if found is None:
        have = format_quantity(float(solver.cluster.device.memory_capacity), "memory")
        raise InfeasibleError(
            f"no assignment of layers was found, with {capacity} labels per state, that fits in {have} and"
            " whose messages the links can carry"
        )
    return found


class Solver:
    """One network on one cluster, ready for any number of plans."""

    def __init__(
        self,
        network: Network,
        workload: Workload,
        cluster: Cluster,
        kernel_model: KernelModel | None,
        algorithms: tuple[str, ...],
    ) -> None:
        self.network = network
        self.workload = jax.tree.map(_widened, workload)
        self.cluster = jax.tree.map(_widened, cluster)
        self.terms = (Roofline() if kernel_model is None else kernel_model, algorithms)
        edges = self.workload.edges
        alone = np.eye(len(network.weighted))
        self.alone = self.workload._replace(buckets=alone)
        self.is_alone = np.array_equal(self.workload.buckets, alone[::-1])
        self.frontiers = frontiers(len(alone), np.asarray(edges.producer), np.asarray(edges.consumer))
        self.width = max(known for _, _, known in self.frontiers)

    def choices(self, plans: Sequence[PlanSpec]) -> list[Choices]:
        """What layers can choose from in each of at most `TOGETHER` plans."""
        padded = [*plans, *[plans[-1]] * (TOGETHER - len(plans))]
        columns = np.array([(p.micro_batch_size, p.dp, p.tp) for p in padded], float).T
        with jax.enable_x64(True):
            stacked = jax.tree.map(np.asarray, _choices(self.alone, self.cluster, *columns, *self.terms))
        return [Choices(*(leaf[i] for leaf in stacked)) for i in range(len(plans))]

    def obstacle(self, plan: PlanSpec, choices: Choices) -> str | None:
        """Why no assignment can be feasible, where that is plain to see."""
        devices = int(self.cluster.nodes * self.cluster.gpus_per_node)
        if plan.devices > devices:
            return f"the plan needs {plan.devices} devices, but the cluster has {devices}"
        held, workspace, buffers = choices.memory.min(-1)
        least, capacity = held.sum() + workspace.max() + buffers.max(), self.cluster.device.memory_capacity
        if least > capacity:
            need, have = (format_quantity(float(size), "memory") for size in (least, capacity))
            return f"no assignment of layers fits: a device needs at least {need} and has {have}"
        return None

    def bound(self, plan: PlanSpec, choices: Choices) -> float:
        """s that no assignment undercuts: each layer has its cheaper flag, and edges are free."""
        if self.obstacle(plan, choices):
            return np.inf
        message = choices.message if self.is_alone else choices.least_message
        computed, shifted = _clocks(plan, choices.forward, choices.backward, choices.update)
        sent = (shifted if plan.overlap else computed) + message
        return max(float(computed.min(-1).sum()), float(sent.min(-1).sum()))

    def solve(
        self, plan: PlanSpec, choices: Choices, capacity: int = CAPACITY, limit: float = np.inf
    ) -> tuple[PlanSpec, Stats] | None:
        """See `best_split`; None where nothing fits, or nothing takes at most `limit` s."""
        started = time.perf_counter()
        forced = _forced(plan, self.network)
        if forced:
            walked, splits = None, [forced]
        elif self.is_alone:
            walked = self._walk(plan, choices, capacity, limit)
            splits = walked.splits
        else:
            walked = self._walk(plan, self._with_bucket_buffers(choices), capacity)
            splits = [*walked.splits, *(split(self.network) for split in SPLITS.values())]
        if not splits:
            return None
        predictions = self._predictions(plan, splits)
        times = np.where(predictions.feasible, predictions.step_time, np.inf)
        best = int(np.nanargmin(np.append(times, np.inf)))
        if best == len(times) or not np.isfinite(times[best]):
            return None
        prediction = jax.tree.map(lambda leaf: leaf[best], predictions)
        walked = walked or Walk(splits, [float(times[best])], np.inf, 0, 0, 0)
        return replace(plan, split=splits[best]), Stats(
            prediction,
            min([walked.lost, *walked.times]),
            walked.labels,
            walked.most_labels,
            0 if forced else self.width,
            walked.dropped,
            time.perf_counter() - started,
        )

    def _walk(self, plan: PlanSpec, choices: Choices, capacity: int, limit: float = np.inf) -> Walk:
        """Without the memory limit first: where the fastest assignment fits, the limit does not matter."""
        steps = _steps(plan, choices, self.workload, self.frontiers)
        available = float(self.cluster.device.memory_capacity)
        free = walk(steps, capacity, limit=limit)
        if not free.splits or _peak(choices, free.splits[0]) <= available:
            return free
        beam = walk(steps, min(BEAM, capacity), available, limit)
        fitting = [
            seconds
            for split, seconds in zip(beam.splits, beam.times, strict=True)
            if _peak(choices, split) <= available
        ]
        exact = walk(steps, capacity, available, min([limit, *fitting]))
        return exact if exact.splits else exact._replace(splits=beam.splits, times=beam.times)

    def _with_bucket_buffers(self, choices: Choices) -> Choices:
        """Let every layer need the largest buffer that the message of its bucket may take."""
        largest = self.workload.buckets @ choices.memory[2].max(-1) @ self.workload.buckets
        buffers = np.broadcast_to(largest[:, None], choices.memory[2].shape)
        return choices._replace(memory=np.stack([*choices.memory[:2], buffers]))

    def _predictions(self, plan: PlanSpec, splits: list[Split]) -> Prediction:
        """Predictions of one plan with each of the splits."""
        missing = FASTEST_KEPT + len(SPLITS) - len(splits)
        with jax.enable_x64(True):
            numbers = replace(plan, split=splits[0]).lower(self.network, np.float64)
            padded = np.array([*splits, *[splits[0]] * missing], float).T
            return jax.tree.map(
                np.asarray,
                _predictions(self.workload, self.cluster, numbers._replace(split=padded), *self.terms),
            )


@partial(quick_jit, static_argnames=("algorithms",))
def _choices(
    workload: Workload,
    cluster: Cluster,
    micro_batch_size: Array,
    dp: Array,
    tp: Array,
    kernel_model: KernelModel,
    algorithms: tuple[str, ...],
) -> Choices:
    """The choices of plans, whose numbers are [plan]; message j of the workload is that of layer j."""
    count = len(workload.layers.parameters)
    edges = workload.edges
    # Every edge between the same two layers, whose flags then run through all four combinations.
    ends = edges._replace(producer=jnp.zeros_like(edges.producer), consumer=jnp.ones_like(edges.consumer))
    pair = workload._replace(edges=ends, layers=workload.layers._replace(outputs=jnp.zeros(2)))
    flags = jnp.arange(2.0)
    both = jnp.broadcast_to(flags, (count, 2))
    four = jnp.stack(jnp.meshgrid(flags, flags, indexing="ij"))

    def of_plan(micro_batch_size: Array, dp: Array, tp: Array) -> Choices:
        shard = Shard(micro_batch_size, tp, both)
        table = price(workload, cluster.device, shard, kernel_model)
        forward, backward_input, backward_weight, update = layer_seconds(
            workload, cluster.device, shard, kernel_model
        )

        envelopes = tensor_envelopes(("all_gather", "all_reduce", "reduce_scatter"), cluster, tp, algorithms)

        def exchange(kind: str, *groups: Array) -> list[Array]:
            sizes = jnp.concatenate([group.ravel() for group in groups])
            times = collectives.time(envelopes[kind], sizes)
            parts = jnp.split(times, np.cumsum([group.size for group in groups])[:-1])
            return [part.reshape(group.shape) for part, group in zip(parts, groups, strict=True)]

        outputs, input_gradients = exchanged_bytes(pair, shard._replace(split=four))
        own, gathered, edge_backward = exchange(
            "all_gather",
            table.outputs["all_gather"][:count],
            outputs["all_gather"][2:],
            input_gradients.pop("all_gather"),
        )
        for kind, sizes in input_gradients.items():
            edge_backward += exchange(kind, sizes)[0]

        plan = Plan(dp * micro_batch_size, micro_batch_size, dp, tp, both, jnp.ones(()))
        envelopes = gradient_envelopes(table, cluster, plan, algorithms)
        gradients = jnp.asarray(sum(table.gradients.values()))
        with_total = {who: jnp.vstack([size, size.sum(0)]) for who, size in table.gradients.items()}
        message = reduction_seconds(envelopes, with_total)
        # The larger a message, the fewer s per B, and none is larger than the gradients of all layers.
        least_message = gradients * message[-1] / jnp.maximum(gradients.sum(0), 1.0)

        def of_layer(mask: Array) -> Array:
            _, batch, held = local_sizes(workload, shard)
            alone = memory(workload, batch * mask, held * mask, gradients * mask)
            added = alone.weights + alone.gradients + alone.optimizer + alone.activations
            return jnp.stack([added, alone.workspace, alone.buffers])

        return Choices(
            forward=forward + own,
            backward=backward_input + backward_weight,
            update=update,
            message=message[:-1],
            least_message=least_message,
            edge_forward=gathered,
            edge_backward=edge_backward,
            memory=jax.vmap(of_layer, out_axes=1)(jnp.eye(count)[..., None]),
        )

    return jax.vmap(of_plan)(micro_batch_size, dp, tp)


@partial(quick_jit, static_argnames=("algorithms",))
def _predictions(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    kernel_model: KernelModel,
    algorithms: tuple[str, ...],
) -> Prediction:
    prediction = predict(workload, cluster, plan, kernel_model, algorithms)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, plan.split.shape[1:]), prediction)


def _clocks(plan: PlanSpec, forward, backward, update) -> tuple[np.ndarray, np.ndarray]:
    """s by which a layer or an edge lengthens the step if only computation counts, and the part that precedes
    the backward pass of the last micro-batch, or follows it, where no message can hide."""
    shifted = plan.micro_batches * forward + update
    if plan.micro_batches > 1:
        shifted = shifted + (plan.micro_batches - 1) * backward
    return shifted + backward, shifted


def _steps(plan: PlanSpec, choices: Choices, workload: Workload, order) -> list[Step]:
    """The layers in backward order, what each adds in every joint state."""
    layer_clocks = np.stack(_clocks(plan, choices.forward, choices.backward, choices.update))
    edge_clocks = np.stack(_clocks(plan, choices.edge_forward, choices.edge_backward, 0.0))
    producer, consumer = np.asarray(workload.edges.producer), np.asarray(workload.edges.consumer)
    steps = []
    for i, (layer, joint, known) in enumerate(order):
        following = order[i + 1][1][: order[i + 1][2]] if i + 1 < len(order) else ()
        states = np.arange(2 ** len(joint))
        flag = {other: states >> place & 1 for place, other in enumerate(joint)}
        clocks = layer_clocks[:, layer, flag[layer]]
        for edge in np.flatnonzero(consumer == layer):
            clocks = clocks + edge_clocks[:, edge, flag[int(producer[edge])], flag[layer]]
        message = np.asarray(choices.message)[layer, flag[layer]]
        computed, shifted = clocks if plan.overlap else clocks + message
        message = message if plan.overlap else 0.0 * message
        needs = np.asarray(choices.memory)[:, layer, flag[layer]]
        steps.append(Step(joint, known, projection(joint, following), computed, shifted, message, needs))
    return steps


def _forced(plan: PlanSpec, network: Network) -> Split | None:
    """The only assignment there is: one rank per group, or samples that its ranks cannot share evenly."""
    if plan.tp == 1:
        return SPLITS["data"](network)
    return SPLITS["model"](network) if plan.micro_batch_size % plan.tp else None


def _peak(choices: Choices, split: Split) -> float:
    held, workspace, buffers = choices.memory[:, np.arange(len(split)), np.array(split, int)]
    return float(held.sum() + workspace.max() + buffers.max())


def _widened(leaf: Array) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
