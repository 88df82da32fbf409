"""Collectives against the communication of the seed papers' models."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_links import envelope, make_links

from jaxscale.collectives import group, time

# ---------------------------------------------------------------------------------------------------------
# Values of the seed papers' models (SEEDS conventions: flat network, one message per layer)
# ---------------------------------------------------------------------------------------------------------

ALEXNET = [
    121 * 3 * 96 + 96, 25 * 96 * 256 + 256, 9 * 256 * 384 + 384, 9 * 384 * 384 + 384, 9 * 384 * 256 + 256,
    9216 * 4096 + 4096, 4096 * 4096 + 4096, 4096 * 1000 + 1000,
]  # fmt: skip
"""Parameters per layer, biases included."""


def vgg(*filters):
    channels = [3, *filters]
    layers = [9 * i * o + o for i, o in itertools.pairwise(channels)]
    return [*layers, 25088 * 4096 + 4096, 4096 * 4096 + 4096, 4096 * 1000 + 1000]


NETWORKS = {
    "alexnet": ALEXNET,
    "vgg11": vgg(64, 128, 256, 256, 512, 512, 512, 512),
    "vgg16": vgg(64, 64, 128, 128, *[256] * 3, *[512] * 6),
}
HARDWARE = {  # FLOP/s, B/s, s
    "pydtnn_default": (4e12, 0.125e9, 0.5e-6),
    "v100_fp32_100Gb": (15.7e12, 12.5e9, 1e-6),
    "v100_tc_100Gb": (125e12, 12.5e9, 1e-6),
}
SEED_NAMES = {"bta": "rabenseifner", "vdg": "flat_tree", "ring": "ring"}


def flat(bandwidth, latency, sums=np.inf):
    return make_links(bandwidth, bandwidth, latency, latency, overhead=0.0, sums=sums)


def all_reduce_per_layer(network, hardware, ranks, algorithm):
    sums, bandwidth, latency = HARDWARE[hardware]
    where = group(ranks, 1, gpus_per_node=1)
    made = envelope("all_reduce", flat(bandwidth, latency, sums), where, algorithms=[SEED_NAMES[algorithm]])
    return float(jnp.sum(time(made, 4.0 * jnp.array(NETWORKS[network], float)[:, None])))


@pytest.mark.parametrize(
    ("network", "hardware", "ranks", "algorithm", "seconds"),
    [
        ("alexnet", "v100_fp32_100Gb", 2, "ring", 0.04837284563490445 - 0.028393788983439486),
        ("alexnet", "v100_fp32_100Gb", 128, "ring", 0.07003997952619029 - 0.028393788983439486),
        ("alexnet", "pydtnn_default", 8, "bta", 3.63356139412675 - 0.14033648486399997),
        ("vgg11", "v100_fp32_100Gb", 32, "bta", 0.2738592792736217 - 0.19136581277803255),
        ("vgg16", "v100_tc_100Gb", 32, "vdg", 0.536492769443847 - 0.09366309434208711),
        ("vgg16", "v100_tc_100Gb", 8, "ring", 0.1713682874848951 - 0.09366309434208711),
    ],
)
def test_data_parallel_seed(network, hardware, ranks, algorithm, seconds):
    with jax.enable_x64(True):
        assert all_reduce_per_layer(network, hardware, ranks, algorithm) == pytest.approx(seconds, rel=1e-9)


def test_data_parallel_seed_everywhere(shared_data):
    golden = json.loads((shared_data / "seeds/golden_pydtnn_dp.json").read_text())
    checked = 0
    with jax.enable_x64(True):
        for key, values in golden.items():
            network, hardware, variant = key.split("|")
            for run, total in values.items():
                if variant == "maxroof" and run.endswith("|blk"):
                    ranks, algorithm, _ = run.split("|")
                    predicted = all_reduce_per_layer(network, hardware, int(ranks[1:]), algorithm)
                    assert predicted == pytest.approx(total - values["t1"], rel=1e-9), (key, run)
                    checked += 1
    assert checked == 108


# Outputs per sample of every layer, and inputs of every layer but the first (pooled where a pool precedes).
MODEL_PARALLEL = {
    "alexnet": (
        [64 * 55**2, 192 * 27**2, 384 * 13**2, 384 * 13**2, 256 * 13**2, 4096, 4096, 1001],
        [64 * 27**2, 192 * 13**2, 384 * 13**2, 384 * 13**2, 9216, 4096, 4096],
    ),
    "vgg16": (
        [64 * 224**2] * 2 + [128 * 112**2] * 2 + [256 * 56**2] * 3 + [512 * 28**2] * 3 + [512 * 14**2] * 3
        + [4096, 4096, 1001],
        [64 * 224**2, 64 * 112**2, 128 * 112**2, 128 * 56**2] + [256 * 56**2] * 2
        + [256 * 28**2, 512 * 28**2, 512 * 28**2] + [512 * 14**2] * 3 + [25088, 4096, 4096],
    ),
}  # fmt: skip
MODEL_PARALLEL_LINKS = {
    "v100fp32_100Gb": (12.5e9, 1e-6),
    "v100fp32_nvlink150GB": (150e9, 5e-6),
    "pydtnn_default": (0.125e9, 0.5e-6),
}


def model_parallel_messages(network, hardware, ranks, batch=64):
    outputs, inputs = (4.0 * batch * jnp.array(sizes, float) for sizes in MODEL_PARALLEL[network])
    links, where = flat(*MODEL_PARALLEL_LINKS[hardware]), group(ranks, 1, gpus_per_node=1)
    gathers = time(envelope("all_gather", links, where), outputs[:, None])
    reductions = time(envelope("all_reduce", links, where, algorithms=["ring"]), inputs[:, None])
    return float(jnp.sum(gathers) + jnp.sum(reductions))


@pytest.mark.parametrize(
    ("network", "hardware", "ranks", "seconds"),
    [
        ("alexnet", "v100fp32_100Gb", 8, 0.017508176),
        ("alexnet", "v100fp32_nvlink150GB", 32, 0.005011129333333333),
        ("vgg16", "v100fp32_100Gb", 2, 0.32246191295999993),
        ("vgg16", "pydtnn_default", 16, 60.45332868),
    ],
)
def test_model_parallel_seed(network, hardware, ranks, seconds):
    with jax.enable_x64(True):
        assert model_parallel_messages(network, hardware, ranks) == pytest.approx(seconds, rel=1e-9)


def test_model_parallel_seed_everywhere(shared_data):
    golden = json.loads((shared_data / "seeds/golden_mp.json").read_text())
    with jax.enable_x64(True):
        for key, values in golden.items():
            for ranks, (_, seconds) in values.items():
                predicted = model_parallel_messages(*key.split("|"), int(ranks))
                assert predicted == pytest.approx(seconds, rel=1e-9), (key, ranks)
