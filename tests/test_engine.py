"""`predict` against the seed papers' models, hand calculations and the laws it must obey."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import cluster, widen
from seed_values import DATA_PARALLEL, MODEL_PARALLEL

from jaxscale import zoo
from jaxscale.engine import compose, exchange, gradient_envelopes, predict, price, reduce_gradients
from jaxscale.kernels import Roofline
from jaxscale.levers import LEVERS
from jaxscale.lowering import lower
from jaxscale.network import NetworkBuilder
from jaxscale.nouns import Shard
from jaxscale.plans import PlanSpec

HARDWARE = {
    "pydtnn_default": {
        "peak": 4e12,
        "memory_bandwidth": 50e9,
        "bandwidth": (0.125e9,) * 2,
        "latency": (0.5e-6,) * 2,
    },
    "v100_fp32_100Gb": {"bandwidth": (12.5e9,) * 2, "latency": (1e-6,) * 2},
    "v100_tc_100Gb": {"peak": 125e12, "bandwidth": (12.5e9,) * 2, "latency": (1e-6,) * 2},
    "v100fp32_100Gb": {"bandwidth": (12.5e9,) * 2, "latency": (1e-6,) * 2},
    "v100fp32_nvlink150GB": {"bandwidth": (150e9,) * 2, "latency": (5e-6,) * 2},
}
SEED_FAMILIES = ("convolution_forward", "convolution_backward_data", "convolution_backward_filter", "matmul")
IM2COL = Roofline("im2col")

step = jax.jit(predict, static_argnames=("algorithms",))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def small_network():
    b = NetworkBuilder("small", (3, 32, 32))
    x = b.relu(b.conv(b.input, 16, 3, padding=1))
    y = b.relu(b.conv(x, 32, 3, padding=1, stride=2))
    z = b.conv(x, 32, 1, stride=2)
    x = b.relu(b.add(y, z))
    return b.softmax(b.linear(b.flatten(b.max_pool(x, 2, stride=2)), 10)) and b.build()


NETWORK = small_network()


@pytest.fixture
def workload():
    return widen(lower(NETWORK, messages=None))


def predicted(workload, machine, plan, network=NETWORK, **options):
    return step(workload, machine, plan.lower(network, np.float64), **options)


# --- the seed papers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({row[0] for row in DATA_PARALLEL}))
def test_data_parallel_steps_of_barrachina_2021(name):
    """Forward and both backward products of every layer, pooling windows read in full; nothing else costs."""
    network = zoo.build(name)
    tables = widen(lower(network, messages=None, first_input_gradient=True))
    tables = tables._replace(kernels={f: tables.kernels[f] for f in (*SEED_FAMILIES, "pooling")})
    for row_name, hardware, ranks, algorithm, overlap, seconds in DATA_PARALLEL:
        # Every algorithm is a compilation of its own, so the other two are tried on one network.
        if row_name == name and (algorithm == "ring" or name == "alexnet"):
            machine = cluster(**HARDWARE[hardware], reduction=HARDWARE[hardware].get("peak", 15.7e12))
            plan = PlanSpec(64 * ranks, 64, dp=ranks, overlap=overlap)
            found = predicted(tables, machine, plan, network, kernel_model=IM2COL, algorithms=(algorithm,))
            assert found.step_time == pytest.approx(seconds, rel=1e-6), (hardware, ranks, algorithm, overlap)


@pytest.mark.parametrize(("name", "zoo_name"), [("alexnet", "alexnet-seed"), ("vgg16", "vgg16")])
def test_model_parallel_steps_of_castello_2019(name, zoo_name):
    network = zoo.build(zoo_name, classes=1001)
    tables = widen(lower(network, messages=None))
    tables = tables._replace(kernels={f: tables.kernels[f] for f in SEED_FAMILIES})
    for row_name, hardware, ranks, compute, communication in MODEL_PARALLEL:
        if row_name == name:
            plan = PlanSpec(64, 64, tp=ranks, split="model")
            machine = cluster(**HARDWARE[hardware])
            time = predicted(tables, machine, plan, network, kernel_model=IM2COL, algorithms=("ring",)).time
            assert time.forward + time.backward == pytest.approx(compute, rel=1e-6)
            assert time.activation_exchange == pytest.approx(communication, rel=1e-6, abs=1e-12)


def test_weak_scaling_efficiencies_of_the_seed():
    """8 ranks, ring, 100 Gb/s: AlexNet scales worst, overlap hides all of VGG-16's traffic at FP32 only."""
    expected = {
        ("alexnet", 15.7e12): (0.448, 0.635),
        ("vgg16", 15.7e12): (0.832, 1.00),
        ("vgg16", 125e12): (0.547, 0.855),
    }
    for (name, peak), efficiencies in expected.items():
        network = zoo.build(name)
        tables = widen(lower(network, messages=None, first_input_gradient=True))
        tables = tables._replace(kernels={f: tables.kernels[f] for f in (*SEED_FAMILIES, "pooling")})
        run = partial(predicted, tables, cluster(peak, reduction=peak), network=network, kernel_model=IM2COL)
        alone = run(PlanSpec(64, 64), algorithms=("ring",)).step_time
        for overlap, efficiency in zip((False, True), efficiencies, strict=True):
            eight = run(PlanSpec(512, 64, dp=8, overlap=overlap), algorithms=("ring",)).step_time
            assert alone / eight == pytest.approx(efficiency, abs=6e-4)


