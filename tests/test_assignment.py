"""Free assignments of layers: against every assignment there is, and what they must be in known cases."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import jax
import numpy as np
import pytest
from machines import cluster

from jaxscale import zoo
from jaxscale.errors import InfeasibleError, InputError
from jaxscale.lowering import lower
from jaxscale.network import NetworkBuilder
from jaxscale.plans import SPLITS, PlanSpec
from jaxscale.search import Candidate, Space
from jaxscale.search.assignment import Solver, best_split
from jaxscale.search.labels import _nondominated, frontiers
from jaxscale.search.refine import refine

RING = ("ring",)


def chain(layers):
    b = NetworkBuilder(f"chain{layers}", (48,))
    x = b.input
    for i in range(layers):
        x = b.relu(b.linear(x, (512, 24, 2048, 100)[i % 4]))
    return b.build()


def blocks():
    """A residual connection, then branches whose results are concatenated with what they read."""
    b = NetworkBuilder("blocks", (3, 16, 16))
    x = b.relu(b.conv(b.input, 32, 3, padding=1))
    x = b.relu(b.add(x, b.conv(b.relu(b.conv(x, 64, 1)), 32, 3, padding=1)))
    left = b.conv(x, 64, 1)
    right = b.conv(b.conv(x, 8, 1), 32, 3, padding=1)
    x = b.concat(left, right, x)
    b.linear(b.linear(b.flatten(b.max_pool(x, 2, stride=2)), 512), 10)
    return b.build()


NETWORKS = {"chain3": partial(chain, 3), "chain10": partial(chain, 10), "blocks": blocks}
NETWORKS["alexnet"] = partial(zoo.build, "alexnet", image_size=67)


@cache
def built(name, messages=None):
    network = NETWORKS[name]()
    return network, lower(network, messages=messages)


def everything(network, workload, machine, plan):
    """All assignments, their step times and memory by `predict` alone, in float64, some at a time."""
    splits = list(product((False, True), repeat=len(network.weighted)))
    solver = Solver(network, workload, machine, None, RING)
    found = [solver._predictions(plan, splits[i : i + 16]) for i in range(0, len(splits), 16)]
    times, memory = (
        np.concatenate([getattr(f, name)[:16] for f in found])[: len(splits)]
        for name in ("step_time", "peak_memory")
    )
    return splits, times, memory


def cases(seed, count):
    """Machines from network-bound to compute-bound and plans with one or several micro-batches."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        tp, dp = int(rng.choice([2, 4])), int(rng.choice([1, 2, 8]))
        micro = tp * int(rng.choice([1, 8, 64]))
        with jax.enable_x64(True):
            machine = cluster(
                peak=10 ** rng.uniform(10, 13),
                memory_bandwidth=10 ** rng.uniform(9.5, 11.5),
                bandwidth=tuple(10 ** rng.uniform(8, 11, 2)),
                latency=tuple(10 ** rng.uniform(-7, -5, 2)),
                launch=float(rng.choice([0, 2e-6])),
                gpus_per_node=int(rng.choice([1, 4, 8])),
            )
        batch = dp * micro * int(rng.choice([1, 3]))
        yield machine, PlanSpec(batch, micro, dp, tp, overlap=i % 2 == 0)


def with_capacity(machine, capacity):
    with jax.enable_x64(True):
        device = machine.device._replace(memory_capacity=np.float64(capacity))
    return machine._replace(device=device)


@pytest.mark.parametrize(("name", "count"), [(name, 10) for name in NETWORKS])
def test_no_assignment_is_faster_than_the_best_one(name, count):
    network, workload = built(name)
    solved = 0
    for machine, plan in cases(len(name), count):
        splits, times, memory = everything(network, workload, machine, plan)
        levels = np.unique(memory)
        tight, loose = (int(share * (len(levels) - 1)) for share in (0.02, 0.3))
        between = [(levels[k] + levels[k + 1]) / 2 for k in (tight, loose)]
        for capacity in (np.inf, *between, levels[0]):
            limited = with_capacity(machine, capacity)
            best, stats = best_split(network, workload, limited, plan, algorithms=RING)
            fastest = times[memory <= capacity].min()
            chosen = splits.index(best.split)
            assert stats.prediction.step_time == pytest.approx(fastest, rel=1e-9)
            assert times[chosen] == pytest.approx(fastest, rel=1e-9)
            assert memory[chosen] <= capacity
            assert stats.bound == pytest.approx(fastest, rel=1e-9)
            assert replace(best, split="data") == plan
            assert stats.dropped == 0
            solved += 1
    assert solved == 4 * count


