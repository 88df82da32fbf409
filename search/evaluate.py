"""Stream a space through one compiled evaluation and keep what the reductions ask for.

The compiled part returns one number per block of lanes, the best score in it; whatever is to be
reported of a winner is evaluated again, in float64, for the few blocks that hold winners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.kernels import KernelModel, Roofline
from jaxscale.levers import lever
from jaxscale.collectives import Envelope
from jaxscale.nouns import Cluster, Exchange, Plan, Prediction, Shard, Table
from jaxscale.plans import PlanSpec
from jaxscale.engine import GRADIENT_ALGORITHMS, compose, exchange, gradient_envelopes, predict, price
from jaxscale.runtime import quick_jit
from jaxscale.search.reductions import Chunk, Keys, Place, Reduction
from jaxscale.search.space import COLUMNS, Space

LANES = 64
"""Link points side by side. Where there are many, they are the innermost axis: what depends on the plan
alone is evaluated once for all of them, and the innermost loop is long."""

TILE = 2**14
"""Candidates composed at a time: their arrays fit the cache of one core."""

CHUNK = 2**25
"""Candidates per call of the compiled evaluation, about half a second on two cores."""

DEVICE_POINTS = 64
"""Priced tables held at a time."""

WINNERS = 64
"""Blocks worked out at a time once the search is over."""

Score = Callable[[Prediction, Plan], jax.Array]


def time_per_sample(prediction: Prediction, plan: Plan) -> jax.Array:
    """Step time over global batch where the plan is feasible; compares plans of unlike batches."""
    return jnp.where(prediction.feasible, prediction.step_time / plan.global_batch_size, jnp.inf)


def peak_memory(prediction: Prediction, plan: Plan) -> jax.Array:
    """Memory of the plan, feasible or not: what comes closest to fitting."""
    return prediction.peak_memory * jnp.ones_like(plan.global_batch_size)


class Evaluation(NamedTuple):
    """What `evaluate` returns."""

    results: list[Any]
    """One per reduction."""
    candidates: int
    """Valid, distinct candidates that were composed."""
    seconds: float
    """Spent judging them, compilation apart."""
    compile_seconds: float


@dataclass(frozen=True)
class Candidate:
    """A plan on a hardware point, evaluated in float64."""

    plan: PlanSpec
    hardware: dict[str, float]
    """Values of the levers that the space varies."""
    cluster: Cluster
    prediction: Prediction


def evaluate(
    space: Space,
    reductions: Sequence[Reduction],
    score: Score = time_per_sample,
    kernel_model: KernelModel | None = None,
    algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge every candidate of `space`.

    Args:
        space: what to search.
        reductions: what to keep; each gives one entry of `results`.
        score: [...] per candidate, smaller is better, infinite where it does not count.
        kernel_model: times kernels; the roofline when None.
        algorithms: what may reduce gradients, as in `compose`.
        progress: called with (candidates done, candidates in all).

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> from jaxscale.search.reductions import TopK
    >>> network = zoo.build("vgg16")
    >>> space = Space(network, lower(network), hardware_db.cluster("dgx-1-v100"), global_batch_sizes=(256,))
    >>> [best] = evaluate(space, [TopK(1)]).results[0]
    >>> best.plan.devices
    8
    """
    search = Search(space, reductions, score, kernel_model or Roofline(), algorithms)
    started = time.perf_counter()
    search.compiled
    compiled = time.perf_counter()
    done = 0
    for chunk in search.chunks():
        for reduction in reductions:
            reduction.update(chunk, search)
        done += chunk.candidates
        if progress:
            progress(done, space.size)
    finished = time.perf_counter()
    return Evaluation(
        [reduction.result(search) for reduction in reductions], done, finished - compiled, compiled - started
    )


class Tiles(NamedTuple):
    """Rows for evaluation, cut into T tiles of R."""

    shard: jax.Array
    """[T, R] index into the distinct shards."""
    group: jax.Array
    """[T, R] index into the distinct (dp, tp)."""
    plan: Plan
    """[T, R, 1]"""
    valid: jax.Array
    """[T, R, 1] False where a row is padding."""


