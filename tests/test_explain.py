"""Elasticities obey the laws of homogeneous functions; the nearest miss is the smallest there is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import cluster, widen

from jaxscale import engine, zoo
from jaxscale.errors import InputError
from jaxscale.explain import TIME_LEVERS, bounds, explain, first_that_fits, least_memory
from jaxscale.levers import LEVERS
from jaxscale.lowering import lower
from jaxscale.plans import PlanSpec
from jaxscale.search import Space

NETWORK = zoo.build("lenet-5")
WORKLOAD = lower(NETWORK, messages=2)
PLANS = [
    PlanSpec(64, 64),
    PlanSpec(64, 16, dp=4),
    PlanSpec(64, 16, dp=2, tp=4, split="model", overlap=False),
    PlanSpec(64, 8, dp=4, tp=2, split="classifier"),
]


def machine(dtype=jnp.float32):
    """Every lever counts: two levels, latencies, overheads; nothing that no lever reaches."""
    return cluster(peak=1e12, bandwidth=(50e9, 5e9), launch=2e-6, gpus_per_node=4, nodes=2, dtype=dtype)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_rates_and_durations_account_for_the_whole_step(plan):
    """Rates k times as high and durations 1/k as long make the step 1/k as long (Euler)."""
    found = explain(NETWORK, WORKLOAD, machine(), plan)
    signed = [
        value * (-1 if LEVERS[name].dimension == "time" else 1) for name, value in found.elasticities.items()
    ]
    assert sum(signed) == pytest.approx(-1, rel=1e-6)
    shares = bounds(found.elasticities)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["elsewhere"] == pytest.approx(0, abs=1e-6)
    assert all(share > -1e-9 for share in shares.values())


def test_one_device_waits_for_no_link():
    shares = bounds(explain(NETWORK, WORKLOAD, machine(), PLANS[0]).elasticities)
    assert shares["intra-node link"] == shares["inter-node link"] == 0


def test_elasticity_is_the_slope_of_the_logarithms():
    plan = PLANS[2]
    found = explain(NETWORK, WORKLOAD, machine(), plan)
    with jax.enable_x64(True):
        numbers, base = plan.lower(NETWORK, np.float64), machine(jnp.float64)
        predict = jax.jit(lambda machine: engine.predict(widen(WORKLOAD), machine, numbers).step_time)
        for name in TIME_LEVERS:
            up, down = (float(predict(LEVERS[name].scale(base, 1 + h))) for h in (1e-6, -1e-6))
            slope = (np.log(up) - np.log(down)) / (np.log1p(1e-6) - np.log1p(-1e-6))
            assert found.elasticities[name] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize(
    ("algorithms", "fastest"),
    [
        # 4 ranks on a link of 50 GB/s and 1 us: ring 6 us + 1.5 n/B, flat tree 2 us + 4 n/B, equal at 80 kB.
        # The third convolution alone has 193 kB; all the other layers together have 54 kB.
        (("ring", "flat_tree"), {"ring": 1, "flat_tree": 1}),
        # Host memory of 10 GB/s: 2 us + 10 n/B, slower than the ring beyond 24 kB.
        (("ring", "parameter_server"), {"ring": 2}),
        (("parameter_server",), {"parameter_server": 2}),
    ],
)
def test_messages_are_counted_by_their_fastest_algorithm(algorithms, fastest):
    found = explain(NETWORK, WORKLOAD, machine(), PLANS[1], algorithms=algorithms)
    assert found.gradients_by == fastest


def test_one_device_reduces_nothing():
    assert explain(NETWORK, WORKLOAD, machine(), PLANS[0]).gradients_by == {}


def test_the_format_of_the_matrix_kernels_is_named():
    assert explain(NETWORK, lower(NETWORK, "bf16", messages=2), machine(), PLANS[0]).precision == "bf16"


def test_terms_add_up():
    prediction = explain(NETWORK, WORKLOAD, machine(), PLANS[3]).prediction
    assert sum(prediction.time) == pytest.approx(float(prediction.step_time))
    assert sum(prediction.memory) == pytest.approx(float(prediction.peak_memory))


def test_a_level_without_a_link_has_no_elasticity():
    lonely = cluster(bandwidth=(50e9, 0.0), latency=(1e-6, 0.0), gpus_per_node=8, nodes=1, dtype=jnp.float32)
    elasticities = explain(NETWORK, WORKLOAD, lonely, PLANS[1]).elasticities
    assert elasticities["inter_node_bandwidth"] == elasticities["inter_node_latency"] == 0
    assert elasticities["intra_node_bandwidth"] < 0


def space(**changes):
    given = {"global_batch_sizes": (64,), "gpus": (1, 4, 8)} | changes
    return Space(NETWORK, WORKLOAD, machine(), **given)


def test_the_nearest_miss_needs_the_least_memory_of_all_plans():
    candidates = space(tp=(1, 2))
    miss = least_memory(candidates)
    predict = jax.jit(engine.predict)
    plans = [candidates.plan(row, True) for row in range(len(candidates.rows))]
    peaks = [float(predict(WORKLOAD, machine(), plan.lower(NETWORK)).peak_memory) for plan in plans]
    assert miss.peak == pytest.approx(min(peaks), rel=1e-6)
    assert peaks[plans.index(miss.plan)] == pytest.approx(miss.peak, rel=1e-6)


def test_the_first_change_that_fits_is_named():
    large = least_memory(space(tp=(1,), micro_batch_sizes=(8,))).peak

    def impossible():
        raise InputError("no such cluster")

    variants = [
        ("nothing new", lambda: space(tp=(1,), micro_batch_sizes=(8,))),
        ("impossible", impossible),
        ("smaller", lambda: space(tp=(1,), micro_batch_sizes=(1,))),
    ]
    assert first_that_fits(variants, large * 0.999) == "smaller"
    assert first_that_fits(variants, large) == "nothing new"
    assert first_that_fits(variants, 1.0) is None
