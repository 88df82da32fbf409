"""The search against one `predict` per candidate, and the rules of spaces and reductions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import cluster, widen

from jaxscale import zoo
from jaxscale.engine import predict
from jaxscale.errors import InputError
from jaxscale.levers import lever
from jaxscale.lowering import lower
from jaxscale.search import BestPer, Space, TopK, evaluate, peak_memory
from jaxscale.search.space import COLUMNS, divisors

NETWORK = zoo.build("lenet-5")
WORKLOAD = lower(NETWORK, messages=2)
MACHINE = cluster(
    bandwidth=(50e9, 5e9), capacity=8e6, launch=1e-6, gpus_per_node=4, nodes=4, dtype=jnp.float32
)
HARDWARE = {
    "inter_node_bandwidth": [1e9, 4e9, 2e10],
    "intra_node_bandwidth": [1e10, 1e11],
    "peak_flops": [1e12, 2e13],
    "memory_capacity": [6e6, 1e9],
}


def space(**changes):
    settings = {"global_batch_sizes": (48, 64), "gpus": (1, 4, 8, 16), "hardware": HARDWARE} | changes
    return Space(NETWORK, WORKLOAD, MACHINE, **settings)


@pytest.fixture(scope="module")
def exhaustive():
    """(time per sample, plan, hardware) of every candidate, by one call of `predict` each."""
    candidates = space()
    names = list(HARDWARE)
    points = list(itertools.product(*HARDWARE.values()))
    plans = [
        candidates.plan(row, overlap)
        for row in range(len(candidates.rows))
        for overlap in (False, True)
        if overlap or candidates.rows[row, COLUMNS.index("gpus")] > 1
    ]
    with jax.enable_x64(True):

        def seconds(values, plan):
            machine = widen(MACHINE)
            for i, name in enumerate(names):
                machine = lever(name).set(machine, values[i])
            found = predict(widen(WORKLOAD), machine, plan)
            return jnp.where(found.feasible, found.step_time / plan.global_batch_size, jnp.inf)

        lowered = jax.tree.map(lambda *x: jnp.stack(x), *[plan.lower(NETWORK, np.float64) for plan in plans])
        over_points = jax.vmap(seconds, in_axes=(0, None))
        table = np.asarray(jax.jit(jax.vmap(over_points, in_axes=(None, 0)))(jnp.array(points), lowered))
    return [
        (table[i, j], plan, dict(zip(names, map(float, point), strict=True)))
        for i, plan in enumerate(plans)
        for j, point in enumerate(points)
    ]


def score(candidate):
    return float(candidate.prediction.step_time) / candidate.plan.global_batch_size


def test_size_counts_what_predict_would_judge(exhaustive):
    assert space().size == len(exhaustive)
    assert len({(plan, tuple(point.values())) for _, plan, point in exhaustive}) == len(exhaustive)


@pytest.mark.parametrize("k", [1, 7, 60])
def test_top_k_equals_exhaustive_search(exhaustive, k):
    found = evaluate(space(), [TopK(k)])
    assert found.candidates == len(exhaustive)
    times = sorted(seconds for seconds, _, _ in exhaustive)[:k]
    np.testing.assert_allclose([score(c) for c in found.results[0]], times, rtol=1e-9)
    by_choice = {(plan, tuple(point.items())): seconds for seconds, plan, point in exhaustive}
    for candidate in found.results[0]:
        point = tuple((name, candidate.hardware[name]) for name in HARDWARE)
        assert by_choice.pop((candidate.plan, point)) == pytest.approx(score(candidate), rel=1e-9)


@pytest.mark.parametrize(
    "factors",
    [
        ("global_batch_size",),
        ("inter_node_bandwidth",),
        ("peak_flops", "gpus"),
        ("overlap", "tp", "memory_capacity"),
    ],
)
def test_best_per_value_equals_exhaustive_search(exhaustive, factors):
    def key(plan, point):
        values = point | {
            "global_batch_size": plan.global_batch_size,
            "gpus": plan.devices,
            "tp": plan.tp,
            "overlap": plan.overlap,
        }
        return tuple(values[factor] for factor in factors)

    expected = {}
    for seconds, plan, point in exhaustive:
        where = key(plan, point)
        expected[where] = min(seconds, expected.get(where, np.inf))
    expected = {where: seconds for where, seconds in expected.items() if np.isfinite(seconds)}
    found = dict(evaluate(space(), [BestPer(*factors)]).results[0])
    assert found.keys() == expected.keys()
    for where, candidate in found.items():
        assert score(candidate) == pytest.approx(expected[where], rel=1e-9)


@pytest.mark.parametrize(
    ("lanes", "tile", "chunk", "block"), [(2, 32, 1, 4), (64, 2**14, 2**12, 64), (1, 1, 2**25, 8)]
)
def test_how_the_space_is_cut_changes_nothing(monkeypatch, lanes, tile, chunk, block):
    whole = evaluate(space(), [TopK(9), BestPer("gpus", "inter_node_bandwidth")])
    for name, value in {"LANES": lanes, "TILE": tile, "CHUNK": chunk}.items():
        monkeypatch.setattr(f"jaxscale.search.stream.{name}", value)
    monkeypatch.setattr("jaxscale.search.space.BLOCK", block)
    cut = evaluate(space(), [TopK(9), BestPer("gpus", "inter_node_bandwidth")])
    assert cut.candidates == whole.candidates
    assert [(c.plan, c.hardware) for c in cut.results[0]] == [(c.plan, c.hardware) for c in whole.results[0]]
    assert [(k, c.plan) for k, c in cut.results[1]] == [(k, c.plan) for k, c in whole.results[1]]


def test_a_small_space_is_judged_alike_by_the_streamed_program(monkeypatch):
    """A space of few blocks is worked out in one go; the compiled stream must name the same plans."""
    reductions = TopK(25), BestPer("global_batch_size")
    at_once = evaluate(space(hardware={}), reductions)
    monkeypatch.setattr("jaxscale.search.stream.Search.is_small", False)
    streamed = evaluate(space(hardware={}), [TopK(25), BestPer("global_batch_size")])
    assert [c.plan for c in streamed.results[0]] == [c.plan for c in at_once.results[0]]
    assert [(k, c.plan) for k, c in streamed.results[1]] == [(k, c.plan) for k, c in at_once.results[1]]
    assert streamed.candidates == at_once.candidates


def test_infeasible_candidates_never_win():
    tight = space(hardware={"memory_capacity": [1e5, 4e6]})
    found = evaluate(tight, [TopK(1000)]).results[0]
    assert found
    assert all(c.prediction.peak_memory <= c.hardware["memory_capacity"] for c in found)
    nothing = space(hardware={"memory_capacity": [1e5]})
    assert evaluate(nothing, [TopK(3), BestPer("gpus")]).results == [[], []]


def test_nearest_miss_is_the_plan_that_needs_least_memory(exhaustive):
    nothing = space(hardware={"memory_capacity": [1e5]})
    [nearest] = evaluate(nothing, [TopK(1)], score=peak_memory).results[0]
    with jax.enable_x64(True):
        one = jax.jit(lambda plan: predict(widen(WORKLOAD), widen(MACHINE), plan).peak_memory)
        least = min(float(one(p.lower(NETWORK, np.float64))) for p in {plan for _, plan, _ in exhaustive})
    assert nearest.prediction.peak_memory == pytest.approx(least)


def test_progress_ends_with_everything():
    calls = []
    evaluate(space(), [TopK(1)], progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (space().size, space().size)


def test_a_space_beyond_32_bits_is_counted_exactly():
    points = list(np.geomspace(1e9, 1e12, 2000))
    huge = space(
        hardware={
            "inter_node_bandwidth": points,
            "intra_node_bandwidth": points,
            "inter_node_latency": points,
        }
    )
    plans = space(hardware={}).size
    assert huge.size == plans * 2000**3 > 2**31


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch_sizes": ()}, "no value for global_batch_sizes"),
        ({"global_batch_sizes": (0,)}, "positive integers"),
        ({"global_batch_sizes": (7,), "gpus": (4,), "tp": (1,)}, "no plan divides"),
        ({"hardware": {"inter_node_bandwith": [1e9]}}, "did you mean 'inter_node_bandwidth'"),
        ({"hardware": {"inter_node_bandwidth": [0.0]}}, "positive, finite"),
        ({"hardware": {"inter_node_bandwidth": [float("nan")]}}, "positive, finite"),
        ({"hardware": {"inter_node_bandwidth": []}}, "no value for inter_node_bandwidth"),
        ({"overlap": ()}, "no value for overlap"),
    ],
)
def test_spaces_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        _ = space(**changes).size


def test_unknown_factor_of_a_reduction():
    with pytest.raises(InputError, match="did you mean 'global_batch_size'"):
        BestPer("global_batch")


def test_divisors_of_a_large_number():
    n = 2**10 * 3**5 * 7
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