# --- by hand ------------------------------------------------------------------------------------------


def test_a_linear_layer_by_hand():
    """1000 to 500 features, 100 samples: 2 x 100 x 1000 x 500 = 1e8 FLOPs forward, as many backward."""
    b = NetworkBuilder("one", (1000,))
    b.linear(b.input, 500, bias=False)
    network = b.build()
    tables = widen(lower(network, optimizer="sgd"))
    machine = cluster(peak=1e12, memory_bandwidth=1e12, launch=1e-6)
    found = predicted(tables, machine, PlanSpec(100, 100), network)
    assert found.time.forward == pytest.approx(1e-4 + 1e-6)
    assert found.time.backward == pytest.approx(1e-4 + 1e-6)  # no gradient of the network's input
    # the update reads weight and gradient and writes the weight: 3 x 4 B x 500,000 / 1e12 B/s
    assert found.time.update == pytest.approx(6e-6 + 1e-6)
    # weights 2 MB, gradients 2 MB, saved input 0.4 MB, gradients of input and output 0.6 MB, no message
    assert found.peak_memory == pytest.approx(2e6 + 2e6 + 0.4e6 + 0.6e6)
    assert found.mfu == pytest.approx(3e8 / 1e12 / float(found.step_time))


def test_accumulation_repeats_the_kernels_and_reduces_once(workload):
    machine = cluster()
    one = predicted(workload, machine, PlanSpec(64, 32, dp=2))
    four = predicted(workload, machine, PlanSpec(256, 32, dp=2))
    assert four.time.forward == pytest.approx(4 * one.time.forward)
    assert four.time.backward == pytest.approx(4 * one.time.backward)
    assert four.time.gradient_exchange == pytest.approx(one.time.gradient_exchange)
    assert four.peak_memory == one.peak_memory


def test_reasons_name_the_broken_limits(workload):
    plan = PlanSpec(64, 32, dp=2)
    assert predicted(workload, cluster(), plan).reasons == 0
    assert predicted(workload, cluster(capacity=1e3), plan).reasons == 1
    assert predicted(workload, cluster(nodes=1), plan).reasons == 2
    assert not predicted(workload, cluster(nodes=1, capacity=1e3), plan).feasible


# --- laws ---------------------------------------------------------------------------------------------

