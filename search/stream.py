"""The compiled part of a search: score every block of a space at every hardware point.

Link points are the innermost axis where there are several: what depends on the plan alone is then evaluated
once for all of them, and the innermost loop is long. What rows have in common, their shard and their
group, is priced once and brought to the rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from math import ceil, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.collectives import Envelope
from jaxscale.engine import compose, exchange, gradient_envelopes, price, reduce_gradients, usable
from jaxscale.kernels import KernelModel
from jaxscale.levers import at_levers, at_points, lever
from jaxscale.nouns import (
    Array,
    Cluster,
    Device,
    Exchange,
    GradientTime,
    Plan,
    Prediction,
    Shard,
    Table,
    Workload,
)
from jaxscale.search.reductions import Chunk, Keys, Place, Reduction
from jaxscale.search.space import COLUMNS, Space
from jaxscale.search.winners import WINNERS, Found, Winners
from jaxscale.shapes import Distinct, distinct

LANES = 64
"""Link points side by side."""

TILE = 2**14
"""Candidates composed at a time: their arrays fit the cache of one core."""

CHUNK = 2**23
"""Candidates per call of the compiled evaluation, about a tenth of a second on one core."""

CALLS = min(4, os.cpu_count() or 1)
"""Calls in flight: the arrays of a tile are too small to share out among cores."""

DEVICE_POINTS = 64
"""Priced tables held at a time."""

Score = Callable[[Prediction, Plan], Array]
"""[...] per candidate, smaller is better, infinite where it does not count."""


class Pairs(NamedTuple):
    """Distinct pairs of a shard and a group of replicas, cut into T tiles of Q."""

    shard: Array
    """[T, Q] index into the distinct shards."""
    group: Array
    """[T, Q] index into the distinct (dp, tp)."""


class Tiles(NamedTuple):
    """Rows for evaluation, cut into T tiles of R."""

    shard: Array
    """[T, R] index into the distinct shards."""
    pair: Array
    """[T, R] index into the distinct pairs of shard and group."""
    plan: Plan
    """[T, R, 1]"""
    counts: Array
    """[T, overlap, R, 1] whether a row is a candidate, and one that no other equals."""


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
        self.algorithms = usable(algorithms, space.cluster)
        self.blocks = space.blocks(tuple(dict.fromkeys(c for r in reductions for c in r.apart)))
        self.winners = Winners(space, self.blocks, score, kernel_model, self.algorithms)
        devices, links = space.points
        self.shape = devices, links, len(space.overlaps), len(self.blocks.rows)
        self.lanes = min(LANES, links)
        per_lane = self.blocks.rows.size * len(space.overlaps)
        self.link_groups = _evenly(ceil(links / self.lanes), CHUNK // (per_lane * self.lanes))
        at_a_time = max(1, CHUNK // (per_lane * self.lanes * self.link_groups))
        self.device_points = _evenly(devices, min(at_a_time, DEVICE_POINTS))

    @property
    def is_small(self) -> bool:
        """Whether all blocks fit the program that works out winners, so that no other need be compiled."""
        return prod(self.shape) <= WINNERS

    def compile(self) -> None:
        """Compile ahead of the first chunk, so that its time can be told apart."""
        if self.is_small:
            self.winners.work_out([Place(0, 0, 0, 0)])
        else:
            _ = self.compiled

    def chunks(self) -> Iterator[Chunk]:
        """Evaluate all hardware points, a chunk at a time."""
        if self.is_small:
            places = [Place(*map(int, index)) for index in np.ndindex(*self.shape)]
            best = [worked.counted().min() for worked in self.winners.work_out(places)]
            yield Chunk(np.reshape(best, self.shape).astype(np.float32), 0, 0, self.space.size)
            return
        devices, links = self.shape[:2]
        pending: deque[Future[Chunk]] = deque()
        with ThreadPoolExecutor(CALLS) as pool:
            for first_device in range(0, devices, self.device_points):
                tables = self.price(self._clusters(0, first_device, self.device_points))
                for first_link in range(0, links, self.link_groups * self.lanes):
                    pending.append(pool.submit(self._chunk, tables, first_device, first_link))
                    if len(pending) > CALLS:
                        yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def _chunk(self, tables: Table, first_device: int, first_link: int) -> Chunk:
        devices, links = self.shape[:2]
        found = self.compiled(tables, self._lane_clusters(first_link), *self._arrangement)
        scores = np.moveaxis(np.asarray(found), -1, 2)
        scores = scores.reshape(len(scores), -1, *self.shape[2:])
        kept = scores[: devices - first_device, : links - first_link]
        plans = self.space.size // (devices * links)
        return Chunk(kept, first_device, first_link, plans * kept.shape[0] * kept.shape[1])

    def keys(self, factor: str, chunk: Chunk) -> Keys:
        """The values of a factor along its axis of the chunk's scores."""
        if factor == "overlap":
            return Keys(2, np.array(self.space.overlaps))
        if factor in COLUMNS:
            return Keys(3, self.space.rows[self.blocks.rows[:, 0], COLUMNS.index(factor)])
        axis = 0 if lever(factor).repriced else 1
        names = self.space.lever_names[axis]
        first, count = (chunk.device_point, chunk.link_point)[axis], chunk.scores.shape[axis]
        if factor in names:
            values = self.space.values_at(axis, np.arange(first, first + count))
            return Keys(axis, values[:, names.index(factor)])
        return Keys(axis, np.full(count, float(lever(factor).get(self.space.cluster))))

    def candidates(self, places: Sequence[Place], per_block: int) -> list[list[Found]]:
        """The best `per_block` candidates of every block at `places`, by score and place."""
        return [worked.ranked(per_block) for worked in self.winners.work_out(places)]

    @cached_property
    def shard(self) -> Shard:
        """The distinct shards, [S, 1] and [layer, S, 1]."""
        shards, _ = self.space.shards
        micro_batch, tp, split = shards[..., None].swapaxes(0, 1)
        flags = np.array(self.space.split_flags, bool)[split[:, 0]].T[..., None]
        return Shard(*map(_floats, (micro_batch, tp, flags)))

    @cached_property
    def groups(self) -> Plan:
        """The distinct (dp, tp), [P, 1]."""
        groups, _ = self.space.groups
        dp, tp = map(_floats, groups.T[..., None])
        nothing = _floats(0.0)
        return Plan(nothing, nothing, dp, tp, nothing, nothing)

    @cached_property
    def tiles(self) -> Tiles:
        """The rows cut into T tiles of b blocks of W rows."""
        blocks, width = self.blocks.rows.shape
        per_tile = min(max(1, TILE // (width * self.lanes)), blocks)
        missing = -blocks % per_tile
        rows = np.pad(self.blocks.rows, ((0, missing), (0, 0))).reshape(-1, per_tile * width)
        counts = np.stack([self.winners.counts(overlap) for overlap in self.space.overlaps])
        counts = np.pad(counts, ((0, 0), (0, missing), (0, 0))).reshape(len(counts), *rows.shape, 1)

        def column(name: str) -> Any:
            return _floats(self.space.rows[rows, COLUMNS.index(name), None])

        nothing = _floats(np.zeros((len(rows), 0)))
        return Tiles(
            _indices(self.space.shards[1][rows]),
            _indices(self.space.replicated[1][rows]),
            Plan(
                *map(column, ("global_batch_size", "micro_batch_size", "dp", "tp")),
                split=nothing,
                overlap=nothing,
            ),
            _flags(np.moveaxis(counts, 0, 1)),
        )

    @cached_property
    def pairs(self) -> Pairs:
        """The distinct pairs of shard and group, the last one repeated to fill the last tile."""
        group, shard = self.space.replicated[0].T
        width = min(TILE // self.lanes, len(shard))
        places = np.minimum(np.arange(-(-len(shard) // width) * width), len(shard) - 1).reshape(-1, width)
        return Pairs(_indices(shard[places]), _indices(group[places]))

    @cached_property
    def price(self) -> Callable[[Cluster], Table]:
        """Tables of D devices, [D, ..., S, 1], without the messages that no shard sends."""
        shapes = distinct(self.space.workload, self.shard)
        given = self.space.workload, self.shard, Distinct(self.kernel_model, shapes)
        return lambda clusters: _condensed(_priced(clusters.device, *given))

    @cached_property
    def compiled(self):
        """(tables [D], link points [G, lane], ...) -> scores [D, G, overlap, N, lane], compiled."""
        tables = self.price(self._clusters(0, 0, self.device_points))
        return jax.jit(self._scores).lower(tables, self._lane_clusters(0), *self._arrangement).compile()

    @property
    def _arrangement(self) -> tuple[Tiles, Pairs, Array, Plan]:
        return self.tiles, self.pairs, self.shard.tp, self.groups

    def _scores(
        self, tables: Table, clusters: Cluster, tiles: Tiles, pairs: Pairs, tp: Array, groups: Plan
    ) -> jax.Array:
        width = self.blocks.rows.shape[1]

        def at_points(table: Table, cluster: Cluster) -> jax.Array:
            exchanged = exchange(table, cluster, tp, self.algorithms)
            envelopes = gradient_envelopes(table, cluster, groups, self.algorithms)

            def at_pairs(some: Pairs) -> list[GradientTime]:
                here = of_pairs(some, table, exchanged, envelopes)
                return [reduce_gradients(*here, jnp.float32(overlap)) for overlap in self.space.overlaps]

            reductions = jax.tree.map(_joined, jax.lax.map(at_pairs, pairs))

            def at_tile(_, tile: Tiles):
                best = []
                for reduction, counts in zip(reductions, tile.counts, strict=True):
                    prediction = compose(*at_rows(tile, table, exchanged, reduction), cluster, tile.plan)
                    score = jnp.where(counts, self.score(prediction, tile.plan), jnp.inf)
                    best.append(score.reshape(-1, width, self.lanes).min(1))
                return None, jnp.stack(best)

            _, best = jax.lax.scan(at_tile, None, tiles)
            best = jnp.moveaxis(best, 1, 0).reshape(len(self.space.overlaps), -1, self.lanes)
            return best[:, : len(self.blocks.rows)]

        def over_links(table: Table) -> jax.Array:
            return jax.lax.map(lambda cluster: at_points(table, cluster), clusters)

        return jax.lax.map(over_links, tables)

    def _lane_clusters(self, first: int) -> Cluster:
        """Clusters of the link points from `first` on, [G, ..., lane]; what no lever varies has one lane."""
        clusters = self._clusters(1, first, self.link_groups * self.lanes)
        varied = self._varied_leaves()

        def arrange(leaf: Array, is_varied: bool) -> np.ndarray:
            grouped = np.asarray(leaf).reshape(self.link_groups, self.lanes, *leaf.shape[1:])
            return np.moveaxis(grouped if is_varied else grouped[:, :1], 1, -1)

        return jax.tree.map(arrange, clusters, varied)

    def _varied_leaves(self) -> Cluster:
        """Which leaves of the cluster the link levers reach, as a tree of flags."""
        cluster, names = self.space.cluster, self.space.lever_names[1]
        traced = jax.make_jaxpr(partial(at_levers, names=names))(
            cluster, np.ones(len(names), np.float32)
        ).jaxpr
        flags = [after is not before for after, before in zip(traced.outvars, traced.invars, strict=False)]
        return jax.tree.unflatten(jax.tree.structure(cluster), flags)

    def _clusters(self, kind: int, first: int, count: int) -> Cluster:
        """Clusters at `count` device (0) or link (1) points from `first` on; past the end the last one."""
        points = np.minimum(np.arange(first, first + count), self.space.points[kind] - 1)
        values, names = self.space.values_at(kind, points), tuple(self.space.lever_names[kind])
        return at_points(self.space.cluster, _floats(values), names)


@jax.jit
def _priced(devices: Device, workload: Workload, shard: Shard, kernel_model: KernelModel) -> Table:
    """Tables [D, ...] of D devices, one at a time, since kernels are many already."""
    return jax.lax.map(lambda device: price(workload, device, shard, kernel_model), devices)


def _condensed(tables: Table) -> Table:
    """Drop the messages that are empty in every shard, and exchange outputs of one size together."""
    gradients = {who: size for who, size in tables.gradients.items() if np.any(np.asarray(size) > 0)}
    outputs, copies, input_gradients, precedes = {}, {}, {}, {}
    for kind, size in tables.outputs.items():
        of_one_device = np.asarray(size[0, ..., 0])
        sizes, first, count = np.unique(of_one_device, axis=0, return_index=True, return_counts=True)
        if sizes.any():
            sent = sizes.any(1)
            outputs[kind] = size[:, first[sent]]
            copies[kind] = _floats(np.broadcast_to(count[sent], (len(size), sent.sum())))
    for kind, size in tables.input_gradients.items():
        sent = np.any(np.asarray(size) > 0, axis=(0, 2, 3))
        if sent.any():
            input_gradients[kind] = size[:, sent]
            precedes[kind] = tables.precedes[kind][..., sent]
    return tables._replace(
        gradients=gradients,
        outputs=outputs,
        copies=copies,
        input_gradients=input_gradients,
        precedes=precedes,
    )


def of_pairs(
    pairs: Pairs, table: Table, exchanged: Exchange, envelopes: dict[str, Envelope]
) -> tuple[Table, Exchange, dict[str, Envelope]]:
    """What decides how long gradient messages take, for pairs of shard and group, [..., pair, lane]."""
    table = table._replace(
        backward=_at(table.backward, pairs.shard),
        ready=_at(table.ready, pairs.shard),
        gradients=jax.tree.map(lambda leaf: _at(leaf, pairs.shard), table.gradients),
    )
    exchanged, envelopes = (
        jax.tree.map(lambda leaf, place=place: _at(leaf, place), leaves)
        for leaves, place in ((exchanged, pairs.shard), (envelopes, pairs.group))
    )
    return table, exchanged, envelopes


def at_rows(
    tile: Tiles, table: Table, exchanged: Exchange, reduction: GradientTime
) -> tuple[Table, Exchange, GradientTime]:
    """What the rows of a tile share with others, brought to the rows, [row, lane]."""
    table = table._replace(
        forward=_at(table.forward, tile.shard),
        backward=_at(table.backward, tile.shard),
        update=_at(table.update, tile.shard),
        memory=jax.tree.map(lambda leaf: _at(leaf, tile.shard), table.memory),
    )
    exchanged = exchanged._replace(
        forward=_at(exchanged.forward, tile.shard), backward=_at(exchanged.backward, tile.shard)
    )
    return table, exchanged, jax.tree.map(lambda leaf: _at(leaf, tile.pair), reduction)


def _at(leaf: Array, places: Array) -> jax.Array:
    """[..., n, lane] the places [n] of a leaf [..., m, lane]."""
    return jnp.take(jnp.asarray(leaf), places, axis=-2, mode="clip")


def _joined(leaf: Array) -> Array:
    """[T, Q, lane] -> [T Q, lane]"""
    return leaf.reshape(-1, leaf.shape[-1])


def _evenly(count: int, most: int) -> int:
    """Size of the parts, at most `most`, when `count` things are shared out evenly."""
    return ceil(count / ceil(count / max(1, most)))


def _floats(values: Any) -> Any:
    """float32 on the host, where an eager JAX operation would be a compilation."""
    return np.asarray(values, np.float32)


def _indices(values: np.ndarray) -> Any:
    return values.astype(np.int32)


def _flags(values: np.ndarray) -> Any:
    return values
