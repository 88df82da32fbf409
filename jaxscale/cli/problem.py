"""What a command line asks: a network, how it is trained, where, and which plans are considered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from jaxscale import hardware_db
from jaxscale.cli.options import (
    MOST_SAMPLES,
    OPTIMIZERS,
    PER_LAYER,
    PRECISIONS,
    SAMPLES_PER_DEVICE,
    note,
)
from jaxscale.cli.progress import Progress
from jaxscale.engine import GRADIENT_ALGORITHMS
from jaxscale.errors import InfeasibleError, InputError
from jaxscale.explain import Miss, first_that_fits, least_memory
from jaxscale.hardware_db.loader import fills_nodes, has_rate, runs_in
from jaxscale.lowering import lower
from jaxscale.report import describe_plan
from jaxscale.search import Evaluation, Space, evaluate
from jaxscale.search.space import divisors
from jaxscale.units import format_quantity

if TYPE_CHECKING:
    from jaxscale.hardware_db.loader import ClusterParts
    from jaxscale.kernels import KernelModel
    from jaxscale.network import Network
    from jaxscale.nouns import Cluster, Workload

MORE_DEVICES = (2, 4, 8, 16)
"""Multiples of the device count that are tried when nothing fits."""


@dataclass(frozen=True)
class Training:
    """A network and how it is trained."""

    network: Network
    precision: str
    optimizer: str
    messages: int | str

    def workload(self) -> Workload:
        messages = None if self.messages == PER_LAYER else int(self.messages)
        return lower(self.network, self.precision, self.optimizer, messages)

    def record(self) -> dict[str, Any]:
        return {"network": self.network.name, "precision": self.precision, "optimizer": self.optimizer}


@dataclass(frozen=True)
class Problem:
    """A question for the search.

    Args:
        training: network and how it is trained.
        cluster_name: a cluster or node of the hardware database.
        network_name: a network in place of the nodes' own.
        gpus: one number stands for all of its divisors that fill nodes, so that using fewer devices shows
            up where it is faster; several stand for themselves; None is the whole cluster.
        batch: samples per step; a number that suits the devices when None.
        tp: group sizes; all that divide when None.
        micro_batch: all that divide when None.
        hardware: values of levers to vary.

    Raises:
        InputError: no such cluster, or a count of devices that its nodes cannot give.
    """

    training: Training
    cluster_name: str
    network_name: str | None = None
    gpus: tuple[int, ...] | None = None
    batch: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    hardware: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @cached_property
    def parts(self) -> ClusterParts:
        for count in self.gpus or ():
            hardware_db.cluster_parts(self.cluster_name, count, self.network_name)
        largest = max(self.gpus) if self.gpus else None
        return hardware_db.cluster_parts(self.cluster_name, largest, self.network_name)

    @property
    def devices(self) -> int:
        return self.parts.gpus_per_node * self.parts.nodes

    @cached_property
    def cluster(self) -> Cluster:
        return hardware_db.cluster(self.cluster_name, self.devices, self.network_name)

    @property
    def counts(self) -> list[int]:
        """Numbers of devices to consider."""
        if self.gpus and len(self.gpus) > 1:
            return sorted(self.gpus)
        return [count for count in divisors(self.devices) if fills_nodes(count, self.parts.gpus_per_node)]

    @property
    def batches(self) -> tuple[int, ...]:
        return self.batch or (min(SAMPLES_PER_DEVICE * self.devices, MOST_SAMPLES),)

    @property
    def words(self) -> str:
        return f"{self.training.network.name} on {self.devices} GPUs of {self.cluster_name}"

    def space(self) -> Space:
        return Space(
            self.training.network,
            self.training.workload(),
            self.cluster,
            global_batch_sizes=self.batches,
            gpus=self.counts,
            tp=self.tp,
            micro_batch_sizes=self.micro_batch,
            hardware=self.hardware,
        )

    def record(self) -> dict[str, Any]:
        return {**self.training.record(), "cluster": self.cluster_name, "devices": self.devices}


def search(
    problem: Problem,
    space: Space,
    reductions: Sequence[Any],
    algorithms: tuple[str, ...] | None,
    kernel_model: KernelModel,
) -> Evaluation:
    """Judge the whole space.

    Raises:
        InfeasibleError: no plan fits; the message has the nearest miss and what would help.
    """
    with Progress() as progress:
        found = evaluate(
            space,
            reductions,
            kernel_model=kernel_model,
            algorithms=algorithms or GRADIENT_ALGORITHMS,
            progress=progress,
        )
    if not found.results[0]:
        raise InfeasibleError(_miss_message(problem, space))
    return found


def _miss_message(problem: Problem, space: Space) -> str:
    capacity = max(problem.hardware.get("memory_capacity", [float(problem.cluster.device.memory_capacity)]))
    miss = least_memory(space)
    held = miss.memory
    largest = max(held, key=lambda name: held[name])
    remedies = filter(None, (first_that_fits(_changes(problem), capacity), _roomier_node(problem, miss)))
    help_ = " or ".join(remedies)
    return (
        f"no plan fits: the one that needs the least memory, {describe_plan(miss.plan)}, takes"
        f" {format_quantity(miss.peak, 'memory')} of a device's {format_quantity(capacity, 'memory')},"
        f" {format_quantity(miss.peak - capacity, 'memory')} too much, of which {largest} are"
        f" {format_quantity(held[largest], 'memory')}; "
        + (f"it would fit with {help_}" if help_ else "none of the changes tried would make it fit")
    )


def _changes(problem: Problem) -> Iterator[tuple[str, Callable[[], Space]]]:
    """Ways to need less memory, the least intrusive first."""
    training = problem.training
    if problem.micro_batch:
        yield "--micro-batch left out", replace(problem, micro_batch=None).space
    if problem.tp:
        yield "--tp left out", replace(problem, tp=None).space
    for optimizer in reversed(OPTIMIZERS[: OPTIMIZERS.index(training.optimizer)]):
        lighter = replace(training, optimizer=optimizer)
        yield f"--optimizer {optimizer}", replace(problem, training=lighter).space
    if PRECISIONS.index(training.precision) < PRECISIONS.index("fp16"):
        narrower = replace(training, precision="fp16")
        yield "--precision fp16", replace(problem, training=narrower).space
    batch = min(problem.batches) // 2
    while batch:
        yield f"--batch {batch}", replace(problem, batch=(batch,)).space
        batch //= 2
    for factor in MORE_DEVICES:
        devices = problem.devices * factor
        yield f"--gpus {devices}", replace(problem, gpus=(devices,)).space


def _roomier_node(problem: Problem, miss: Miss) -> str | None:
    """The node whose devices have just the memory; what a plan needs does not depend on the device."""
    nodes = [(name, hardware_db.load_node(name)) for name in hardware_db.node_names()]
    rooms = [(hardware_db.load_device(node.device).memory_capacity_gb * 1e9, name) for name, node in nodes]
    for capacity, name in sorted(rooms):
        if capacity >= miss.peak:
            try:
                hardware_db.cluster_parts(name, problem.devices, problem.network_name)
            except InputError:
                continue
            return f"--cluster {name} ({format_quantity(capacity, 'memory')} per device)"
    return None


def note_format(precision: str, parts: ClusterParts) -> None:
    """Say so where a device has no rate for a format and kernels run at that of another."""
    native = runs_in(precision, partial(has_rate, parts.device))
    if native != precision:
        device = parts.node.device if parts.node else parts.name
        note(
            f"{device} has no matrix rate for {precision} in the hardware database, so matrix kernels run at"
            f" its {native} rate"
        )