PLANS = [
    PlanSpec(64, 64),
    PlanSpec(64, 8, dp=8),
    PlanSpec(64, 8, dp=8, overlap=False),
    PlanSpec(64, 16, dp=2, tp=4, split="model"),
    PlanSpec(64, 16, dp=2, tp=4, split="classifier"),
    PlanSpec(64, 16, dp=2, tp=4, split=(True, False, True, False)),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_terms_add_up(workload, plan):
    found = predicted(workload, cluster(launch=1e-6), plan)
    assert sum(found.time) == pytest.approx(float(found.step_time), rel=1e-12)
    assert sum(found.memory) == pytest.approx(float(found.peak_memory), rel=1e-12)
    assert all(term >= 0 for term in (*found.time, *found.memory))


def test_one_device_communicates_nothing(workload):
    found = predicted(workload, cluster(), PlanSpec(64, 64))
    assert found.time.gradient_exchange == found.time.activation_exchange == found.gradient_link_time == 0


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(
    "name", [n for n, lever in LEVERS.items() if lever.dimension in ("bandwidth", "flop_rate")]
)
def test_faster_hardware_is_never_slower(workload, plan, name):
    machine = cluster(launch=1e-6, gpus_per_node=4)
    before = predicted(workload, machine, plan).step_time
    after = predicted(workload, LEVERS[name].scale(machine, 1.7), plan).step_time
    assert after <= before * (1 + 1e-12)


@given(factor=st.floats(0.01, 100))
@settings(max_examples=10)
def test_time_scales_with_all_rates_and_latencies(factor):
    """All rates times k and all latencies over k divide the time by k."""
    with jax.enable_x64(True):
        tables = widen(lower(NETWORK, messages=None))
        plan = PlanSpec(64, 16, dp=2, tp=4, split="classifier")
        slow = predicted(tables, cluster(launch=1e-6), plan).step_time
        fast = predicted(
            tables,
            cluster(
                15.7e12 * factor,
                900e9 * factor,
                (12.5e9 * factor,) * 2,
                (1e-6 / factor,) * 2,
                launch=1e-6 / factor,
            ),
            plan,
        ).step_time
    assert fast * factor == pytest.approx(float(slow), rel=1e-9)


def test_two_ways_to_write_one_plan_cost_the_same(workload):
    """Groups whose ranks share only samples are replicas."""
    machine = cluster(gpus_per_node=4, bandwidth=(100e9, 10e9))
    replicas = predicted(workload, machine, PlanSpec(64, 8, dp=8))
    groups = predicted(workload, machine, PlanSpec(64, 16, dp=4, tp=2, split="data"))
    assert groups.step_time == pytest.approx(float(replicas.step_time), rel=1e-12)
    assert groups.peak_memory == pytest.approx(float(replicas.peak_memory), rel=1e-12)


def test_overlap_hides_and_never_hurts(workload):
    for bandwidth in (1e8, 1e9, 1e10, 1e11):
        machine = cluster(bandwidth=(bandwidth,) * 2)
        blocking = predicted(workload, machine, PlanSpec(64, 8, dp=8, overlap=False))
        hidden = predicted(workload, machine, PlanSpec(64, 8, dp=8))
        assert blocking.time.gradient_exchange == pytest.approx(float(blocking.gradient_link_time))
        assert hidden.step_time <= blocking.step_time


def test_overlap_equals_the_walk_over_layers(workload):
    """net = max(t, net) + message, layer by layer backward, written as a loop."""
    machine = cluster(bandwidth=(1e9,) * 2)
    plan = PlanSpec(64, 8, dp=8).lower(NETWORK, np.float64)
    shard = Shard(plan.micro_batch_size, plan.tp, plan.split)
    table = jax.jit(price)(workload, machine.device, shard)
    clock = np.diff(np.asarray(table.ready), prepend=0.0)
    t = net = 0.0
    for backward, size in zip(clock, np.asarray(table.gradients["replicas"]), strict=True):
        t += backward
        net = max(t, net) + 2 * 7 * 1e-6 + 2 * 7 / 8 * size / 1e9
    found = step(workload, machine, plan, algorithms=("ring",))
    assert found.time.gradient_exchange == pytest.approx(max(t, net) - float(table.backward), rel=1e-9)


def test_splitting_layers_shrinks_what_a_rank_holds(workload):
    whole = predicted(workload, cluster(), PlanSpec(64, 16))
    split = predicted(workload, cluster(), PlanSpec(64, 16, tp=2, split="model"))
    assert split.memory.weights == pytest.approx(whole.memory.weights / 2)
    assert split.memory.activations == whole.memory.activations


# --- as a function of arrays ----------------------------------------------------------------------------


def test_vmap_equals_a_loop(workload):
    bandwidths = jnp.array([1e9, 1e10, 1e11])
    plan = PLANS[3].lower(NETWORK, np.float64)

    def at(bandwidth):
        return predict(workload, LEVERS["inter_node_bandwidth"].set(cluster(), bandwidth), plan).step_time

    one = jax.jit(at)
    np.testing.assert_allclose(jax.jit(jax.vmap(at))(bandwidths), [one(b) for b in bandwidths], rtol=1e-12)


def test_a_block_of_plans_equals_one_at_a_time(workload):
    """The same lines evaluate arrays of plans, in float32 to float32 accuracy."""
    machine = cluster(gpus_per_node=4, launch=1e-6, dtype=jnp.float32)
    narrow = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, workload
    )
    lowered = [plan.lower(NETWORK) for plan in PLANS]
    block = jax.tree.map(lambda *leaves: jnp.stack(leaves, -1), *lowered)

    @jax.jit
    def composed(tables, machine, plans):
        table = price(tables, machine.device, Shard(plans.micro_batch_size, plans.tp, plans.split))
        exchanged, envelopes = exchange(table, machine, plans.tp), gradient_envelopes(table, machine, plans)
        reduction = reduce_gradients(table, exchanged, envelopes, plans.overlap)
        return compose(table, exchanged, reduction, machine, plans).step_time

    together = composed(narrow, machine, block)
    alone = [predicted(workload, widen(machine), plan).step_time for plan in PLANS]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_gradients_equal_finite_differences(workload):
    """All levers at once, by one reverse pass, and one by one, by a central difference."""
    machine = cluster(launch=1e-6, gpus_per_node=4, latency=(1e-6, 2e-6))

    def log_time(logarithms, plan):
        varied = machine
        for lever, logarithm in zip(LEVERS.values(), logarithms, strict=True):
            varied = lever.scale(varied, jnp.exp(logarithm))
        return jnp.log(predict(workload, varied, plan).step_time)

    slopes = jax.jit(jax.grad(log_time))
    values = jax.jit(jax.vmap(log_time, in_axes=(0, None)))
    shifts = 1e-5 * jnp.eye(len(LEVERS))
    for plan in PLANS:
        lowered = plan.lower(NETWORK, np.float64)
        differences = (values(shifts, lowered) - values(-shifts, lowered)) / 2e-5
        np.testing.assert_allclose(slopes(jnp.zeros(len(LEVERS)), lowered), differences, atol=2e-6)


