"""Plans with free assignments of layers, in place of a search's named ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxscale.engine import GRADIENT_ALGORITHMS
from jaxscale.kernels import KernelModel
from jaxscale.network import Network
from jaxscale.plans import PlanSpec
from jaxscale.search.assignment import TOGETHER, WIDEST, Solver
from jaxscale.search.space import COLUMNS, Space
from jaxscale.search.winners import Candidate


@dataclass(frozen=True)
class Refinement:
    """What `refine` returns."""

    candidates: list[Candidate]
    """Best first: those that were given and those that were found, without duplicates."""
    solved: int
    """Plans whose best assignment was worked out."""
    pruned: int
    """Plans for which no assignment can be better, or fits."""
    unsolved: int
    """Plans that the time limit, or the shape of the network, left open."""
    dropped: int
    """Labels lost, see `Stats`."""
    seconds: float


def refine(
    space: Space,
    candidates: Sequence[Candidate],
    kernel_model: KernelModel | None = None,
    algorithms: tuple[str, ...] = GRADIENT_ALGORITHMS,
    top: int = 1,
    time_limit: float = np.inf,
) -> Refinement:
    """Improve the best candidates of a search over named splits by free assignments of layers.

    Every distinct (global batch, micro-batch, dp, tp, overlap) of the space in which layers can choose is
    bounded from below, and solved, most promising first, until the bound says that no other can be among
    the best `top`. The figure of merit is the time per sample.

    Args:
        space: what was searched.
        candidates: what was found; their hardware points are searched again, or the space's own cluster
            where there are none.
        kernel_model: times kernels; the roofline when None.
        algorithms: what may reduce gradients, as in `predict`.
        top: how many of the best plans, each with its best assignment, to make sure of.
        time_limit: s after which no further plan is solved.

    >>> from jaxscale import hardware_db, zoo
    >>> from jaxscale.lowering import lower
    >>> network = zoo.build("alexnet")
    >>> dgx = hardware_db.cluster("dgx-1-v100")
    >>> space = Space(network, lower(network), dgx, global_batch_sizes=(512,), tp=(2, 8))
    >>> refined = refine(space, [])
    >>> refined.solved > 0, refined.unsolved
    (True, 0)
    """
    started = time.perf_counter()
    points = {tuple(c.hardware.items()): c.cluster for c in candidates} or {(): space.cluster}
    plans = _open_plans(space)
    queue: list[tuple[float, int, Solver, PlanSpec, dict[str, float]]] = []
    unsolved = len(points) * len(plans)
    for hardware, cluster in points.items():
        solver = Solver(space.network, space.workload, cluster, kernel_model, algorithms)
        for start in range(0, len(plans) if solver.width <= WIDEST else 0, TOGETHER):
            if time.perf_counter() - started > time_limit:
                break
            some = plans[start : start + TOGETHER]
            for plan, choices in zip(some, solver.choices(some), strict=True):
                bound = solver.bound(plan, choices) / plan.global_batch_size
                queue.append((bound, len(queue), solver, plan, dict(hardware)))
    unsolved -= len(queue)
    queue.sort(key=lambda entry: entry[:2])

    found = {_identity(space.network, c): c for c in candidates}
    scores = sorted(map(_time_per_sample, found.values()))
    solved = dropped = 0
    for bound, _, solver, plan, hardware in queue:
        worst = scores[top - 1] if len(scores) >= top else np.inf
        if bound >= worst or time.perf_counter() - started > time_limit:
            break
        solved += 1
        choices = solver.choices([plan])[0]
        answer = solver.solve(plan, choices, limit=worst * plan.global_batch_size)
        if answer is not None:
            best, stats = answer
            dropped += stats.dropped
            candidate = Candidate(best, hardware, solver.cluster, stats.prediction)
            found.setdefault(_identity(space.network, candidate), candidate)
            scores = sorted(map(_time_per_sample, found.values()))
    worst = scores[top - 1] if len(scores) >= top else np.inf
    pruned = sum(bound >= worst for bound, *_ in queue[solved:])
    return Refinement(
        sorted(found.values(), key=_time_per_sample)[: max(len(candidates), top)],
        solved,
        pruned,
        unsolved + len(queue) - solved - pruned,
        dropped,
        time.perf_counter() - started,
    )


def _open_plans(space: Space) -> list[PlanSpec]:
    """The distinct plans of a space in which layers can choose."""
    batch, dp, tp, micro = (
        space.rows[:, COLUMNS.index(name)] for name in ("global_batch_size", "dp", "tp", "micro_batch_size")
    )
    rows = np.unique(np.stack([batch, micro, dp, tp])[:, (tp > 1) & (micro % np.maximum(tp, 1) == 0)], axis=1)
    return [
        PlanSpec(int(batch), int(micro), int(dp), int(tp), "data", overlap)
        for batch, micro, dp, tp in rows.T
        for overlap in sorted(set(space.overlap))
    ]


def _identity(network: Network, candidate: Candidate) -> tuple:
    plan = candidate.plan
    return replace(plan, split=plan.flags(network)), tuple(candidate.hardware.items())


def _time_per_sample(candidate: Candidate) -> float:
    return float(candidate.prediction.step_time) / candidate.plan.global_batch_size
