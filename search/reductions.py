"""What a search keeps of the candidates it streams through.

A reduction sees, chunk by chunk, the best score of every block, and remembers which blocks matter; the
winners inside those blocks are worked out once at the end. Its state is small, mergeable and independent of
the order of chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxscale.errors import choose
from jaxscale.levers import LEVERS
from jaxscale.search.space import COLUMNS


class Chunk(NamedTuple):
    """The best score of every block at some hardware points."""

    scores: np.ndarray
    """[D, C, overlap, N] float32, infinite where no candidate of the block is feasible."""
    device_point: int
    """Index of the first of the D points."""
    link_point: int
    """Index of the first of the C points."""
    candidates: int
    """Valid, distinct candidates that the chunk covers."""


class Place(NamedTuple):
    """Where a block stands in a space; orders candidates of equal score."""

    device_point: int
    link_point: int
    overlap: int
    block: int


class Keys(NamedTuple):
    """The value of a factor along one axis of `Chunk.scores`."""

    axis: int
    values: np.ndarray


class Context(Protocol):
    """What a reduction may ask of the search it belongs to."""

    def keys(self, factor: str, chunk: Chunk) -> Keys: ...

    def candidates(self, places: Sequence[Place], per_block: int) -> list[list[Any]]: ...


class Reduction(Protocol):
    """Something to keep of a search."""

    @property
    def apart(self) -> Sequence[str]:
        """Columns of `Space.rows` that no block may mix."""
        ...

    def update(self, chunk: Chunk, context: Context) -> None: ...

    def merge(self, other: Any) -> None: ...

    def result(self, context: Context) -> Any: ...


class TopK:
    """The `k` best candidates, best first; equal scores in the order of the space."""

    apart = ()

    def __init__(self, k: int = 10) -> None:
        self.k = k
        self._scores = np.empty(0, np.float32)
        self._places = np.empty((0, len(Place._fields)), np.int64)

    def update(self, chunk: Chunk, context: Context) -> None:
        worst = self._scores[-1] if len(self._scores) == self.k else np.float32(np.inf)
        inside = np.nonzero((chunk.scores <= worst) & np.isfinite(chunk.scores))
        places = np.column_stack(inside) + np.array(Place(chunk.device_point, chunk.link_point, 0, 0))
        self._keep(chunk.scores[inside], places)

    def merge(self, other: TopK) -> None:
        self._keep(other._scores, other._places)

    def result(self, context: Context) -> list:
        """list of Candidate."""
        blocks = context.candidates([Place(*map(int, place)) for place in self._places], self.k)
        found = sorted((entry for block in blocks for entry in block), key=lambda entry: entry[:2])
        return [entry.candidate for entry in found[: self.k]]

    def _keep(self, scores: np.ndarray, places: np.ndarray) -> None:
        scores = np.concatenate([self._scores, scores])
        places = np.concatenate([self._places, places])
        order = np.lexsort([*places.T[::-1], scores])[: self.k]
        self._scores, self._places = scores[order], places[order]


class BestPer:
    """The best candidate for every combination of values of some factors.

    Args:
        factors: columns of a space (`COLUMNS`), "overlap", or levers that the space varies.
    """

    def __init__(self, *factors: str) -> None:
        known = (*COLUMNS, "overlap", *LEVERS)
        self.factors = [choose("factor", factor.replace("-", "_"), known) for factor in factors]
        self.apart = tuple(factor for factor in self.factors if factor in COLUMNS)
        self._best: dict[tuple, tuple[float, Place]] = {}

    def update(self, chunk: Chunk, context: Context) -> None:
        keys = [context.keys(factor, chunk) for factor in self.factors]
        codes = [np.unique(values, return_inverse=True) for _, values in keys]
        code = np.zeros(chunk.scores.shape, np.int64)
        for (axis, _), (levels, inverse) in zip(keys, codes, strict=True):
            code = code * len(levels) + np.expand_dims(inverse, [a for a in range(4) if a != axis])
        order = np.lexsort([chunk.scores.ravel(), code.ravel()])
        firsts = order[np.flatnonzero(np.diff(code.ravel()[order], prepend=-1))]
        for flat in firsts:
            index = np.unravel_index(flat, chunk.scores.shape)
            score = float(chunk.scores[index])
            if np.isfinite(score):
                d, c, o, n = map(int, index)
                key = tuple(values[index[axis]].item() for axis, values in keys)
                place = Place(d + chunk.device_point, c + chunk.link_point, o, n)
                self._offer(key, score, place)

    def merge(self, other: BestPer) -> None:
        for key, (score, place) in other._best.items():
            self._offer(key, score, place)

    def result(self, context: Context) -> list:
        """list of (values of the factors, Candidate), in rising order of the values."""
        keys = sorted(self._best)
        blocks = context.candidates([self._best[key][1] for key in keys], 1)
        return [(key, block[0].candidate) for key, block in zip(keys, blocks, strict=True)]

    def _offer(self, key: tuple, score: float, place: Place) -> None:
        self._best[key] = min((score, place), self._best.get(key, (score, place)))
