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
from jaxscale.levers import at_levers
from jaxscale.nouns import Array, Cluster, Plan, Prediction
from jaxscale.plans import PlanSpec
from jaxscale.runtime import quick_jit
from jaxscale.search.reductions import Place
from jaxscale.search.space import COLUMNS, Blocks, Space

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
        self.terms = score, kernel_model, algorithms
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
            found = _predictions(workload, cluster, values, plans, tuple(points[0]), *self.terms)
            return jax.tree.map(np.asarray, found)


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


@partial(quick_jit, static_argnames=("names", "score", "algorithms"))
def _predictions(workload, cluster, values, plans: Plan, names, score, kernel_model, algorithms):
    """Clusters [k], predictions and scores [k, W] of k blocks, each on a hardware point of its own."""

    def one(values: Array, plan: Plan) -> tuple[Cluster, Prediction, Array]:
        varied = at_levers(cluster, values, names)
        prediction = predict(workload, varied, plan, kernel_model, algorithms)
        prediction = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, jnp.shape(plan.dp)), prediction)
        return varied, prediction, score(prediction, plan)

    return jax.vmap(one)(values, plans)


def _widened(leaf: Array) -> np.ndarray:
    values = np.asarray(leaf)
    return values.astype(np.float64) if np.issubdtype(values.dtype, np.floating) else values
