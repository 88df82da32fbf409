"""The set of candidates: ragged plan factors as joint rows, dense flags, hardware points.

Factors that must divide one another (batch, replicas, group size, micro-batch) form one list of valid rows,
made on the host with exact integers. Rows are evaluated in blocks, and a search learns the best score
of every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from math import prod
from typing import NamedTuple

import numpy as np

from jaxscale.errors import InputError
from jaxscale.levers import lever
from jaxscale.network import Network
from jaxscale.nouns import Cluster, Workload
from jaxscale.plans import SPLITS, PlanSpec, Split

BLOCK = 64
"""Rows per block."""

MOST_ROWS = 5_000_000
"""Plans per hardware point that are listed on the host; hardware points are not listed."""

COLUMNS = ("global_batch_size", "gpus", "dp", "tp", "micro_batch_size", "split")
"""The ragged factors, in the order of the columns of `Space.rows`."""


class Blocks(NamedTuple):
    """Rows arranged for evaluation: N blocks of W rows."""

    rows: np.ndarray
    """[N, W] index into `Space.rows`; padding repeats a row of the block."""
    valid: np.ndarray
    """[N, W] False where a place is padding."""


@dataclass(frozen=True, eq=False)
class Space:
    """Candidates for one network on variations of one cluster.

    Args:
        network: what is trained.
        workload: its tables, `lower(network, ...)`.
        cluster: what it is trained on.
        global_batch_sizes: samples per step to consider.
        gpus: device counts to consider; the whole cluster when None.
        tp: group sizes to consider; every divisor of the device count when None.
        micro_batch_sizes: to consider; every divisor of a group's batch when None.
        splits: named assignments of layers (keys of `SPLITS`), or per-layer flags; used where tp > 1.
        overlap: False, True or both.
        hardware: per lever, the values to consider; every combination is a hardware point.

    Raises:
        InputError: an empty factor, or no combination that divides.

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> network = zoo.build("alexnet")
    >>> space = Space(network, lower(network), hardware_db.cluster("dgx-1-v100"), global_batch_sizes=(512,))
    >>> space.rows.shape[1] == len(COLUMNS), space.size > 100
    (True, True)
    """

    network: Network
    workload: Workload
    cluster: Cluster
    global_batch_sizes: Sequence[int]
    gpus: Sequence[int] | None = None
    tp: Sequence[int] | None = None
    micro_batch_sizes: Sequence[int] | None = None
    splits: Sequence[str | Split] = ("model", "classifier")
    overlap: Sequence[bool] = (True, False)
    hardware: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("global_batch_sizes", "gpus", "tp", "micro_batch_sizes", "splits", "overlap"):
            values = getattr(self, name)
            if values is not None and len(values) == 0:
                raise InputError(f"the space has no value for {name}")
            wrong = [v for v in values or () if name not in ("splits", "overlap") and (int(v) != v or v < 1)]
            if wrong:
                raise InputError(f"{name} holds {wrong[0]}, but sizes are positive integers")
        for name, values in self.hardware.items():
            lever(name)
            if len(values) == 0:
                raise InputError(f"the space has no value for {name}")
            if not all(np.isfinite(value) and value > 0 for value in values):
                raise InputError(f"{name} takes positive, finite values, not {list(values)}")

    @cached_property
    def split_flags(self) -> list[Split]:
        """Index 0 is data parallelism; then the distinct assignments of `splits`."""
        flags = [SPLITS["data"](self.network)]
        for split in self.splits:
            wanted = SPLITS[split](self.network) if isinstance(split, str) else tuple(split)
            if wanted not in flags:
                flags.append(wanted)
        return flags

    @cached_property
    def rows(self) -> np.ndarray:
        """[row, column] int64, every valid combination of the ragged factors, without duplicates."""
        counts = self.gpus or (int(self.cluster.nodes * self.cluster.gpus_per_node),)
        every = (
            (batch, gpus, gpus // tp, tp, micro, split)
            for batch, gpus in product(sorted(set(self.global_batch_sizes)), sorted(set(counts)))
            for tp in _chosen(self.tp, gpus)
            for micro in (
                _chosen(self.micro_batch_sizes, batch // (gpus // tp)) if batch % (gpus // tp) == 0 else ()
            )
            for split in self._splits(tp, micro)
        )
        rows = list(islice(every, MOST_ROWS + 1))
        if len(rows) > MOST_ROWS:
            raise InputError(
                f"the space has over {MOST_ROWS:,} plans per hardware point: give fewer batches,"
                " device counts, group sizes or micro-batches"
            )
        if not rows:
            raise InputError(
                f"no plan divides: batch {_shown(self.global_batch_sizes)} on {_shown(counts)} devices"
                f" in groups of {_shown(self.tp or ('any size',))},"
                f" {_shown(self.micro_batch_sizes or ('any number of',))} samples at a time"
            )
        return np.array(rows, np.int64)

    def _splits(self, tp: int, micro: int) -> Iterator[int]:
        """Mixed assignments share samples in some layers, so their micro-batch must divide."""
        if tp == 1:
            yield 0
            return
        for index, flags in enumerate(self.split_flags):
            if any(flags) and (all(flags) or micro % tp == 0):
                yield index

    @property
    def points(self) -> tuple[int, int]:
        """Hardware points, as exact integers: of the levers that reprice kernels, and of the others."""
        repriced, composed = (prod(len(self.hardware[name]) for name in names) for names in self.lever_names)
        return repriced, composed

    def values_at(self, kind: int, points: np.ndarray) -> np.ndarray:
        """[n, lever] values at points [n] of a kind, 0 or 1 as in `points`; the last lever runs fastest."""
        names = self.lever_names[kind]
        sizes = [len(self.hardware[name]) for name in names]
        places = np.unravel_index(points, sizes) if sizes else ()
        columns = [np.asarray(self.hardware[n], np.float64)[i] for n, i in zip(names, places, strict=True)]
        return np.array(columns, np.float64).reshape(len(names), len(points)).T

    @cached_property
    def lever_names(self) -> tuple[list[str], list[str]]:
        """Levers that reprice kernels, and the others."""
        repriced = [name for name in self.hardware if lever(name).repriced]
        return repriced, [name for name in self.hardware if name not in repriced]

    def hardware_at(self, device_point: int, link_point: int) -> dict[str, float]:
        """The levers' values at a hardware point."""
        values = {}
        for kind, point in enumerate((device_point, link_point)):
            [at_point] = self.values_at(kind, np.array([point]))
            values |= dict(zip(self.lever_names[kind], map(float, at_point), strict=True))
        return values

    @property
    def overlaps(self) -> list[bool]:
        """The distinct values of `overlap`, in rising order."""
        return sorted(set(self.overlap))

    @property
    def size(self) -> int:
        """Valid, distinct candidates, as an exact integer."""
        alone = int((self.rows[:, COLUMNS.index("gpus")] == 1).sum())
        flags = len(self.overlaps)
        plans = (len(self.rows) - alone) * flags + alone
        return plans * prod(self.points)

    @cached_property
    def shards(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct (micro-batch, tp, split) [S, 3], and which of them each row uses [row]."""
        return self._distinct("micro_batch_size", "tp", "split")

    @cached_property
    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct (dp, tp) [P, 2], and which of them each row uses [row]."""
        return self._distinct("dp", "tp")

    @cached_property
    def replicated(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct (dp, tp, micro-batch, split) [Q, 2] as indices of their group and shard, and which of
        them each row uses [row]."""
        pairs = np.stack([self.groups[1], self.shards[1]], 1)
        values, index = np.unique(pairs, axis=0, return_inverse=True)
        return values, index.ravel()

    def _distinct(self, *names: str) -> tuple[np.ndarray, np.ndarray]:
        columns = self.rows[:, [COLUMNS.index(name) for name in names]]
        values, index = np.unique(columns, axis=0, return_inverse=True)
        return values, index.ravel()

    def blocks(self, apart: Sequence[str] = ()) -> Blocks:
        """Arrange the rows in blocks.

        Args:
            apart: columns in whose values a block must not mix rows, because a reduction tells them apart.
        """
        keys = self.rows[:, [COLUMNS.index(name) for name in apart]]
        _, key = (
            np.unique(keys, axis=0, return_inverse=True) if apart else (None, np.zeros(len(self.rows), int))
        )
        order = np.argsort(key.ravel(), kind="stable")
        starts = np.flatnonzero(np.diff(key.ravel()[order], prepend=-1))
        lengths = np.diff(np.append(starts, len(order)))
        width = int(min(BLOCK, lengths.max()))
        first, count = np.array(
            [
                (start + offset, min(width, length - offset))
                for start, length in zip(starts, lengths, strict=True)
                for offset in range(0, length, width)
            ]
        ).T
        place = np.arange(width)
        return Blocks(order[first[:, None] + np.minimum(place, count[:, None] - 1)], place < count[:, None])

    def plan(self, row: int, overlap: bool) -> PlanSpec:
        """The plan of one row."""
        batch, _, dp, tp, micro, split = map(int, self.rows[row])
        name = next(
            (n for n in SPLITS if SPLITS[n](self.network) == self.split_flags[split]), self.split_flags[split]
        )
        return PlanSpec(batch, micro, dp, tp, name, overlap)


def divisors(n: int) -> list[int]:
    """Divisors of `n` in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return low + [n // d for d in reversed(low) if d * d != n]


def _chosen(values: Sequence[int] | None, n: int) -> list[int]:
    """The divisors of `n`, or those of `values` that divide it."""
    return divisors(n) if values is None else [value for value in sorted(set(values)) if n % value == 0]


def _shown(values: Sequence[int | str]) -> str:
    return ", ".join(map(str, values[:6])) + (", ..." if len(values) > 6 else "")