def test_gradients_are_finite_where_links_are_absent(workload):
    """One device, no network: every leaf of the cluster has a finite gradient, and the links a zero one."""
    machine = cluster(bandwidth=(0.0, 0.0), latency=(0.0, 0.0), nodes=1)
    plan = PlanSpec(64, 64).lower(NETWORK, np.float64)
    slopes = jax.jit(jax.grad(lambda c: predict(workload, c, plan).step_time))(machine)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes.links))


def test_ten_clusters_and_ten_plans_are_one_trace(workload):
    traces = 0

    @jax.jit
    def counted(tables, machine, plan):
        nonlocal traces
        traces += 1
        return predict(tables, machine, plan).step_time

    for i in range(1, 11):
        plan = PlanSpec(64 * i, 8, dp=i, tp=2, split=("model", "classifier")[i % 2], overlap=i % 3 > 0)
        counted(
            workload, cluster(peak=1e12 * i, nodes=i, gpus_per_node=2 * i), plan.lower(NETWORK, np.float64)
        )
    assert traces == 1


def test_shapes_hold_without_implicit_broadcasting(workload, strict_ranks):
    plan = PLANS[4].lower(NETWORK, np.float64)
    assert jax.eval_shape(predict, workload, cluster(), plan).step_time.shape == ()


@pytest.mark.parametrize("parameters", [1e12])
def test_a_trillion_parameters_on_a_million_devices(parameters):
    b = NetworkBuilder("huge", (10**6,))
    b.linear(b.input, 10**6, bias=False)
    network = b.build()
    assert network.parameters == parameters
    tables = lower(network)
    machine = cluster(nodes=10**6, dtype=jnp.float32)
    found = predict(tables, machine, PlanSpec(10**6, 1, dp=10**6).lower(network))
    assert np.isfinite(found.step_time)
    assert found.memory.weights == pytest.approx(4e12, rel=1e-6)
    assert found.reasons == 1
