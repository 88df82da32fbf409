"""Why a plan takes the time it takes, and what keeps plans from fitting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale import collectives
from jaxscale.engine import GRADIENT_ALGORITHMS, gradient_envelopes, predict, price, usable
from jaxscale.errors import InputError
from jaxscale.kernels import KernelModel
from jaxscale.kernels.doubt import LEVELS, half_widths, is_taught, spread
from jaxscale.kernels.learned import GROUP_OF
from jaxscale.levers import LEVERS
from jaxscale.nouns import PRECISIONS, REASONS, Cluster, Memory, Plan, Prediction, Shard, Workload
from jaxscale.runtime import quick_jit
from jaxscale.search.space import COLUMNS, Space
from jaxscale.shapes import Timed, distinct
from jaxscale.timing import AT_ONCE, Kernels, kernel_seconds

if TYPE_CHECKING:
    from jaxscale.kernels.weights import Weights
    from jaxscale.network import Network
    from jaxscale.plans import PlanSpec

TIME_LEVERS = tuple(name for name in LEVERS if name != "memory_capacity")
"""Levers that the time of a step depends on; capacity decides only whether a plan fits."""

_BOUNDS = {
    "compute": ("peak_flops",),
    "memory bandwidth": ("memory_bandwidth",),
    "caches and latency": ("clock",),
    "launch overhead": ("launch_overhead",),
    "intra-node link": ("intra_node_bandwidth", "intra_node_latency"),
    "inter-node link": ("inter_node_bandwidth", "inter_node_latency"),
}


class Explanation(NamedTuple):
    """A plan's prediction, in float64, and how its step time answers to the hardware."""

    prediction: Prediction
    elasticities: dict[str, float]
    """d log(step time) / d log(lever), per name of `TIME_LEVERS`."""
    precision: str
    """Format of the matrix kernels."""
    gradients_by: dict[str, int]
    """Gradient messages by the algorithm that reduces them, the most used first."""


def explain(
    network: Network,
    workload: Workload,
    cluster: Cluster,
    plan: PlanSpec,
    kernel_model: KernelModel | None = None,
    algorithms: tuple[str, ...] | None = None,
) -> Explanation:
    """Predict a plan and differentiate its step time in every lever, in one reverse pass.

    Args:
        network: what `workload` was lowered from.
        workload: L layers.
        cluster: where the plan runs.
        plan: the plan.
        kernel_model: times kernels; the roofline when None.
        algorithms: what may reduce gradients, as in `compose`; what GPU libraries use when None.

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> from jaxscale.plans import PlanSpec
    >>> network = zoo.build("lenet-5")
    >>> found = explain(network, lower(network), hardware_db.cluster("v100"), PlanSpec(64, 64))
    >>> max(bounds(found.elasticities), key=bounds(found.elasticities).get)  # its kernels are tiny
    'launch overhead'
    """
    algorithms = usable(algorithms or GRADIENT_ALGORITHMS, cluster)
    with jax.enable_x64(True):
        given = _widened(workload), _widened(cluster), plan.lower(network, np.float64)
        log_factors = dict.fromkeys(TIME_LEVERS, np.zeros(()))
        gradient, prediction = _gradient(log_factors, *given, kernel_model, algorithms)
        prediction, gradient = jax.tree.map(np.asarray, (prediction, gradient))
        reductions = np.asarray(_reductions(*given, kernel_model, algorithms))
    elasticities = {name: float(gradient[name]) for name in TIME_LEVERS}
    fastest = reductions.argmin(0)[reductions.min(0) > 0]
    by = Counter(algorithms[i] for i in fastest).most_common()
    return Explanation(prediction, elasticities, PRECISIONS[int(workload.precision)], dict(by))


class Interval(NamedTuple):
    """How sure the step time of a plan is."""

    ends: dict[float, tuple[float, float]]
    """Level of `LEVELS` -> the least and the largest s per step, all kernels being off the same way."""
    unmeasured: tuple[str, ...]
    """Families of kernels of which none like these was measured, in this format on this generation."""


def step_interval(
    network: Network,
    workload: Workload,
    cluster: Cluster,
    plan: PlanSpec,
    weights: Weights,
    algorithms: tuple[str, ...] | None = None,
) -> Interval:
    """How far off the step time of a plan may be because its kernels are; arguments as in `explain`."""
    algorithms = usable(algorithms or GRADIENT_ALGORITHMS, cluster)
    device = jax.tree.map(lambda leaf: np.asarray(leaf)[None], cluster.device)
    lowered = plan.lower(network)
    seconds, unmeasured = {}, []
    shard = Shard(lowered.micro_batch_size, lowered.tp, lowered.split)
    for family, shapes in distinct(workload, shard).items():
        kernels = Kernels(family, *map(np.asarray, shapes[:3]))
        here = np.zeros(len(kernels.itemsize), np.int32)
        times = [kernel_seconds(kernels, device, here, member, AT_ONCE) for member in weights.all_members]
        known = is_taught(weights.doubt, family, shapes.precision, cluster.device)
        width = half_widths(weights.doubt[GROUP_OF[family]], spread(np.stack(times)), known)
        ends = times[0] * np.exp(np.stack([-width, width], 1))
        seconds[family] = ends[..., shapes.place].astype(np.float32)
        unmeasured += [] if known.all() else [family]
    steps = np.asarray(_steps(workload, cluster, lowered, Timed(seconds), algorithms), float)
    ends = {level: (float(low), float(high)) for level, (low, high) in zip(LEVELS, steps, strict=True)}
    return Interval(ends, tuple(unmeasured))