def test_full_states_are_reported_and_the_bound_still_holds():
    network, workload = built("chain10")
    lost = 0
    for machine, plan in cases(5, 8):
        _, times, memory = everything(network, workload, machine, plan)
        capacity = np.quantile(memory, 0.5)
        fastest = times[memory <= capacity].min()
        _, stats = best_split(
            network, workload, with_capacity(machine, capacity), plan, algorithms=RING, capacity=2
        )
        lost += stats.dropped
        assert stats.bound <= fastest * (1 + 1e-9) <= stats.prediction.step_time * (1 + 2e-9)
        assert stats.most_labels <= 2
    assert lost > 0


def test_bounds_and_answers_for_gradients_in_buckets():
    network, workload = built("blocks", 2)
    for machine, plan in cases(6, 12):
        splits, times, memory = everything(network, workload, machine, plan)
        solver = Solver(network, workload, machine, None, RING)
        assert solver.bound(plan, solver.choices([plan])[0]) <= times.min() * (1 + 1e-9)
        capacity = np.quantile(memory, 0.5)
        best, stats = best_split(network, workload, with_capacity(machine, capacity), plan, algorithms=RING)
        chosen = splits.index(best.split)
        assert memory[chosen] <= capacity
        assert stats.prediction.step_time == pytest.approx(times[chosen], rel=1e-9)
        named = [splits.index(split(network)) for split in SPLITS.values()]
        assert times[chosen] <= min((times[i] for i in named if memory[i] <= capacity), default=np.inf) * (
            1 + 1e-9
        )


def alexnet():
    network = zoo.build("alexnet")
    return network, lower(network, messages=None)


@pytest.mark.parametrize(("batch", "split"), [(512, "classifier"), (4096, "data")])
def test_with_free_arithmetic_the_volume_decides(batch, split):
    """Splitting filters moves less where B (n_l + 2 n_(l-1)) < 2 W_l: in AlexNet's three linear layers for
    batches below 3351, 2730 and 891, in no convolution for B > 10 (the last one has n_l = 43264,
    n_(l-1) = 64896 and W_l = 884992)."""
    network, workload = alexnet()
    with jax.enable_x64(True):
        machine = cluster(peak=1e30, memory_bandwidth=1e30, latency=(0.0, 0.0), gpus_per_node=8)
    plan = PlanSpec(batch, batch, tp=8, overlap=False)
    best, _ = best_split(network, workload, machine, plan, algorithms=RING)
    assert best.split == SPLITS[split](network)


def test_one_weird_trick_beats_both_pure_choices():
    network, workload = alexnet()
    with jax.enable_x64(True):
        machine = cluster(bandwidth=(150e9, 150e9), gpus_per_node=8)
    plan = PlanSpec(512, 512, tp=8, overlap=False)
    best, stats = best_split(network, workload, machine, plan, algorithms=RING)
    _, times, _ = everything(network, workload, machine, plan)
    assert best.split == SPLITS["classifier"](network)
    assert stats.prediction.step_time < min(times[0], times[-1])


def test_ties_are_answered():
    network, workload = built("chain10")
    with jax.enable_x64(True):
        machine = cluster(
            peak=np.inf, memory_bandwidth=np.inf, bandwidth=(np.inf,) * 2, latency=(0.0, 0.0), launch=1e-6
        )
    plan = PlanSpec(64, 64, tp=4)
    best, stats = best_split(network, workload, machine, plan, algorithms=RING)
    _, times, _ = everything(network, workload, machine, plan)
    assert times.max() == times.min() == pytest.approx(stats.prediction.step_time)
    assert len(best.split) == 10


def test_plans_without_a_choice():
    network, workload = built("chain10")
    with jax.enable_x64(True):
        machine = cluster()
    alone, _ = best_split(network, workload, machine, PlanSpec(64, 16, dp=4), algorithms=RING)
    assert alone.split == (False,) * 10
    uneven = PlanSpec(6, 6, tp=4, split="model")
    assert best_split(network, workload, machine, uneven, algorithms=RING)[0].split == (True,) * 10


def test_what_cannot_be_is_said():
    network, workload = built("chain10")
    with jax.enable_x64(True):
        machine = cluster(gpus_per_node=8, nodes=2)
        unlinked = cluster(gpus_per_node=8, nodes=2, bandwidth=(1e9, 0.0))
    solve = partial(best_split, network, workload, algorithms=RING)
    plan = PlanSpec(64, 64, tp=4)
    with pytest.raises(
        InfeasibleError, match=r"no assignment of layers fits: a device needs at least .* and has 1 kB"
    ):
        solve(with_capacity(machine, 1e3), plan)
    with pytest.raises(InfeasibleError, match="needs 32 devices, but the cluster has 16"):
        solve(machine, PlanSpec(64, 8, dp=8, tp=4))
    with pytest.raises(InfeasibleError, match="links can carry"):
        solve(unlinked, PlanSpec(64, 16, dp=4, tp=4))
    with pytest.raises(InputError, match="at least one label"):
        solve(machine, plan, capacity=0)


