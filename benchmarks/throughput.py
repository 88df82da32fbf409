"""How many plans per second the search judges: valid, distinct, composed ones only.

The space: networks x global batch x micro-batch x data x model split x assignment x overlap x hardware.
What is timed is `evaluate` as a user calls it, compilation apart: tables, streaming and the reduction.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

import common

NETWORKS = ("alexnet", "vgg16", "resnet50", "inception-v3")
BATCHES = [2**i for i in range(6, 16)] + [3 * 2**i for i in range(6, 13)]
GPUS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 3
"""Whose best is reported; the first one also compiles."""


def spaces(messages: int | None, points: int) -> list:
    """One space per network; `points` hardware points each."""
    from jaxscale import hardware_db, zoo
    from jaxscale.lowering import lower
    from jaxscale.search import Space

    machine = hardware_db.cluster("dgx-1-v100", gpus=64)
    hardware = {
        "inter_node_bandwidth": list(np.geomspace(1e9, 1e11, points // 16)),
        "intra_node_bandwidth": list(np.geomspace(1e10, 1e12, 8)),
        "memory_bandwidth": [0.9e12, 1.8e12],
    }
    return [
        Space(network, lower(network, messages=messages), machine, BATCHES, GPUS, hardware=hardware)
        for network in map(zoo.build, NETWORKS)
    ]


def rate(messages: int | None, points: int) -> dict[str, float]:
    """Candidates per second over all networks, the best of some rounds, and what it took."""
    from jaxscale.search import TopK, evaluate

    every = spaces(messages, points)
    best = compiling = 0.0
    for _ in range(ROUNDS):
        done = [evaluate(space, [TopK(10)]) for space in every]
        compiling = max(compiling, sum(d.compile_seconds for d in done))
        best = max(best, sum(d.candidates for d in done) / sum(d.seconds for d in done))
    return {
        "candidates_per_second": best,
        "candidates": sum(space.size for space in every),
        "compile_seconds": compiling,
        "resident_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def apart(cores: int, *arguments: object, platform: str = "") -> dict[str, float]:
    """`rate` in a process of its own on so many cores, so that neither threads nor memory mix.

    Args:
        cores: how many it may use.
        arguments: of `rate`.
        platform: "cpu" or "cuda" as JAX_PLATFORMS takes them; what the environment says when empty.
    """
    program = (
        f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"
        f"import json, throughput; print(json.dumps(throughput.rate(*{arguments!r})))"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-c", program]
    with tempfile.TemporaryDirectory() as cache:
        # Every round compiles anew, which only the first has to pay for.
        kept = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        kept |= {"JAX_PLATFORMS": platform} if platform else {}
        run = subprocess.run(
            command, cwd=here, env=os.environ | kept, capture_output=True, text=True, check=True
        )
    return json.loads(run.stdout)


def tier_two(space) -> dict[str, float]:
    """Per candidate, what follows the tables: FLOPs, the rate in numpy, and the result against `predict`.

    Gradient messages are worked out once per pair of shard and group, the rest per row, each on one tile.
    """
    import jax
    import jax.numpy as jnp

    from jaxscale.engine import (
        GRADIENT_ALGORITHMS,
        compose,
        exchange,
        gradient_envelopes,
        predict,
        reduce_gradients,
    )
    from jaxscale.kernels import Roofline
    from jaxscale.search import TopK, time_per_sample
    from jaxscale.search.stream import Search, at_rows, of_pairs

    search = Search(space, [TopK(1)], time_per_sample, Roofline(), GRADIENT_ALGORITHMS)
    table, links, tile, pairs = (
        jax.tree.map(lambda leaf: leaf[0], leaves)
        for leaves in (
            search.price(search._clusters(0, 0, 1)),
            search._lane_clusters(0),
            search.tiles,
            search.pairs,
        )
    )
    exchanged = exchange(table, links, search.shard.tp, search.algorithms)
    envelopes = gradient_envelopes(table, links, search.groups, search.algorithms)
    every = pairs._replace(shard=search.pairs.shard.reshape(-1), group=search.pairs.group.reshape(-1))
    overlapped = jnp.float32(1.0)
    reduction = reduce_gradients(*of_pairs(every, table, exchanged, envelopes), overlapped)
    plan = tile.plan._replace(overlap=overlapped)
    stages = (
        (reduce_gradients, gradients_in_numpy, (*of_pairs(pairs, table, exchanged, envelopes), overlapped)),
        (
            lambda *of_row: time_per_sample(compose(*of_row), of_row[-1]),
            compose_in_numpy,
            (*at_rows(tile, table, exchanged, reduction), links, plan),
        ),
    )
    shares = len(space.replicated[0]) / len(space.rows) / len(pairs.shard), 1 / len(tile.shard)

    flops = in_numpy = 0.0
    for (stage, stage_in_numpy, arguments), share in zip(stages, shares, strict=True):
        compiled = jax.jit(stage).lower(*arguments).compile()
        arrays = jax.tree.map(np.asarray, arguments)
        for ours, theirs in zip(
            jax.tree.leaves(compiled(*arguments)), jax.tree.leaves(stage_in_numpy(*arrays)), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)
        flops += share * dict(compiled.cost_analysis() or {})["flops"] / search.lanes
        in_numpy += share * seconds(lambda: stage_in_numpy(*arrays)) / search.lanes  # noqa: B023

    row, lane = len(tile.shard) // 2, search.lanes // 2
    spec = space.plan(int(search.blocks.rows.reshape(-1)[row]), True)
    point = jax.tree.map(lambda leaf: leaf[..., min(lane, leaf.shape[-1] - 1)], links)
    alone = predict(space.workload, point, spec.lower(space.network), algorithms=search.algorithms)
    block = compose(*at_rows(tile, table, exchanged, reduction), links, plan).step_time[row, lane]
    return {
        "flops_per_candidate": flops,
        "numpy.candidates_per_second": 1 / in_numpy,
        "predict.relative_difference": abs(float(block) / float(alone.step_time) - 1),
    }


def seconds(run) -> float:
    """Median time of a call."""
    run()
    laps = []
    for _ in range(20):
        start = time.perf_counter()
        run()
        laps.append(time.perf_counter() - start)
    return float(np.median(laps))


def gradients_in_numpy(table, exchanged, envelopes, overlap) -> tuple[np.ndarray, np.ndarray]:
    """`reduce_gradients`, statement by statement, in numpy."""
    backward = table.backward + exchanged.backward
    ready = table.ready + exchanged.ready
    net = link_time = np.zeros(1, np.float32)
    for j in range(len(ready)):
        message = np.zeros(1, np.float32)
        for who, size in table.gradients.items():
            rows = zip(envelopes[who].latency, envelopes[who].inverse_bandwidth, strict=True)
            fastest = np.min([latency + size[j] * inverse for latency, inverse in rows], axis=0)
            message = message + np.where(size[j] > 0, fastest, 0)
        net = np.maximum(net, backward + overlap * (ready[j] - backward)) + message
        link_time = link_time + message
    return np.maximum(net - backward, 0), link_time


def compose_in_numpy(table, exchanged, reduction, cluster, plan) -> np.ndarray:
    """`compose` and its score, statement by statement, in numpy."""
    micro_batches = plan.global_batch_size / (plan.dp * plan.micro_batch_size)
    compute = micro_batches * (table.forward + table.backward + exchanged.forward + exchanged.backward)
    step = compute + reduction.exposed + table.update
    memory = sum(table.memory[:-1]) + np.where(plan.dp * plan.tp > 1, table.memory.buffers, 0)
    fits = (memory <= cluster.device.memory_capacity) & (
        plan.dp * plan.tp <= cluster.nodes * cluster.gpus_per_node
    )
    return np.where(fits, step / plan.global_batch_size, np.inf)


def peak_flops() -> float:
    """FLOP/s of a large float32 product on all cores: what this machine reaches at best."""
    n = 2048
    a = np.ones((n, n), np.float32)
    laps = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        laps.append(time.perf_counter() - start)
    return 2 * n**3 / min(laps)


def main() -> None:
    parser = common.parser(__doc__)
    args = parser.parse_args()
    points = 1536 if args.quick else 8192
    cores = len(os.sched_getaffinity(0))
    buckets, layers = apart(cores, 8, points), apart(cores, None, points)
    one_core = apart(1, 8, points // 4)
    inner = tier_two(spaces(8, points)[0])
    figures = {
        "cnn.space.candidates": buckets["candidates"],
        "cnn.all_cores.candidates_per_second": buckets["candidates_per_second"],
        "cnn.one_core.candidates_per_second": one_core["candidates_per_second"],
        "cnn.per_layer.all_cores.candidates_per_second": layers["candidates_per_second"],
        "cnn.compile.seconds": buckets["compile_seconds"],
        "cnn.resident_memory.bytes": buckets["resident_memory_bytes"],
        "cnn.numpy.ratio": one_core["candidates_per_second"] / inner["numpy.candidates_per_second"],
        "cnn.flops_per_candidate": inner["flops_per_candidate"],
        "cnn.peak_flops.share": inner["flops_per_candidate"]
        * buckets["candidates_per_second"]
        / peak_flops(),
        "cnn.predict.relative_difference": inner["predict.relative_difference"],
    }
    common.report("throughput", figures, args)


if __name__ == "__main__":
    main()