class Search:
    """One space, arranged and compiled; what reductions know as their context."""

    def __init__(
        self,
        space: Space,
        reductions: Sequence[Reduction],
        score: Score,
        kernel_model: KernelModel,
        algorithms: tuple[str, ...],
    ) -> None:
        self.space = space
        self.score = score
        self.kernel_model = kernel_model
        self.algorithms = _usable(algorithms, space.cluster)
        self.overlaps = sorted(set(space.overlap))
        self.blocks = space.blocks(tuple(dict.fromkeys(c for r in reductions for c in r.apart)))
        devices, links = map(len, space.points)
        self.lanes = min(LANES, links)
        per_lane = self.blocks.rows.size * len(self.overlaps)
        self.link_groups = max(1, min(ceil(links / self.lanes), CHUNK // (per_lane * self.lanes)))
        at_a_time = max(1, CHUNK // (per_lane * self.lanes * self.link_groups))
        self.device_points = min(devices, at_a_time, DEVICE_POINTS)

    @cached_property
    def shard(self) -> Shard:
        """The distinct shards, [S, 1] and [layer, S, 1]."""
        shards, _ = self.space.shards
        micro_batch, tp, split = shards[..., None].swapaxes(0, 1)
        flags = np.array(self.space.split_flags, bool)[split[:, 0]].T[..., None]
        return Shard(*(leaf.astype(np.float32) for leaf in (micro_batch, tp, flags)))

    @cached_property
    def groups(self) -> Plan:
        """The distinct (dp, tp), [P, 1]."""
        groups, _ = self.space.groups
        dp, tp = groups.astype(np.float32).T[..., None]
        nothing = np.zeros((), np.float32)
        return Plan(nothing, nothing, dp, tp, nothing, nothing)

    @cached_property
    def tiles(self) -> Tiles:
        """The rows cut into T tiles of b blocks of W rows."""
        blocks, width = self.blocks.rows.shape
        per_tile = min(max(1, TILE // (width * self.lanes)), blocks)
        missing = -blocks % per_tile
        rows = np.pad(self.blocks.rows, ((0, missing), (0, 0))).reshape(-1, per_tile * width)
        valid = np.pad(self.blocks.valid, ((0, missing), (0, 0))).reshape(-1, per_tile * width, 1)

        def column(name: str) -> jax.Array:
            return self.space.rows[rows, COLUMNS.index(name)].astype(np.float32)[..., None]

        nothing = np.zeros((len(rows), 0), np.float32)
        return Tiles(
            self.space.shards[1][rows].astype(np.int32),
            self.space.groups[1][rows].astype(np.int32),
            Plan(
                *map(column, ("global_batch_size", "micro_batch_size", "dp", "tp")),
                split=nothing,
                overlap=nothing,
            ),
            valid,
        )

    @cached_property
    def price(self) -> Callable[[Cluster], Table]:
        """Tables of D devices, [D, ..., S, 1], without the messages that no shard sends."""
        one = partial(price, kernel_model=self.kernel_model)
        tables = jax.jit(jax.vmap(one, in_axes=(None, 0, None)))
        return lambda clusters: _without_silence(tables(self.space.workload, clusters.device, self.shard))

    @cached_property
    def compiled(self):
        """(tables [D], link points [G, lane], ...) -> scores [D, G, overlap, N, lane], compiled."""
        tables = self.price(self._clusters(0, 0, self.device_points))
        arguments = tables, self._lane_clusters(0), self.tiles, self.shard.tp, self.groups
        return jax.jit(self._scores).lower(*arguments).compile()

    def _scores(
        self, tables: Table, clusters: Cluster, tiles: Tiles, tp: jax.Array, groups: Plan
    ) -> jax.Array:
        width = self.blocks.rows.shape[1]

        def at_points(table: Table, cluster: Cluster) -> jax.Array:
            exchanged = exchange(table, cluster, tp, self.algorithms)
            envelopes = gradient_envelopes(table, cluster, groups, self.algorithms)

            def at_tile(_, tile: Tiles):
                here = _at(tile, table, exchanged, envelopes)
                best = []
                for overlap in self.overlaps:
                    plan = tile.plan._replace(overlap=jnp.float32(overlap))
                    score = self.score(compose(*here, cluster, plan), plan)
                    counts = tile.valid & self._distinct(overlap, plan.dp * plan.tp)
                    best.append(jnp.where(counts, score, jnp.inf).reshape(-1, width, self.lanes).min(1))
                return None, jnp.stack(best)

            _, best = jax.lax.scan(at_tile, None, tiles)
            best = jnp.moveaxis(best, 1, 0).reshape(len(self.overlaps), -1, self.lanes)
            return best[:, : len(self.blocks.rows)]

        def over_links(table: Table) -> jax.Array:
            return jax.lax.map(lambda cluster: at_points(table, cluster), clusters)

        return jax.lax.map(over_links, tables)

    def _distinct(self, overlap: bool, devices):
        """One device has nothing to overlap, so of its two variants only the overlapped one counts."""
        return overlap | (len(self.overlaps) == 1) | (devices > 1)

    def chunks(self) -> Iterator[Chunk]:
        """Evaluate all hardware points, a chunk at a time."""
        devices, links = map(len, self.space.points)
        plans = self.space.size // (devices * links)
        for first_device in range(0, devices, self.device_points):
            tables = self.price(self._clusters(0, first_device, self.device_points))
            for first_link in range(0, links, self.link_groups * self.lanes):
                clusters = self._lane_clusters(first_link)
                scores = np.asarray(self.compiled(tables, clusters, self.tiles, self.shard.tp, self.groups))
                scores = np.moveaxis(scores, -1, 2).reshape(len(scores), -1, *scores.shape[2:4])
                kept = scores[: devices - first_device, : links - first_link]
                yield Chunk(kept, first_device, first_link, plans * kept.shape[0] * kept.shape[1])

    def _lane_clusters(self, first: int) -> Cluster:
        """Clusters of the link points from `first` on, [G, ..., lane]; what no lever varies has one lane."""
        clusters = self._clusters(1, first, self.link_groups * self.lanes)
        varied = self._varied_leaves()

        def arrange(leaf: jax.Array, is_varied: bool) -> jax.Array:
            grouped = leaf.reshape(self.link_groups, self.lanes, *leaf.shape[1:])
            return np.moveaxis(grouped if is_varied else grouped[:, :1], 1, -1)

        return jax.tree.map(arrange, clusters, varied)

    def _varied_leaves(self) -> Cluster:
        """Which leaves of the cluster the link levers reach, as a tree of flags."""
        cluster, names = self.space.cluster, self.space.lever_names[1]
        traced = jax.make_jaxpr(partial(_varied, names=names))(cluster, np.ones(len(names), np.float32)).jaxpr
        flags = [after is not before for after, before in zip(traced.outvars, traced.invars, strict=False)]
        return jax.tree.unflatten(jax.tree.structure(cluster), flags)

    def _clusters(self, kind: int, first: int, count: int) -> Cluster:
        """Clusters at `count` device (0) or link (1) points from `first` on; the last one repeats past the end."""
        points = self.space.points[kind]
        index = np.minimum(np.arange(first, first + count), len(points) - 1)
        return _at_points(
            self.space.cluster, points[index].astype(np.float32), tuple(self.space.lever_names[kind])
        )

    def keys(self, factor: str) -> Keys:
        """The values of a factor along its axis of the scores."""
        if factor == "overlap":
            return Keys(2, np.array(self.overlaps))
        if factor in COLUMNS:
            return Keys(3, self.space.rows[self.blocks.rows[:, 0], COLUMNS.index(factor)])
        axis = 0 if lever(factor).repriced else 1
        names = self.space.lever_names[axis]
        if factor not in names:
            return Keys(
                axis, np.full(len(self.space.points[axis]), float(lever(factor).get(self.space.cluster)))
            )
        return Keys(axis, self.space.points[axis][:, names.index(factor)])

    def candidates(
        self, places: Sequence[Place], per_block: int
    ) -> list[list[tuple[float, tuple, Candidate]]]:
        """The best `per_block` candidates of the blocks at `places`, as (score, place, Candidate)."""
        found = []
        for start in range(0, len(places), WINNERS):
            found += self._work_out(places[start : start + WINNERS], per_block)
        return found

    def _work_out(self, places: Sequence[Place], per_block: int):
        count = len(places)
        padded = [*places, *[places[-1]] * (WINNERS - count)]
        hardware = [self._hardware(place) for place in padded]
        rows = self.blocks.rows[[place.block for place in padded]]
        names = tuple(hardware[0])
        column = {name: self.space.rows[rows, i].astype(np.float64) for i, name in enumerate(COLUMNS)}
        splits = np.array(self.space.split_flags, np.float64)[column["split"].astype(int)]
        plan = Plan(
            column["global_batch_size"],
            column["micro_batch_size"],
            column["dp"],
            column["tp"],
            split=np.moveaxis(splits, -1, 1),
            overlap=np.array([[float(self.overlaps[place.overlap])] for place in padded]),
        )
        with jax.enable_x64(True):
            workload, base = jax.tree.map(_widened, (self.space.workload, self.space.cluster))
            values = np.array([list(point.values()) for point in hardware], np.float64).reshape(
                len(padded), -1
            )
            found = _predictions(
                workload, base, values, plan, names, self.score, self.kernel_model, self.algorithms
            )
            clusters, predictions, scores = jax.tree.map(np.asarray, found)
        found = []
        for i in range(count):
            counts = self._distinct(self.overlaps[places[i].overlap], column["gpus"][i])
            lanes = np.flatnonzero(self.blocks.valid[places[i].block] & counts & np.isfinite(scores[i]))
            lanes = lanes[np.argsort(scores[i][lanes], kind="stable")][:per_block]
            found.append(
                [
                    (
                        float(scores[i, lane]),
                        (*places[i], int(lane)),
                        Candidate(
                            self.space.plan(int(rows[i, lane]), self.overlaps[places[i].overlap]),
                            hardware[i],
                            jax.tree.map(lambda leaf: leaf[i], clusters),
                            jax.tree.map(lambda leaf: leaf[i, lane], predictions),
                        ),
                    )
                    for lane in lanes
                ]
            )
        return found

    def _hardware(self, place: Place) -> dict[str, float]:
        values = {}
        for names, points, index in zip(self.space.lever_names, self.space.points, place[:2], strict=True):
            values |= dict(zip(names, map(float, points[index]), strict=True))
        return values


@partial(quick_jit, static_argnames=("names", "score", "kernel_model", "algorithms"))
def _predictions(workload, cluster, values, plans: Plan, names, score, kernel_model, algorithms):
    """Clusters [k], predictions and scores [k, W] of k blocks, each on a hardware point of its own."""

    def one(values: jax.Array, plan: Plan) -> tuple[Cluster, Prediction, jax.Array]:
        varied = _varied(cluster, values, names)
        prediction = predict(workload, varied, plan, kernel_model, algorithms)
        shape = jnp.shape(plan.dp)
        prediction = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape), prediction)
        return varied, prediction, score(prediction, plan)

    return jax.vmap(one)(values, plans)


@partial(jax.jit, static_argnames="names")
def _at_points(cluster: Cluster, values: jax.Array, names: tuple[str, ...]) -> Cluster:
    """The cluster at every row of `values` [n, lever]."""
    return jax.vmap(partial(_varied, names=names), in_axes=(None, 0))(cluster, values)


def _usable(algorithms: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """Without in-switch sums where no switch sums; their rows would never be the fastest."""
    absent = float(cluster.links.in_switch_bandwidth) == 0
    return tuple(name for name in algorithms if not (absent and name == "in_switch")) or algorithms


def _varied(cluster: Cluster, values: jax.Array, names: Sequence[str]) -> Cluster:
    for i, name in enumerate(names):
        cluster = lever(name).set(cluster, values[i])
    return cluster


def _widened(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf, np.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else np.asarray(leaf)


def _without_silence(tables: Table) -> Table:
    """Drop the messages that are empty in every shard, so that nothing is composed for them."""
    gradients = {who: size for who, size in tables.gradients.items() if np.any(np.asarray(size) > 0)}
    outputs, input_gradients, precedes = {}, {}, {}
    for kept, messages in ((outputs, tables.outputs), (input_gradients, tables.input_gradients)):
        for kind, size in messages.items():
            sent = np.any(np.asarray(size) > 0, axis=(0, 2, 3))
            if sent.any():
                kept[kind] = size[:, sent]
                if kept is input_gradients:
                    precedes[kind] = tables.precedes[kind][..., sent]
    return tables._replace(
        gradients=gradients, outputs=outputs, input_gradients=input_gradients, precedes=precedes
    )


def _at(tile: Tiles, table: Table, exchanged: Exchange, envelopes: dict[str, Envelope]):
    """What the rows of a tile share with others, brought to the rows, [..., row, lane]."""

    def of_shard(leaf: jax.Array) -> jax.Array:
        return jnp.take(leaf, tile.shard, axis=-2, mode="clip")

    def of_group(leaf: jax.Array) -> jax.Array:
        return jnp.take(leaf, tile.group, axis=-2, mode="clip")

    table = table._replace(
        forward=of_shard(table.forward),
        backward=of_shard(table.backward),
        update=of_shard(table.update),
        ready=of_shard(table.ready),
        gradients=jax.tree.map(of_shard, table.gradients),
        memory=jax.tree.map(of_shard, table.memory),
    )
    return table, jax.tree.map(of_shard, exchanged), jax.tree.map(of_group, envelopes)