def test_entangled_branches_are_refused():
    b = NetworkBuilder("entangled", (8, 4, 4))
    xs = [b.conv(b.input, 8, 1)]
    for _ in range(15):
        xs.append(b.conv(xs[-1], 8, 1))
    b.linear(b.flatten(b.add(*xs)), 10)
    network = b.build()
    machine = cluster(dtype=np.float32)
    with pytest.raises(InputError, match="tie 15 layers together"):
        best_split(network, lower(network, messages=None), machine, PlanSpec(64, 64, tp=4))
    space = Space(network, lower(network), machine, (64,), gpus=(4,))
    refined = refine(space, [])
    assert (refined.solved, refined.pruned, refined.candidates) == (0, 0, [])
    assert refined.unsolved > 0


def test_frontiers_hold_what_later_layers_need():
    assert [known for _, _, known in frontiers(4, np.array([0, 1, 2]), np.array([1, 2, 3]))] == [0, 1, 1, 1]
    order = frontiers(4, np.array([0, 0, 0, 1, 2]), np.array([1, 2, 3, 3, 3]))
    assert [(layer, set(joint)) for layer, joint, _ in order] == [
        (3, {0, 1, 2, 3}),
        (2, {0, 1, 2}),
        (1, {0, 1}),
        (0, {0}),
    ]


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_nondominated_labels_are_those_that_none_beats(columns):
    rng = np.random.default_rng(columns)
    for _ in range(4):
        state, values = rng.integers(0, 3, 300), rng.integers(0, 12, (columns, 300)).astype(float)
        values[:, rng.random(300) < 0.05] = np.inf
        kept = _nondominated(state, values)
        points = {(s, *v) for s, v in zip(state.tolist(), values.T.tolist(), strict=True)}
        beaten = {
            p for p in points for q in points
            if p != q and p[0] == q[0] and all(a <= b for a, b in zip(q[1:], p[1:], strict=True))
        }  # fmt: skip
        found = [(s, *v) for s, v in zip(state[kept].tolist(), values[:, kept].T.tolist(), strict=True)]
        assert len(found) == len(set(found))
        assert set(found) == points - beaten


@pytest.fixture(scope="module")
def searched():
    network, workload = built("alexnet")
    machine = cluster(bandwidth=(50e9, 5e9), gpus_per_node=4, nodes=4, launch=2e-6, dtype=np.float32)
    space = Space(network, workload, machine, (256, 1024), gpus=(8, 16), tp=(1, 2, 4))
    solver = Solver(network, workload, machine, None, RING)
    named = []
    for row, overlap in product(range(len(space.rows)), (False, True)):
        plan = space.plan(row, overlap)
        prediction = jax.tree.map(lambda leaf: leaf[0], solver._predictions(plan, [plan.flags(network)]))
        if prediction.feasible:
            named.append(Candidate(plan, {}, machine, prediction))
    return space, sorted(named, key=lambda c: c.prediction.step_time / c.plan.global_batch_size)[:3]


def test_refining_finds_the_best_of_all_plans(searched):
    space, named = searched
    refined = refine(space, named, algorithms=RING)
    rows = {tuple(map(int, row)) for row in space.rows[space.rows[:, 3] > 1][:, [0, 4, 2, 3]]}
    plans = [
        PlanSpec(*row, "data", overlap) for row in rows if row[1] % row[3] == 0 for overlap in (False, True)
    ]
    assert (refined.solved + refined.pruned, refined.unsolved) == (len(plans), 0)
    assert refined.solved < len(plans)

    def score(plan, prediction):
        return float(prediction.step_time) / plan.global_batch_size

    best = min(
        [
            score(p, s.prediction)
            for p, s in (
                best_split(space.network, space.workload, space.cluster, p, algorithms=RING) for p in plans
            )
        ]
        + [score(c.plan, c.prediction) for c in named]
    )
    scores = [score(c.plan, c.prediction) for c in refined.candidates]
    assert scores[0] == pytest.approx(best, rel=1e-12)
    assert scores == sorted(scores)
    assert len(scores) == len(named) == 3


def test_refining_says_what_it_left_open(searched):
    space, named = searched
    refined = refine(space, named, algorithms=RING, time_limit=0.0)
    assert refined.solved == 0
    assert refined.unsolved > 0
    assert [c.plan for c in refined.candidates] == [c.plan for c in named]