def bounds(elasticities: dict[str, float]) -> dict[str, float]:
    """Shares of the step time by what bounds it; they add up to 1.

    Rates k times as high and latencies 1/k as long make the step 1/k as long, so the elasticities of rates,
    negated, and those of latencies add up to 1 (Euler's theorem on homogeneous functions). What the levers
    leave is spent where no lever reaches: calls of collectives, host memory, sums in the network.

    >>> shares = bounds(dict.fromkeys(TIME_LEVERS, 0.0) | {"peak_flops": -0.75, "launch_overhead": 0.25})
    >>> {name: share for name, share in shares.items() if share}
    {'compute': 0.75, 'launch overhead': 0.25}
    """
    shares = {
        bound: sum(elasticities[name] * (1 if _is_duration(name) else -1) for name in names)
        for bound, names in _BOUNDS.items()
    }
    return shares | {"elsewhere": 1.0 - sum(shares.values())}


class Miss(NamedTuple):
    """The plan that comes closest to fitting."""

    plan: PlanSpec
    memory: dict[str, float]
    """B per device, by field of `Memory`."""

    @property
    def peak(self) -> float:
        """B per device."""
        return sum(self.memory.values())


def least_memory(space: Space) -> Miss:
    """The plan of `space` that needs the least memory, whether it fits or not.

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> network = zoo.build("lenet-5")
    >>> space = Space(network, lower(network), hardware_db.cluster("v100"), global_batch_sizes=(64,))
    >>> least_memory(space).plan.micro_batch_size
    1
    """
    rows = space.rows
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    # Plans that differ in nothing but the number of replicas need the same memory.
    distinct = [column["micro_batch_size"], column["tp"], column["split"], column["dp"] * column["tp"] == 1]
    _, first = np.unique(np.stack(distinct, 1), axis=0, return_index=True)
    flags = np.array(space.split_flags, np.float32)
    sizes = {name: jnp.asarray(column[name][first].astype(np.float32)) for name in Plan._fields[:4]}
    plan = Plan(**sizes, split=jnp.asarray(flags[column["split"][first]].T), overlap=jnp.ones(len(first)))
    terms = _memory(space.workload, space.cluster, plan)._asdict()
    terms = {name: np.broadcast_to(np.asarray(term), first.shape) for name, term in terms.items()}
    least = int(np.argmin(sum(terms.values())))
    return Miss(
        space.plan(int(first[least]), True), {name: float(term[least]) for name, term in terms.items()}
    )


def first_that_fits(variants: Iterable[tuple[str, Callable[[], Space]]], capacity: float) -> str | None:
    """The name of the first variant of a space with a plan that needs at most `capacity` B per device.

    A variant that cannot be made, because nothing divides or no such cluster exists, does not fit.
    """

    def fits(make: Callable[[], Space]) -> bool:
        try:
            return least_memory(make()).peak <= capacity
        except InputError:
            return False

    return next((name for name, make in variants if fits(make)), None)


def reasons(prediction: Prediction) -> list[str]:
    """The names of the limits that a plan breaks, out of `REASONS`."""
    return [name for bit, name in enumerate(REASONS) if int(prediction.reasons) >> bit & 1]


@partial(quick_jit, static_argnames=("algorithms",))
def _gradient(log_factors, workload, cluster, plan, kernel_model, algorithms):
    def log_time(log_factors: dict[str, jax.Array]) -> tuple[jax.Array, Prediction]:
        scaled = cluster
        for name, log_factor in log_factors.items():
            scaled = LEVERS[name].scale(scaled, jnp.exp(log_factor))
        prediction = predict(workload, scaled, plan, kernel_model, algorithms)
        return jnp.log(prediction.step_time), prediction

    return jax.grad(log_time, has_aux=True)(log_factors)


@partial(quick_jit, static_argnames=("algorithms",))
def _reductions(
    workload: Workload,
    cluster: Cluster,
    plan: Plan,
    kernel_model: KernelModel | None,
    algorithms: tuple[str, ...],
) -> jax.Array:
    """[algorithm, message] s of reducing each message of each group, 0 where there is nothing to reduce."""
    table = price(workload, cluster.device, Shard(plan.micro_batch_size, plan.tp, plan.split), kernel_model)
    envelopes = {name: gradient_envelopes(table, cluster, plan, (name,)) for name in algorithms}
    return jnp.array(
        [
            jnp.concatenate([collectives.time(each[who], size) for who, size in table.gradients.items()])
            for each in envelopes.values()
        ]
    )


@quick_jit
def _memory(workload: Workload, cluster: Cluster, plan: Plan) -> Memory:
    return predict(workload, cluster, plan).memory


@partial(quick_jit, static_argnames=("algorithms",))
def _steps(
    workload: Workload, cluster: Cluster, plan: Plan, timed: Timed, algorithms: tuple[str, ...]
) -> jax.Array:
    """[level, end] s per step with kernels timed [level, end, row]."""

    def one(timed: Timed) -> jax.Array:
        return predict(workload, cluster, plan, timed, algorithms).step_time

    return jax.vmap(jax.vmap(one))(timed)


def _is_duration(name: str) -> bool:
    return LEVERS[name].dimension == "time"


def _widened(tree):
    def widen(leaf):
        leaf = np.asarray(leaf)
        return leaf.astype(np.float64) if np.issubdtype(leaf.dtype, np.floating) else leaf

    return jax.tree.map(widen, tree)
