"""Shortest steps under two clocks and a memory limit: labels, walked through a graph of layers.

Once gradient messages overlap the backward pass, the best assignment of flags to layers is no shortest path:
what a message costs depends on how far the network clock is ahead of the computation. Walking the layers
backward, a partial assignment is a label: what the step lasts if only computation counts, what it lasts
until the network is free, and the memory taken. Everything that follows adds to these or takes maxima of
them, so a label that another one equals or beats in all of them can go (the multi-objective shortest path
of Martins 1984, "On a multicriteria shortest path problem"). Labels are compared where the flags that later
layers still depend on agree: one flag in a chain, a few in networks with branches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROUNDING = 1e-12
"""Relative error of sums in float64 with a wide margin; what prunes allows for it."""

FASTEST_KEPT = 16
"""Complete assignments that a walk returns."""


class Step(NamedTuple):
    """One layer of a walk. Arrays have one entry per joint state, whose bits are the flags of `joint`."""

    joint: tuple[int, ...]
    """Layers whose flags matter now; those known from earlier steps come first."""
    known: int
    """How many were known before."""
    project: np.ndarray
    """Joint state -> state of the layers that still matter afterwards."""
    computed: np.ndarray
    """s by which the step grows if only computation counts."""
    shifted: np.ndarray
    """The part of `computed` behind which no message can hide."""
    message: np.ndarray
    """s that the layer's gradients occupy the network beside the computation."""
    memory: np.ndarray
    """[3, ...] B: what adds up over layers, and two kinds of which the largest counts."""


class Rest(NamedTuple):
    """What follows a step takes at least; arrays by the state after it."""

    computed: np.ndarray
    sent: np.ndarray
    """s by which the network clock advances."""
    held: np.ndarray
    peaks: np.ndarray
    """[2, 1] B: the largest of the least that each later layer needs."""
    most: float
    """B that a label's held memory can still grow by at most, the largest peaks of all layers included."""


class Walk(NamedTuple):
    """Where a walk has led."""

    splits: list[tuple[bool, ...]]
    """The fastest complete assignments that were found, best first."""
    times: list[float]
    """s of each."""
    lost: float
    """s that nothing reached through a dropped label undercuts; infinite where none was dropped."""
    dropped: int
    """Labels for which a state had no room."""
    labels: int
    """Labels kept, over all steps."""
    most_labels: int
    """Labels in the fullest state."""


def frontiers(
    layers: int, producer: np.ndarray, consumer: np.ndarray
) -> list[tuple[int, tuple[int, ...], int]]:
    """Layers in backward order, each with those whose flags its step needs, and how many of them it inherits.

    A step needs the layer itself, the producers of what it consumes, and whatever later steps need again.

    >>> frontiers(3, np.array([0, 0, 1]), np.array([1, 2, 2]))  # a residual connection around layer 1
    [(2, (2, 0, 1), 0), (1, (0, 1), 2), (0, (0,), 1)]
    """
    needs = [{i, *map(int, producer[consumer == i])} for i in range(layers)]
    steps, inherited = [], ()
    for i in reversed(range(layers)):
        fresh = sorted(needs[i] - set(inherited), key=lambda layer: (layer != i, layer))
        steps.append((i, (*inherited, *fresh), len(inherited)))
        later = set().union(*needs[:i])
        inherited = tuple(layer for layer in steps[-1][1] if layer in later)
    return steps


def projection(joint: tuple[int, ...], kept: tuple[int, ...]) -> np.ndarray:
    """The state of `kept` layers in each joint state.

    >>> projection((4, 7), (7,)).tolist()
    [0, 0, 1, 1]
    """
    states = np.arange(2 ** len(joint))
    return sum((states >> joint.index(layer) & 1) << i for i, layer in enumerate(kept)) + 0 * states


