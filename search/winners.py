"""Work out, in float64 and in full, the few blocks of a space that anybody asks about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.engine import predict
from jaxscale.kernels import KernelModel
from jaxscale.levers import at_points
from jaxscale.nouns import Array, Cluster, Device, Plan, Prediction, Shard, Workload
from jaxscale.plans import PlanSpec
from jaxscale.runtime import quick_jit
from jaxscale.search.reductions import Place
from jaxscale.search.space import COLUMNS, Blocks, Space
from jaxscale.shapes import Timed, distinct
from jaxscale.timing import AT_ONCE, Kernels, kernel_seconds

FEW, WINNERS = 16, 64
"""Blocks worked out at a time, in a space that has no more than a few and in any other."""


@dataclass(frozen=True)
class Candidate:
    """A plan on a hardware point, evaluated in float64."""

    plan: PlanSpec
    hardware: dict[str, float]
    """Values of the levers that the space varies."""
    cluster: Cluster
    prediction: Prediction


class Found(NamedTuple):
    """A candidate with what orders it."""

    score: float
    place: tuple[int, ...]
    """Where its block stands, then its own place in the block."""
    candidate: Candidate


class Winners:
    """Works out blocks of one space."""

    def __init__(
        self,
        space: Space,
        blocks: Blocks,
        score: Callable[[Prediction, Plan], Array],
        kernel_model: KernelModel,
        algorithms: tuple[str, ...],
    ) -> None:
        self.space = space
        self.blocks = blocks
        self.score, self.kernel_model, self.algorithms = score, kernel_model, algorithms
        every = prod(space.points) * len(space.overlaps) * len(blocks.rows)
        self.at_a_time = FEW if every <= FEW else WINNERS

    def counts(self, overlap: bool) -> np.ndarray:
        """[N, W] whether a place holds a candidate, and one that no other equals.

        One device has nothing to overlap, so of its two variants only the overlapped one counts.
        """
        gpus = self.space.rows[self.blocks.rows, COLUMNS.index("gpus")]
        return self.blocks.valid & (overlap | (len(self.space.overlaps) == 1) | (gpus > 1))

    def work_out(self, places: Sequence[Place]) -> list[Worked]:
        """Every candidate of the blocks at `places`."""
        worked = []
        for start in range(0, len(places), self.at_a_time):
            some = places[start : start + self.at_a_time]
            found = self._evaluated([*some, *[some[-1]] * (self.at_a_time - len(some))])
            worked += [
                Worked(self, place, *jax.tree.map(itemgetter(i), found)) for i, place in enumerate(some)
            ]
        return worked

    def _evaluated(self, places: Sequence[Place]) -> tuple[Cluster, Prediction, np.ndarray]:
        """Clusters [k], predictions and scores [k, W]."""
        rows = self.space.rows[self.blocks.rows[[place.block for place in places]]]
        column: dict[str, Any] = {name: rows[..., i].astype(np.float64) for i, name in enumerate(COLUMNS)}
        splits = np.array(self.space.split_flags, np.float64)[rows[..., COLUMNS.index("split")]]
        overlaps: Any = np.array([[float(self.space.overlaps[place.overlap])] for place in places])
        plans = Plan(
            column["global_batch_size"],
            column["micro_batch_size"],
            column["dp"],
            column["tp"],
            split=np.moveaxis(splits, -1, 1),  # pyright: ignore[reportArgumentType]
            overlap=overlaps,
        )
        points = [self.space.hardware_at(place.device_point, place.link_point) for place in places]
        values = np.array([list(point.values()) for point in points], np.float64).reshape(len(places), -1)
        with jax.enable_x64(True):
            workload, cluster = jax.tree.map(_widened, (self.space.workload, self.space.cluster))
            clusters = jax.tree.map(np.asarray, at_points(cluster, values, tuple(points[0])))
            timed = Timed(self._seconds(places, workload, clusters.device))
            found = _predictions(workload, clusters, plans, timed, self.score, self.algorithms)
            return clusters, *jax.tree.map(np.asarray, found)

    def _seconds(self, places: Sequence[Place], workload: Workload, devices: Device) -> dict[str, Any]:
        """[k, row, W] s of all kernels by family, each of the distinct ones timed once on each device."""
        shards, of_row = self.space.shards
        shard_of = of_row[self.blocks.rows[[place.block for place in places]]]
        point_of = np.array([place.device_point for place in places])
        pairs, place_of = np.unique(
            np.stack([shard_of, np.broadcast_to(point_of[:, None], shard_of.shape)]).reshape(2, -1),
            axis=1,
            return_inverse=True,
        )
        points, first = np.unique(point_of, return_index=True)
        device_of = first[np.searchsorted(points, pairs[1])]
        padded = np.resize(np.arange(pairs.shape[1]), 1 << (pairs.shape[1] - 1).bit_length())
        micro_batch, tp, split = shards[pairs[0][padded]].astype(np.float64).T
        flags: Any = np.array(self.space.split_flags, np.float64)[split.astype(int)].T
        found = {}
        for family, shapes in distinct(workload, Shard(micro_batch, tp, flags)).items():
            kernel_and_device = shapes.place[:, : len(device_of)] * len(places) + device_of
            wanted, place = np.unique(kernel_and_device, return_inverse=True)
            kernel, device = np.divmod(wanted, len(places))
            of_family: Any = shapes.dimensions[:, kernel], shapes.itemsize[kernel], shapes.precision[kernel]
            kernels = Kernels(family, *of_family)
            seconds = kernel_seconds(kernels, devices, device.astype(np.int32), self.kernel_model, AT_ONCE)
            every = seconds[place.reshape(kernel_and_device.shape)][:, place_of.reshape(shard_of.shape)]
            found[family] = np.moveaxis(every, 1, 0)
        return found


class Worked(NamedTuple):
    """One block, worked out."""

    winners: Winners
    place: Place
    cluster: Cluster
    predictions: Prediction
    """[W]"""
    scores: np.ndarray
    """[W]"""

    def counted(self) -> np.ndarray:
        """[W] scores, infinite where a place holds no candidate."""
        overlap = self.winners.space.overlaps[self.place.overlap]
        return np.where(self.winners.counts(overlap)[self.place.block], self.scores, np.inf)

    def ranked(self, most: int) -> list[Found]:
        """The `most` best feasible candidates; equal ones in the order of the space."""
        space, scores = self.winners.space, self.counted()
        overlap, rows = space.overlaps[self.place.overlap], self.winners.blocks.rows[self.place.block]
        hardware = space.hardware_at(self.place.device_point, self.place.link_point)

        def candidate(i: int) -> Candidate:
            prediction = jax.tree.map(itemgetter(i), self.predictions)
            return Candidate(space.plan(int(rows[i]), overlap), hardware, self.cluster, prediction)

        best = [int(i) for i in np.argsort(scores, kind="stable")[:most] if np.isfinite(scores[i])]
        return [Found(float(scores[i]), (*self.place, i), candidate(i)) for i in best]


@partial(quick_jit, static_argnames=("score", "algorithms"))
def _predictions(workload, clusters: Cluster, plans: Plan, timed: Timed, score, algorithms):
    """Predictions and scores [k, W] of k blocks, each on a cluster of its own."""

    def one(cluster: Cluster, plan: Plan, timed: Timed) -> tuple[Prediction, Array]:
        prediction = predict(workload, cluster, plan, timed, algorithms)
        prediction = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, jnp.shape(plan.dp)), prediction)
        return prediction, score(prediction, plan)

    return jax.vmap(one)(clusters, plans, timed)


def _widened(leaf: Array) -> np.ndarray:
    values = np.asarray(leaf)
    return values.astype(np.float64) if np.issubdtype(values.dtype, np.floating) else values
