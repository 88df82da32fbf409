"""Learned kernel models: what they are told of a kernel, the physics they obey, their doubt, their files."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import widen

from jaxscale import hardware_db, zoo
from jaxscale.engine import predict
from jaxscale.errors import InputError
from jaxscale.explain import explain, step_interval
from jaxscale.kernels import DIRECT, MATRIX_FAMILIES, Roofline
from jaxscale.kernels.doubt import LEVELS, half_widths, is_taught, spread
from jaxscale.kernels.learned import BACKWARD_ATTENTION, GROUP_OF, GROUPS, SHARES
from jaxscale.kernels.network import bounds, evaluate
from jaxscale.kernels.weights import (
    SHIPPED,
    find_weights,
    kernel_model,
    read_weights,
    shipped,
    write_weights,
)
from jaxscale.kernels.work import describe
from jaxscale.levers import LEVERS
from jaxscale.lowering import lower
from jaxscale.nouns import KERNEL_DIMENSIONS, KERNEL_FAMILIES, PRECISIONS
from jaxscale.plans import PlanSpec

LEARNED = shipped().learned

SHAPES = {
    "convolution_forward": [
        [64, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1],
        [8, 3, 224, 224, 64, 112, 112, 7, 7, 2, 1, 1],
        [32, 256, 14, 14, 256, 14, 14, 3, 3, 1, 1, 256],
        [1, 2048, 7, 7, 512, 7, 7, 1, 1, 1, 1, 1],
    ],
    "matmul": [[64, 1000, 2048], [4096, 4096, 4096], [1, 8, 16], [32768, 12288, 1536]],
    "batched_matmul": [[96, 512, 512, 64], [8, 1, 4096, 128]],
    "normalization": [[1e6, 1024, 1, 1, 0], [64 * 56 * 56 * 256, 256, 2, 1, 1]],
    "elementwise": [[1e3, 1, 1, 1], [1e8, 2, 1, 1]],
    "pooling": [[64, 64, 112 * 112, 56 * 56, 9, 1]],
    "softmax": [[4096, 1024, 1, 1], [64, 50257, 2, 1]],
    "optimizer": [[25e6, 3, 2, 4]],
    "attention_forward": [[8, 2048, 2048, 32, 8, 128, 1], [1, 128, 128, 12, 12, 64, 0]],
    "embedding": [[8192, 1024, 50257]],
    "recurrent": [[64, 0, 1024, 4, 50, 1]],
}
SHAPES["convolution_backward_data"] = SHAPES["convolution_backward_filter"] = SHAPES["convolution_forward"]
SHAPES["attention_backward"] = SHAPES["attention_forward"]

MACHINES = ("k80", "v100-sxm2-16gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "mi100", "b200-sxm")


def sizes(family):
    return jnp.asarray(SHAPES[family], float).T


def timed(family, device, precision="fp16", model=LEARNED):
    """[shape] s"""
    count = len(SHAPES[family])
    numbers = jnp.full(count, PRECISIONS.index(precision))
    return _timed(family, model, sizes(family), jnp.full(count, 2.0), numbers, device)


@partial(jax.jit, static_argnums=0)
def _timed(family, model, *given):
    return model(family, *given)


# --- what a network is told -----------------------------------------------------------------------------


def test_every_family_has_a_group_and_shares():
    assert set(GROUP_OF) == set(KERNEL_FAMILIES) == set(SHAPES)
    assert set(SHARES) == set(GROUPS)


def test_a_product_counts_its_tiles():
    """300 x 520: 5 x 9 tiles of 64, 3 x 5 of 128, 2 x 3 of 256; each of 15 fetches 2 x 128 x k numbers."""
    work = describe("matmul", jnp.array([300.0, 520.0, 1000.0]), jnp.array(2.0), jnp.array(2))
    assert work.tiles.tolist() == [45, 15, 6]
    assert work.flops == 2 * 300 * 520 * 1000
    assert work.traffic == 15 * 2 * 128 * 1000 * 2
    assert work.chain == 1000


@pytest.mark.parametrize(
    ("direction", "product"),
    [
        ("forward", (8 * 14 * 14, 32, 16 * 9)),
        ("backward_data", (8 * 14 * 14, 16 * 9, 32)),
        ("backward_filter", (32, 16 * 9, 8 * 14 * 14)),
    ],
)
def test_a_convolution_is_the_product_that_computes_it(direction, product):
    shape = jnp.array([8.0, 16, 14, 14, 32, 14, 14, 3, 3, 1, 1, 1])
    work = describe(f"convolution_{direction}", shape, jnp.array(4.0), jnp.array(0))
    alike = describe("matmul", jnp.array(product, float), jnp.array(4.0), jnp.array(0))
    assert work.tiles.tolist() == alike.tiles.tolist()
    assert (work.flops, work.chain) == (alike.flops, alike.chain)


def test_every_family_has_the_counts_of_the_roofline():
    for family, shapes in SHAPES.items():
        work = describe(family, sizes(family), jnp.full(len(shapes), 2.0), jnp.full(len(shapes), 2))
        flops, moved = DIRECT[family](sizes(family), jnp.array(2.0))
        np.testing.assert_array_equal(work.flops, flops)
        np.testing.assert_array_equal(work.moved, moved)
        assert (work.matrix == (family in MATRIX_FAMILIES)).all()
        assert np.isfinite(work.sizes).all()
        assert np.abs(work.sizes).max() < 20


# --- physics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", KERNEL_FAMILIES)
def test_no_kernel_beats_the_bounds_of_its_family(family):
    work = describe(family, sizes(family), jnp.full(len(SHAPES[family]), 2.0), jnp.array(2))
    for machine in MACHINES:
        device = hardware_db.device(machine)
        least = (bounds(work, device) / jnp.array(SHARES[GROUP_OF[family]])[:, 1]).max(-1)
        assert (timed(family, device) - device.launch_overhead >= least * (1 - 1e-4)).all(), machine


@pytest.mark.parametrize("family", KERNEL_FAMILIES)
@pytest.mark.parametrize("rate", ["peak_flops", "memory_bandwidth", "clock"])
def test_a_higher_rate_makes_no_kernel_slower(rate, family):
    for machine in MACHINES:
        own = hardware_db.cluster(machine)
        factors = (0.5, 1.0, 1.3, 2.0, 8.0)
        times = np.stack([timed(family, LEVERS[rate].scale(own, factor).device) for factor in factors])
        assert (np.diff(times, axis=0) <= 1e-5 * times[:-1]).all(), machine


@pytest.mark.parametrize("family", KERNEL_FAMILIES)
def test_slopes_equal_finite_differences_in_every_leaf_of_the_hardware(family):
    with jax.enable_x64(True):
        device = widen(hardware_db.device("a100-sxm4-80gb"))._replace(utilization={})
        count = len(SHAPES[family])
        given = jnp.asarray(np.asarray(SHAPES[family], float).T), jnp.full(count, 2.0), jnp.full(count, 2)

        def log_time(logarithms):
            scaled = {
                name: getattr(device, name) * jnp.exp(step)
                for name, step in zip(device._fields, logarithms, strict=True)
                if name not in ("utilization", "generation")
            }
            return jnp.log(LEARNED(family, *given, device._replace(**scaled)))

        count = len(device._fields)
        slopes = jax.jit(jax.jacrev(log_time))(jnp.zeros(count))
        shifts = 1e-5 * jnp.eye(count)
        differences = jax.vmap(log_time)(shifts) - jax.vmap(log_time)(-shifts)
        assert np.isfinite(slopes).all()
        np.testing.assert_allclose(slopes.T, differences / 2e-5, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_network_takes_longer_for_more_samples(machine):
    network = zoo.build("resnet50")
    workload, one = lower(network), hardware_db.cluster(machine)
    step = jax.jit(lambda plan: predict(workload, one, plan, LEARNED).step_time)
    times = [float(step(PlanSpec(batch, batch).lower(network))) for batch in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert all(more > less for less, more in pairwise(times))


@given(
    st.lists(st.floats(0, 40), min_size=3, max_size=3),
    st.sampled_from(MACHINES),
    st.sampled_from(PRECISIONS),
)
@settings(max_examples=50, deadline=None)
def test_times_of_any_product_are_finite(powers, machine, precision):
    """From one number to products of 2^40, which is 10^12, on a side."""
    number = jnp.array(PRECISIONS.index(precision))
    found = _product(jnp.array([2.0**power for power in powers]), number, hardware_db.device(machine))
    assert np.isfinite(found)
    assert found > 0


@jax.jit
def _product(dimensions, number, device):
    return LEARNED("matmul", dimensions, jnp.array(2.0), number, device)


def test_a_device_of_no_known_generation_has_finite_times():
    unknown = hardware_db.device("a100")._replace(generation=jnp.array(-1.0))
    for family in KERNEL_FAMILIES:
        assert np.isfinite(timed(family, unknown)).all()


def test_attention_backward_is_forward_by_the_published_ratio():
    """The same share of what bounds it, less by 73 / 63: five products for two take 2.5 x 73 / 63 as long."""
    device = hardware_db.device("h100")._replace(memory_bandwidth=jnp.array(1e30))
    forward, backward = (
        timed(f"attention_{direction}", device, "bf16") - device.launch_overhead
        for direction in ("forward", "backward")
    )
    assert backward[0] / forward[0] == pytest.approx(2.5 * BACKWARD_ATTENTION, rel=0.25)


def test_sums_of_bounds_differentiate_through_the_whole_prediction():
    network = zoo.build("vgg16")
    found = explain(network, lower(network), hardware_db.cluster("v100"), PlanSpec(64, 64), LEARNED)
    shares = [
        value * (1 if LEVERS[name].dimension == "time" else -1) for name, value in found.elasticities.items()
    ]
    assert sum(shares) == pytest.approx(1.0, abs=2e-3)  # Euler's theorem: time has one dimension


# --- doubt ----------------------------------------------------------------------------------------------


def test_the_wider_interval_holds_the_other_and_members_that_agree_are_not_certain():
    doubt = shipped().doubt["matmul"]
    widths = half_widths(doubt, spread(np.ones((6, 3))), np.array([True, True, False]))
    assert (widths[0] > 0).all() and (widths[0] < widths[1]).all()
    assert (widths[:, 0] < widths[:, 2]).all()


def test_what_was_never_measured_is_doubted_more():
    doubt = shipped().doubt
    bf16, fp16 = PRECISIONS.index("bf16"), PRECISIONS.index("fp16")
    h100, v100 = hardware_db.device("h100"), hardware_db.device("v100")
    assert is_taught(doubt, "attention_forward", bf16, h100)
    assert not is_taught(doubt, "attention_forward", fp16, h100)
    assert not is_taught(doubt, "attention_forward", bf16, v100)
    assert not is_taught(doubt, "attention_backward", bf16, h100)
    unknown = h100._replace(generation=jnp.array(-1.0))
    assert not is_taught(doubt, "attention_forward", bf16, unknown)


def test_the_step_is_as_sure_as_its_kernels():
    network = zoo.build("resnet50")
    given = network, lower(network, "fp16"), hardware_db.cluster("v100"), PlanSpec(64, 64)
    step = float(explain(*given, LEARNED).prediction.step_time)
    interval = step_interval(*given, shipped())
    (low, high), (lowest, highest) = (interval.ends[level] for level in LEVELS)
    assert lowest < low < step < high < highest
    assert "optimizer" in interval.unmeasured
    assert "convolution_forward" not in interval.unmeasured


# --- files ----------------------------------------------------------------------------------------------


def test_weights_come_back_as_they_were_written(tmp_path):
    path = write_weights(shipped(), tmp_path / "again.npz")
    again = read_weights(path)
    jax.tree.map(np.testing.assert_array_equal, again.members, shipped().members)
    jax.tree.map(np.testing.assert_array_equal, again.doubt, shipped().doubt)
    assert (again.measuring, again.about) == (shipped().measuring, shipped().about)
    assert [file.name for file in tmp_path.iterdir()] == ["again.npz"]


def test_the_shipped_file_is_small_and_says_where_it_comes_from():
    assert SHIPPED.stat().st_size < 5e6
    about = shipped().about
    assert about["rows"] > 1e6
    assert {"date", "jaxscale", "split", "seed", "held_out_error", "map"} <= set(about)
    assert json.dumps(about)


def test_a_truncated_file_is_refused(tmp_path):
    whole = SHIPPED.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 30):
        path = tmp_path / "cut.npz"
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a whole file of kernel weights"):
            read_weights(path)


def test_another_version_and_other_arrays_are_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, about=np.array(json.dumps({"format": "jaxscale kernel weights 99"})))
    with pytest.raises(InputError, match="weights 99', this version of jaxscale reads"):
        read_weights(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(InputError, match="holds no kernel weights"):
        read_weights(path)
    np.savez(path, about=np.array(json.dumps({"format": "jaxscale kernel weights 1", "measuring": []})))
    with pytest.raises(InputError, match="of another shape"):
        read_weights(path)


def test_an_unknown_kernel_model_is_refused():
    with pytest.raises(InputError, match="unknown kernel model 'learnt': did you mean 'learned'"):
        kernel_model("learnt")
    with pytest.raises(InputError, match="there is no such file of kernel weights"):
        kernel_model("nowhere.npz")
    assert find_weights("roofline") is None
    assert kernel_model("roofline") == Roofline()


def test_groups_that_weights_lack_come_from_others():
    whole = shipped()
    some = replace(
        whole, members={"matmul": whole.members["matmul"]}, doubt={"matmul": whole.doubt["matmul"]}
    )
    joined = some.beside(whole)
    assert set(joined.members) == set(joined.doubt) == set(GROUPS)
    assert set(joined.about["taken"]["groups"]) == set(GROUPS) - {"matmul"}


def test_plain_layers_compute_what_flax_computes():
    from jaxscale.training.fit import KernelMLP

    module = KernelMLP(width=16, depth=3)
    x = jax.random.normal(jax.random.key(0), (5, 7))
    layers = module.init(jax.random.key(1), x)["params"]
    np.testing.assert_allclose(evaluate(layers, x), module.apply({"params": layers}, x), rtol=1e-6, atol=1e-6)


def test_members_can_be_mapped_over():
    """Weights are arguments like any other: an ensemble is one program."""
    device, weights = hardware_db.device("v100"), shipped()
    stacked = jax.vmap(partial(timed, "matmul", device, "fp32"))(
        type(LEARNED)({"matmul": weights.members["matmul"]})
    )
    np.testing.assert_allclose(stacked[1], timed("matmul", device, "fp32", weights.member(1)), rtol=1e-5)


def test_every_dimension_of_a_family_is_used_once():
    assert {family: len(names) for family, names in KERNEL_DIMENSIONS.items()} == {
        family: len(shapes[0]) for family, shapes in SHAPES.items()
    }