def walk(steps: list[Step], per_state: int, memory_capacity: float = np.inf, limit: float = np.inf) -> Walk:
    """Find the assignments with the shortest step.

    Args:
        steps: layers in backward order.
        per_state: labels kept per state; the most promising ones where there are more.
        memory_capacity: B that an assignment may take.
        limit: s; what cannot end below or at it is not followed.
    """
    rests = _rests(steps)
    limit = min(limit * (1 + ROUNDING), np.finfo(float).max)
    room = memory_capacity * (1 + ROUNDING)
    state, clocks, taken = np.zeros(1, int), np.zeros((2, 1)), np.zeros((3, 1))
    trail, lost, dropped, labels, most_labels = [], np.inf, 0, 0, 0
    for step, rest in zip(steps, rests, strict=True):
        ways = len(step.project) >> step.known
        parent = np.repeat(np.arange(len(state)), ways)
        joint = state[parent] + (np.tile(np.arange(ways), len(state)) << step.known)
        state = step.project[joint]
        computed = clocks[0, parent] + step.computed[joint]
        network = np.maximum(clocks[1, parent] + step.shifted[joint], computed) + step.message[joint]
        clocks = np.stack([computed, network])
        bound = np.maximum(computed + rest.computed[state], network + rest.sent[state])
        alive = bound <= limit
        taken = taken[:, parent]
        if np.isfinite(memory_capacity):
            taken[0] += step.memory[0, joint]
            taken[1:] = np.maximum(np.maximum(taken[1:], step.memory[1:, joint]), rest.peaks)
            alive &= taken.sum(0) + rest.held[state] <= room
            taken[:, taken[0] + rest.most <= memory_capacity] = 0.0  # fits whatever follows
        kept = np.flatnonzero(alive)
        kept = kept[_nondominated(state[kept], np.concatenate([clocks, taken])[:, kept])]
        place = _place_in_state(state[kept], bound[kept])
        most_labels = max(most_labels, min(per_state, int(place.max(initial=-1)) + 1))
        overflow = place >= per_state
        dropped += int(overflow.sum())
        lost = min(lost, float(bound[kept[overflow]].min(initial=np.inf)))
        kept = kept[~overflow]
        state, clocks, taken = state[kept], clocks[:, kept], taken[:, kept]
        trail.append((parent[kept], joint[kept]))
        labels += len(kept)
    fastest = np.argsort(clocks[1], kind="stable")[:FASTEST_KEPT]
    splits = [_trace(steps, trail, int(label)) for label in fastest]
    return Walk(splits, clocks[1, fastest].tolist(), lost, dropped, labels, most_labels)


def _rests(steps: list[Step]) -> list[Rest]:
    """Walk forward: the least clock advances and memory from every state on, each by itself."""
    largest = float(np.max([step.memory[1:].max(1) for step in steps], axis=0).sum())
    nothing = np.zeros(1)
    rests = [Rest(nothing, nothing, nothing, np.zeros((2, 1)), largest)]
    for step in reversed(steps[1:]):
        after = rests[-1]

        def least(here: np.ndarray, later: np.ndarray, step: Step = step) -> np.ndarray:
            return (here + later[step.project]).reshape(-1, 2**step.known).min(0)

        rests.append(
            Rest(
                least(step.computed, after.computed),
                least(step.shifted + step.message, after.sent),
                least(step.memory[0], after.held),
                np.maximum(step.memory[1:].min(1, keepdims=True), after.peaks),
                after.most + float(step.memory[0].max()),
            )
        )
    return rests[::-1]


def _nondominated(state: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Indices of the labels that no other of the same state equals or beats in every column, by state."""
    if not len(state):
        return state
    columns = columns[(columns != columns[:, :1]).any(1)]
    order = np.lexsort([*columns[::-1], state])
    starts = np.diff(state[order], prepend=-1) > 0
    if len(columns) <= 1:
        return order[starts]
    if len(columns) == 2:
        # In rising order of the first column a label survives if it lowers the second one; counting every
        # state from a lower base restarts the running minimum.
        rank = np.unique(columns[1], return_inverse=True)[1].ravel()[order]
        rank = rank - np.cumsum(starts) * (len(rank) + 1)
        return order[rank < np.append(1, np.minimum.accumulate(rank)[:-1])]
    segments = np.split(order, np.flatnonzero(starts)[1:])
    return np.concatenate([segment[_front(columns[1:, segment])] for segment in segments])


def _front(columns: np.ndarray, chunk: int = 128) -> np.ndarray:
    """Indices of the points that no earlier point equals or beats in every column."""
    kept = np.empty(0, int)
    for start in range(0, columns.shape[1], chunk):
        new = np.arange(start, min(start + chunk, columns.shape[1]))
        new = new[~_beats(columns[:, kept], columns[:, new]).any(0)]
        kept = np.append(kept, new[~np.triu(_beats(columns[:, new], columns[:, new]), 1).any(0)])
    return kept


def _beats(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[some, others] Whether one equals or beats the other in every column."""
    return np.logical_and.reduce([a[:, None] <= b for a, b in zip(some, others, strict=True)])


def _place_in_state(state: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """How many labels of the same state have a lower bound."""
    order = np.lexsort([bound, state])
    starts = np.flatnonzero(np.diff(state[order], prepend=-1) > 0)
    place = np.empty(len(state), int)
    place[order] = np.arange(len(state)) - np.repeat(starts, np.diff(np.append(starts, len(state))))
    return place


def _trace(steps: list[Step], trail: list[tuple[np.ndarray, np.ndarray]], label: int) -> tuple[bool, ...]:
    """The flags that led to a label of the last step."""
    flags: dict[int, bool] = {}
    for step, (parent, joint) in zip(reversed(steps), reversed(trail), strict=True):
        flags |= {layer: bool(joint[label] >> i & 1) for i, layer in enumerate(step.joint)}
        label = parent[label]
    return tuple(flags[layer] for layer in sorted(flags))
