"""Collectives: formulas by hand, the seed papers' values, laws, and what ill numbers do."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_links import KINDS, MB, US, envelope, make_links
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscale import collectives
from jaxscale.collectives import ALGORITHMS, DEFAULT_ALGORITHMS, Envelope, Group, group, restrict, rows, time
from jaxscale.errors import InputError
from jaxscale.nouns import Links


@jax.jit
def every_kind(links, ranks_per_node, nodes, size):
    """[kind] seconds with the default algorithms."""
    where = Group(jnp.asarray(ranks_per_node), jnp.asarray(nodes))
    return jnp.stack([time(envelope(kind, links, where), size) for kind in KINDS])


@jax.jit
def value_and_slopes(links, ranks_per_node, nodes, size):
    """Sum over all kinds, and its gradient in links and size."""
    return jax.value_and_grad(lambda *x: every_kind(x[0], ranks_per_node, nodes, x[1]).sum(), argnums=(0, 1))(
        links, size
    )


# ---------------------------------------------------------------------------------------------------------
# Placement and names
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "stride", "gpus_per_node", "expected"),
    [
        (16, 2, 8, (4, 4)),
        (8, 1, 8, (8, 1)),
        (8, 8, 8, (1, 8)),
        (4, 16, 8, (1, 4)),
        (4, 2, 8, (4, 1)),
        (64, 1, 8, (8, 8)),
        (6, 1, 4, (3, 2)),  # 4 and 2 ranks: 3 on average
        (3, 3, 8, (1.5, 2)),  # ranks 0, 3 and 6, 7: two of them fit between boundaries on average
        (1, 1, 8, (1, 1)),
        (1, 64, 8, (1, 1)),
    ],
)
def test_group_counts_ranks_per_node_and_nodes(ranks, stride, gpus_per_node, expected):
    placed = group(ranks, stride, gpus_per_node)
    assert (float(placed.ranks_per_node), float(placed.nodes)) == expected


def test_group_broadcasts():
    placed = group(jnp.array([2.0, 16.0]), jnp.array([1.0, 8.0]), 8)
    np.testing.assert_array_equal(placed.ranks_per_node, [2, 1])
    np.testing.assert_array_equal(placed.nodes, [1, 16])


@pytest.mark.parametrize("kind", KINDS)
def test_envelope_has_the_named_rows(kind, strict_ranks):
    where = Group(jnp.ones((3, 1)), jnp.ones((3, 1)))
    for algorithms in (None,) if kind == "parameter_server" else (None, ALGORITHMS[kind]):
        made = jax.eval_shape(
            lambda links, a=algorithms: envelope(kind, links, where, algorithms=a), make_links()
        )
        assert len(made.latency) == len(made.inverse_bandwidth) == len(rows(kind, algorithms))
        assert all(
            jnp.broadcast_shapes(row.shape, (3, 1)) == (3, 1)
            for row in (*made.latency, *made.inverse_bandwidth)
        )
        assert jax.eval_shape(time, made, jnp.ones((1, 5))).shape == (3, 5)
    assert set(DEFAULT_ALGORITHMS[kind]) <= set(ALGORITHMS[kind])


def test_unknown_algorithm_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown all_reduce algorithm 'rings': did you mean 'ring'"):
        collectives.all_reduce(make_links(), group(8, 1, 8), 4, ["rings"])


# ---------------------------------------------------------------------------------------------------------
# By hand: 80 MB over 4 ranks in each of 2 nodes; 100 and 10 GB/s, 1 and 10 us, 5 us per call
# ---------------------------------------------------------------------------------------------------------

BY_HAND = [
    ("all_reduce", "ring", 5 + 2 * (6 * 1 + 1 * 10) + 3500),  # 1.75 x 80 MB over 4 ports of 10 GB/s
    ("all_reduce", "tree", 5 + 2 * 3 * 1 + 2 * 10 + 4000),
    ("all_reduce", "in_switch", 5 + 2 * 1 + 2 * 10 + 4000),  # 1.25 x 80 MB at 50 GB/s is less
    ("all_reduce", "two_level_ring", 5 + 2 * (3 * 1 + 10) + 2 * (600 + 1000)),
    ("all_reduce", "two_level_tree", 5 + 2 * 3 * 1 + 2 * 10 + 2 * 600 + 4000),
    ("all_reduce", "recursive_doubling", 5 + 2 * 1 + 10 + 2 * 800 + 8000),
    ("all_reduce", "rabenseifner", 5 + 2 * (2 * 1 + 10) + 2 * (600 + 1000)),
    ("all_reduce", "flat_tree", 5 + 2 * 1 + 10 + 2 * (2 * 800 + 8000)),
    ("all_gather", "ring", 5 + 6 * 1 + 10 + 1750),
    ("all_gather", "two_level", 5 + 3 * 1 + 10 + 600 + 1000),
    ("all_gather", "recursive_doubling", 5 + 2 * 1 + 10 + 600 + 1000),
    ("reduce_scatter", "ring", 5 + 6 * 1 + 10 + 1750),
    ("reduce_scatter", "two_level", 5 + 3 * 1 + 10 + 600 + 1000),
    ("reduce_scatter", "recursive_halving", 5 + 2 * 1 + 10 + 600 + 1000),
    ("broadcast", "ring", 5 + 6 * 1 + 10 + 2000),
    ("broadcast", "binomial_tree", 5 + 2 * 1 + 10 + 2 * 800 + 8000),
    ("broadcast", "scatter_all_gather", 5 + 2 * 1 + 10 + 600 + 1000 + 6 * 1 + 10 + 1750),
    ("all_to_all", "direct", 5 + 10 + 4000),  # half of the buffer leaves the node
    ("all_to_all", "pairwise", 5 + 3 * 1 + 4 * 10 + 300 + 4000),
    ("all_to_all", "bruck", 5 + 2 * 1 + 10 + 800 + 4000),
    ("send_recv", "direct", 5 + 10 + 8000),
    (
        "parameter_server",
        "push_pull",
        5 + 2 * 10 + 8000 + 8000,
    ),  # 20 GB/s to the host; half is in the other node
]


@pytest.mark.parametrize(("kind", "algorithm", "microseconds"), BY_HAND)
def test_by_hand(kind, algorithm, microseconds):
    made = envelope(kind, make_links(), Group(jnp.array(4.0), jnp.array(2.0)), algorithms=[algorithm])
    assert float(time(made, 80 * MB)) == pytest.approx(microseconds * US, rel=1e-5)


def test_by_hand_covers_every_algorithm():
    assert {(kind, name) for kind, names in ALGORITHMS.items() for name in names} == {
        row[:2] for row in BY_HAND
    }


def test_sums_and_copies_by_hand():
    eight = Group(jnp.array(4.0), jnp.array(2.0))
    summing = make_links(sums=1e9)  # 7/8 of 20 million elements take 17.5 ms
    ring = time(envelope("all_reduce", summing, eight, algorithms=["ring"]), 80 * MB)
    assert float(ring) == pytest.approx((5 + 32 + 3500 + 17500) * US, rel=1e-5)
    copying = make_links(copies=100e9)  # 1/8 of 80 MB takes 0.1 ms
    gather = time(envelope("all_gather", copying, eight), 80 * MB)
    assert float(gather) == pytest.approx((5 + 16 + 1750 + 100) * US, rel=1e-5)


def test_ranks_beyond_a_power_of_two_fold_once_each_way():
    """Thakur et al. 2005: 2 of 6 ranks sit out; one message more before and one after."""
    six = Group(jnp.array(1.0), jnp.array(6.0))
    doubling = envelope("all_reduce", make_links(overhead=0.0), six, algorithms=["recursive_doubling"])
    assert float(time(doubling, 80 * MB)) == pytest.approx(4 * (10 + 8000) * US, rel=1e-5)
    halving = envelope("all_reduce", make_links(overhead=0.0), six, algorithms=["rabenseifner"])
    assert float(time(halving, 80 * MB)) == pytest.approx((6 * 10 + 2 * 1.75 * 8000) * US, rel=1e-5)


def test_a_pair_on_one_node_uses_the_link_in_the_node():
    made = envelope("send_recv", make_links(), group(2, 1, 8))
    assert float(time(made, 80 * MB)) == pytest.approx((5 + 1 + 800) * US, rel=1e-5)


def test_switch_sums_only_in_whole_buffers_and_only_where_it_can():
    assert rows("all_reduce", ["in_switch"]) == ("in_switch/simple",)
    nothing = envelope("all_reduce", make_links(in_switch=0.0), group(8, 1, 8), algorithms=["in_switch"])
    assert float(time(nothing, 1 * MB)) == np.inf


# ---------------------------------------------------------------------------------------------------------
# Laws
# ---------------------------------------------------------------------------------------------------------

rates = st.floats(1e8, 2e12)
delays = st.floats(0, 1e-4)
counts = st.integers(1, 16).map(float)
sizes = st.floats(1.0, 1e11)
some_links = st.builds(
    make_links, intra=rates, inter=rates, a_intra=delays, a_inter=delays, overhead=delays, host=rates,
    sums=st.one_of(rates, st.just(np.inf)), in_switch=st.one_of(rates, st.just(0.0)),
    copies=st.one_of(rates, st.just(np.inf)), low_latency_share=st.floats(0.05, 1.0),
)  # fmt: skip


@settings(max_examples=25)
@given(some_links, counts, counts, sizes)
def test_all_reduce_is_reduce_scatter_and_all_gather(links, k, m, size):
    links = links._replace(call_overhead=jnp.zeros(2), copy_bandwidth=jnp.array(jnp.inf))
    whole, gather, scatter = ring_kinds(links, k, m, size)
    np.testing.assert_allclose(whole, gather + scatter, rtol=1e-5)


@jax.jit
def ring_kinds(links, k, m, size):
    where = Group(jnp.asarray(k), jnp.asarray(m))
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    simple = jnp.array([0.0, 1.0])  # each alone might choose its own protocol
    return [time(restrict(envelope(kind, links, where, algorithms=["ring"]), simple), size) for kind in kinds]


@settings(max_examples=25)
@given(some_links, counts, counts, sizes, st.sampled_from([0.5, 2.0, 1024.0]))
def test_faster_clocks_divide_the_time(links, k, m, size, factor):
    faster = Links(
        bandwidth=links.bandwidth * factor,
        bandwidth_share=links.bandwidth_share,
        latency=links.latency / factor,
        call_overhead=links.call_overhead / factor,
        host_bandwidth=links.host_bandwidth * factor,
        reduction_flops=links.reduction_flops * factor,
        in_switch_bandwidth=links.in_switch_bandwidth * factor,
        copy_bandwidth=links.copy_bandwidth * factor,
    )
    now = every_kind(links, k, m, size)
    np.testing.assert_allclose(every_kind(faster, k, m, size) * factor, now, rtol=1e-5)


@settings(max_examples=25)
@given(some_links, counts, counts, sizes, st.floats(1.0, 100.0))
def test_more_bytes_take_longer_and_more_bandwidth_shorter(links, k, m, size, factor):
    now = every_kind(links, k, m, size)
    assert (every_kind(links, k, m, size * factor) >= now * (1 - 1e-6)).all()
    wider = links._replace(bandwidth=links.bandwidth * jnp.array([factor, 1.0]))
    assert (every_kind(wider, k, m, size) <= now * (1 + 1e-6)).all()
    wider = links._replace(bandwidth=links.bandwidth * jnp.array([1.0, factor]))
    assert (every_kind(wider, k, m, size) <= now * (1 + 1e-6)).all()


@settings(max_examples=25)
@given(some_links, counts, counts, sizes)
def test_no_algorithm_beats_the_ring_in_bandwidth_on_a_flat_network(links, k, m, size):
    """Patarasuk and Yuan 2009: an all-reduce moves at least 2 (p-1)/p of the buffer through each rank."""
    p = k * m
    level = links._replace(
        bandwidth=jnp.broadcast_to(links.bandwidth[1], (2,)), in_switch_bandwidth=jnp.array(0.0)
    )
    lower_bound = 2 * (p - 1) / p * size / float(level.bandwidth.max()) / k  # k ports per node in parallel
    assert float(every_kind(level, k, m, size)[KINDS.index("all_reduce")]) >= lower_bound * (1 - 1e-5)


def test_vmap_equals_a_loop():
    hardware = [
        make_links(inter=rate, sums=sums) for rate, sums in ((1e9, np.inf), (1e10, 1e9), (1e11, 1e12))
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *hardware)
    batched = jax.vmap(every_kind, in_axes=(0, None, None, None))(stacked, 4.0, 8.0, 1e7)
    looped = jnp.stack([every_kind(each, 4.0, 8.0, 1e7) for each in hardware])
    np.testing.assert_allclose(batched, looped, rtol=1e-6)


def test_links_with_an_axis_of_hardware_broadcast_with_groups():
    gather = jax.jit(lambda links, k, m: time(envelope("all_gather", links, Group(k, m)), 1e7))
    hardware = [make_links(inter=rate) for rate in (1e9, 1e10)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=-1), *hardware)
    together = gather(stacked, jnp.array([1.0, 4.0, 8.0])[:, None], jnp.array(2.0))
    for row, k in enumerate((1.0, 4.0, 8.0)):
        for column, links in enumerate(hardware):
            assert float(together[row, column]) == pytest.approx(float(gather(links, k, 2.0)), rel=1e-6)


def test_gradient_equals_a_finite_difference():
    with jax.enable_x64(True):
        links = make_links(sums=1e12, copies=2e11, low_latency_share=0.3)
        leaves, shape = jax.tree.flatten(links)
        bounds = np.cumsum([0, *(leaf.size for leaf in leaves)])

        @jax.jit
        def seconds(exponents):
            """[kind] with every constant scaled, so that one step suits them all."""
            parts = [exponents[i:j] for i, j in itertools.pairwise(bounds)]
            scaled = [
                leaf * jnp.exp(part.reshape(leaf.shape)) for leaf, part in zip(leaves, parts, strict=True)
            ]
            return every_kind(jax.tree.unflatten(shape, scaled), 4.0, 3.0, 3e6)

        origin, step = jnp.zeros(bounds[-1]), 1e-6
        slope = jax.jit(lambda direction: jax.jvp(seconds, (origin,), (direction,))[1])
        for direction in jnp.eye(bounds[-1]):
            difference = (seconds(step * direction) - seconds(-step * direction)) / (2 * step)
            np.testing.assert_allclose(slope(direction), difference, rtol=1e-5, atol=1e-12)


def test_one_trace_serves_every_cluster():
    traces = 0

    def seconds(links, where, size):
        nonlocal traces
        traces += 1
        return time(envelope("all_reduce", links, where), size)

    compiled = jax.jit(seconds)
    for j in range(10):
        compiled(make_links(inter=1e9 * (j + 1), in_switch=0.0), group(2 + j, 1, 8), jnp.array(1e6))
    assert traces == 1


@settings(max_examples=15)
@given(some_links, counts, counts, sizes)
def test_float32_agrees_with_float64(links, k, m, size):
    single = every_kind(links, k, m, size)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf), jnp.float64), links)
        double = every_kind(wide, k, m, size)
    np.testing.assert_allclose(single, double, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------
# One rank, nothing to send, excluded rows, and numbers out of range
# ---------------------------------------------------------------------------------------------------------

ILL = {
    "ordinary": {},
    "no links": dict.fromkeys(("intra", "inter", "host", "in_switch"), 0.0),
    "infinite links": dict.fromkeys(("intra", "inter", "host", "sums", "in_switch"), np.inf),
    "no latency": dict.fromkeys(("a_intra", "a_inter", "overhead"), 0.0),
    "infinite latency": dict.fromkeys(("a_intra", "a_inter", "overhead"), np.inf),
    "no sums": {"sums": 0.0, "copies": 0.0},
}


@pytest.mark.parametrize("values", ILL.values(), ids=ILL.keys())
@pytest.mark.parametrize(("ranks_per_node", "nodes", "size"), [(1.0, 1.0, 1e6), (4.0, 2.0, 0.0)])
def test_one_rank_or_nothing_to_send_takes_no_time_and_has_no_gradient(ranks_per_node, nodes, size, values):
    value, (slopes, slope) = value_and_slopes(make_links(**values), ranks_per_node, nodes, size)
    assert float(value) == 0.0
    for leaf in (*slopes, slope):
        np.testing.assert_array_equal(leaf, jnp.zeros_like(leaf))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
@pytest.mark.parametrize("name", ["no links", "infinite latency"])
def test_one_rank_takes_no_time_by_any_algorithm(kind, name):
    made = envelope(kind, make_links(**ILL[name]), group(1, 1, 8), algorithms=ALGORITHMS[kind])
    assert all((a + 1e6 * b == 0).all() for a, b in zip(made.latency, made.inverse_bandwidth, strict=True))


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"inter": 0.0, "a_inter": np.inf}, (8.0, 1.0)),  # one node without a network
        ({"intra": 0.0, "a_intra": np.inf}, (1.0, 8.0)),  # one GPU per node, without NVLink
        ({"low_latency_share": 0.0}, (4.0, 2.0)),  # one protocol
    ],
)
def test_what_is_absent_and_not_needed_does_no_harm(values, where):
    value, (slopes, slope) = value_and_slopes(make_links(**values), *where, 1e6)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in (*slopes, slope))


def test_a_needed_link_without_bandwidth_takes_forever():
    assert (every_kind(make_links(inter=0.0), 4.0, 2.0, 1e6) == np.inf).all()


def test_infinite_links_leave_latency():
    links = make_links(intra=np.inf, inter=np.inf, host=np.inf, in_switch=np.inf)
    assert float(every_kind(links, 8.0, 1.0, 1e9)[KINDS.index("all_reduce")]) == pytest.approx(
        (5 + 2 * 1) * US, rel=1e-5
    )


def test_nan_stays_visible():
    assert np.isnan(every_kind(make_links(), 4.0, 2.0, np.nan)).all()
    assert np.isnan(every_kind(make_links(a_inter=np.nan), 4.0, 2.0, 1e6)).all()
    assert np.isnan(every_kind(make_links(inter=np.nan), 4.0, 2.0, 1e6)).all()


def test_restrict_forces_a_row():
    where = Group(jnp.array(1.0), jnp.array(8.0))
    names = rows("all_reduce", ALGORITHMS["all_reduce"])
    made = envelope("all_reduce", make_links(), where, algorithms=ALGORITHMS["all_reduce"])
    for row, name in enumerate(names):
        mask = jnp.zeros(len(names)).at[row].set(1.0)
        alone = envelope("all_reduce", make_links(), where, algorithms=[name.split("/")[0]])
        assert float(time(restrict(made, mask), 1e6)) == pytest.approx(float(time(alone, 1e6)), rel=1e-6)
    assert float(time(restrict(made, jnp.zeros(len(names))), 1e6)) == np.inf


def test_restrict_keeps_gradients_finite():
    mask = jnp.array([0.0, 1.0])
    made = Envelope((jnp.array(1e-6), jnp.array(2e-6)), (jnp.array(1e-9), jnp.array(1e-10)))
    slopes = jax.jit(jax.grad(lambda e: time(restrict(e, mask), 1e6).sum()))(made)
    assert slopes.latency == (0.0, 1.0)
    assert slopes.inverse_bandwidth == (0.0, 1e6)
