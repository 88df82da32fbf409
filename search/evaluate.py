"""Judge every candidate of a space and keep what the reductions ask for.

The compiled part returns one number per block, the best score in it; whatever is to be reported of a
winner is evaluated again, in float64, for the few blocks that hold winners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxscale.engine import GRADIENT_ALGORITHMS
from jaxscale.kernels import KernelModel, Roofline
from jaxscale.nouns import Array, Plan, Prediction
from jaxscale.search.reductions import Reduction
from jaxscale.search.space import Space
from jaxscale.search.stream import Score, Search


def time_per_sample(prediction: Prediction, plan: Plan) -> Array:
    """Step time over global batch where the plan is feasible; compares plans of unlike batches."""
    return jnp.where(prediction.feasible, prediction.step_time / plan.global_batch_size, jnp.inf)


def peak_memory(prediction: Prediction, plan: Plan) -> Array:
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
    search = Search(
        space, reductions, score, Roofline() if kernel_model is None else kernel_model, algorithms
    )
    started = time.perf_counter()
    search.compile()
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
