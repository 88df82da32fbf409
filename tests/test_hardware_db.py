"""The hardware database: figures against data sheets, inheritance, overrides, and the wording of errors."""

import datetime
import math

import numpy as np
import pytest

from jaxscale import hardware_db
from jaxscale.errors import InputError
from jaxscale.hardware_db import keys, loader
from jaxscale.hardware_db.schema import GENERATIONS
from jaxscale.nouns import GENERATIONS as NUMBERED
from jaxscale.nouns import KERNEL_FAMILIES, PRECISIONS, Cluster

DEVICES, NODES = hardware_db.device_names(), hardware_db.node_names()
NETWORKS, CLUSTERS = hardware_db.network_names(), hardware_db.cluster_names()

REQUIRED_DEVICES = [
    "k40", "k80", "m40", "m60", "titan-x-maxwell", "titan-x-pascal", "titan-xp", "gtx-1080-ti", "p4",
    "p100", "p100-pcie", "v100", "v100-32gb", "v100-pcie", "t4", "rtx-2080", "rtx-3090", "titan-rtx", "a30",
    "a40", "a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "l4", "l40s", "rtx-4090",
    "rtx-pro-6000", "h100", "h100-pcie", "h200", "gh200", "b200", "b300", "gb200", "gb300", "arc-pro-b60",
    "mi25", "vega-56", "vega-frontier", "mi50", "mi100", "mi210", "mi250x", "mi300x", "rx-6800-xt",
    "tpu-v4", "tpu-v5e", "tpu-v5p",
]  # fmt: skip

REQUIRED_CLUSTERS = [
    "dgx-1-p100", "dgx-1-v100", "dgx-2", "dgx-2h", "dgx-a100", "dgx-a100-40gb", "dgx-h100", "dgx-b200",
    "summit-node", "summitdev-node", "abci-node", "p2.8xlarge", "p2.16xlarge", "p3.8xlarge", "p3.16xlarge",
    "p3dn.24xlarge", "p4d.24xlarge", "p5.48xlarge", "g4dn.12xlarge", "a2-highgpu-8g", "a3-highgpu-8g",
    "nd96asr-v4", "nd-h100-v5", "gb200-nvl72", "gcp-n1-standard-32-k80", "summit", "summitdev", "abci",
    "selene",
]  # fmt: skip

# ---------------------------------------------------------------------------------------------------------
# Every file
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REQUIRED_DEVICES)
def test_required_devices(name):
    assert hardware_db.load_device(name).memory_bandwidth_gb_per_s > 0


@pytest.mark.parametrize("name", REQUIRED_CLUSTERS)
def test_required_clusters(name):
    assert isinstance(hardware_db.cluster(name), Cluster)


def test_names_and_aliases_mean_one_thing():
    seen: dict[str, str] = {}
    for kind, names, load in (
        ("device", DEVICES, hardware_db.load_device),
        ("node", NODES, hardware_db.load_node),
        ("cluster", CLUSTERS, hardware_db.load_cluster),
        ("network", NETWORKS, hardware_db.load_network),
    ):
        for name in names:
            for word in (name, *load(name).aliases):
                assert word == word.lower() and word not in seen, (
                    f"{word} is {kind} {name} and {seen.get(word)}"
                )
                seen[word] = f"{kind} {name}"


@pytest.mark.parametrize("name", DEVICES)
def test_devices_are_physically_sane(name):
    entry = hardware_db.load_device(name)
    fp32 = entry.peak_fp32_tflop_per_s
    assert 1 < entry.vector_fp32_tflop_per_s <= fp32 * 1.0001
    for peak in (entry.peak_tf32_tflop_per_s, entry.peak_fp16_tflop_per_s, entry.peak_bf16_tflop_per_s):
        assert peak is None or peak >= fp32
    assert (entry.peak_fp8_tflop_per_s or math.inf) >= max(entry.peak_fp16_tflop_per_s or 0, fp32)
    assert 150 < entry.memory_bandwidth_gb_per_s < 10_000
    assert 4 < entry.memory_capacity_gb < 400
    assert 1 < entry.cache_capacity_mb < 300
    assert 0.5 < entry.clock_ghz < 3
    assert 5 < entry.host_bandwidth_gb_per_s <= 450
    assert 1 <= entry.launch_overhead_us <= 20
    if entry.vendor == "nvidia" and entry.generation != "kepler":
        # Cores per multiprocessor are 64 or 128, each with one multiply-add per cycle.
        cores = fp32 * 1e3 / (2 * entry.multiprocessors * entry.clock_ghz)
        assert min(abs(cores / count - 1) for count in (64, 128)) < 0.04


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_physically_sane(name):
    entry = hardware_db.load_node(name)
    assert 5 < entry.intra_node.bandwidth_gb_per_s <= 900
    assert 0 < entry.intra_node.latency_us < 20
    assert (entry.intra_node.in_switch_bandwidth_gb_per_s or 0) < entry.intra_node.bandwidth_gb_per_s
    assert entry.network is not None and 1 <= entry.nics <= 72
    assert entry.host_bandwidth_gb_per_s <= hardware_db.load_device(entry.device).host_bandwidth_gb_per_s * 3


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_physically_sane(name):
    entry = hardware_db.load_network(name)
    assert 0.1 < entry.bandwidth_gb_per_s <= 400
    assert 0.5 < entry.latency_us <= 50


@pytest.mark.parametrize(("kind", "name"), [
    *(("device", name) for name in DEVICES), *(("node", name) for name in NODES),
    *(("network", name) for name in NETWORKS), *(("cluster", name) for name in CLUSTERS),
])  # fmt: skip
def test_every_figure_has_a_source_and_a_date(kind, name):
    facts = hardware_db.describe(name)
    assert facts[0].value == kind
    assert all(len(fact.source) > 5 for fact in facts)
    date = next(fact.value for fact in facts if fact.key == "date")
    assert datetime.date(2010, 1, 1) < datetime.date.fromisoformat(date) < datetime.date(2100, 1, 1)


@pytest.mark.parametrize("name", [*NODES, *CLUSTERS])
def test_every_node_and_cluster_becomes_arrays(name):
    cluster = hardware_db.cluster(name)
    assert cluster.links.bandwidth_share.shape == cluster.links.latency.shape == (2, 2)
    assert np.all(np.asarray(cluster.links.bandwidth) > 0)
    assert cluster.links.bandwidth.dtype == cluster.nodes.dtype == np.float32


# ---------------------------------------------------------------------------------------------------------
# Figures from data sheets, in SI
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fp32", "tf32", "fp16", "bf16", "fp8", "bandwidth"),
    [
        ("p100", 10.6, 10.6, 21.2, 10.6, 21.2, 732),
        ("v100", 15.7, 15.7, 125, 15.7, 125, 900),
        ("v100-pcie", 14, 14, 112, 14, 112, 900),
        ("t4", 8.1, 8.1, 65, 8.1, 65, 320),
        ("a100-sxm4-40gb", 19.5, 156, 312, 312, 312, 1555),
        ("a100-sxm4-80gb", 19.5, 156, 312, 312, 312, 2039),
        ("l40s", 91.6, 183, 362.05, 362.05, 733, 864),
        ("h100", 66.9, 494.7, 989.4, 989.4, 1978.9, 3350),
        ("gb200", 80, 1250, 2500, 2500, 5000, 8000),
        ("mi100", 46.1, 46.1, 184.6, 92.3, 184.6, 1228.8),
        ("gtx-1080-ti", 11.34, 11.34, 11.34, 11.34, 11.34, 484),
    ],
)
def test_known_devices(name, fp32, tf32, fp16, bf16, fp8, bandwidth):
    device = hardware_db.device(name)
    np.testing.assert_allclose(device.peak_flops, np.array([fp32, tf32, fp16, bf16, fp8]) * 1e12, rtol=1e-6)
    np.testing.assert_allclose(device.memory_bandwidth, bandwidth * 1e9, rtol=1e-6)
    assert set(device.utilization) == set(KERNEL_FAMILIES)


def test_bf16_without_native_support_runs_in_tf32_or_fp32_never_in_fp16():
    row = PRECISIONS.index("bf16")
    assert hardware_db.device("v100").peak_flops[row] == hardware_db.device("v100").peak_flops[0]


def test_fp8_without_fp16_runs_in_bf16():
    tpu = hardware_db.device("tpu-v5p")
    assert tpu.peak_flops[PRECISIONS.index("fp8")] == np.float32(459e12)
    # FP16 is held by TF32, here three BF16 passes.
    assert tpu.peak_flops[PRECISIONS.index("fp16")] == np.float32(153e12)


def test_the_format_in_which_a_device_runs_another():
    """V100 has FP32 and FP16, H100 also TF32, BF16 and FP8 (data sheets)."""

    def native(device: str) -> list[str]:
        entry = hardware_db.load_device(device)
        return [loader.runs_in(name, lambda each: loader.has_rate(entry, each)) for name in PRECISIONS]

    assert native("h100") == list(PRECISIONS)
    assert dict(zip(PRECISIONS, native("v100"), strict=True)) == {
        "fp32": "fp32",
        "tf32": "fp32",
        "fp16": "fp16",
        "bf16": "fp32",
        "fp8": "fp16",
    }


@pytest.mark.parametrize("name", DEVICES)
def test_generations_belong_to_their_vendor(name):
    entry = hardware_db.load_device(name)
    assert entry.generation in GENERATIONS.get(entry.vendor, GENERATIONS["others"])


def test_vector_rates():
    v100 = hardware_db.device("v100")
    np.testing.assert_allclose(v100.vector_flops, np.array([15.7, 15.7, 31.4, 15.7, 15.7]) * 1e12, rtol=1e-6)
    mi210 = hardware_db.device("mi210")
    np.testing.assert_allclose(mi210.vector_flops, 22.6e12, rtol=1e-6)


def test_one_die_is_one_device():
    # K80 board: 8.74 TFLOP/s, 480 GB/s, 24 GB less ECC; MI250X module: 383 TFLOP/s FP16, 3276.8 GB/s.
    k80 = hardware_db.load_device("k80")
    assert k80.peak_fp32_tflop_per_s == 8.74 / 2 and k80.memory_bandwidth_gb_per_s == 480 / 2
    assert 11 < k80.memory_capacity_gb < 12.9
    gcd = hardware_db.load_device("mi250x")
    assert gcd.peak_fp16_tflop_per_s == 383 / 2 and gcd.memory_bandwidth_gb_per_s == 3276.8 / 2


def test_capacity_is_what_the_driver_reports():
    # 16160 MiB of a V100, 40536 MiB of an A100.
    assert hardware_db.load_device("v100").memory_capacity_gb == pytest.approx(16160 * 2**20 / 1e9, abs=0.01)
    a100 = hardware_db.load_device("a100-sxm4-40gb")
    assert a100.memory_capacity_gb == pytest.approx(40536 * 2**20 / 1e9, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gpus", "in_node", "between"),
    [
        ("dgx-1-p100", 8, 80e9, 4 * 12.5e9 / 8),
        ("dgx-1-v100", 8, 150e9, 4 * 12.5e9 / 8),
        ("dgx-2", 16, 150e9, 8 * 12.5e9 / 16),
        ("dgx-a100", 8, 300e9, 25e9),
        ("dgx-h100", 8, 450e9, 50e9),
        ("dgx-b200", 8, 900e9, 50e9),
        ("gb200-nvl72", 72, 900e9, 50e9),
        ("abci-node", 4, 150e9, 2 * 12.5e9 / 4),
        ("p4d.24xlarge", 8, 300e9, 400e9 / 8 / 8),
        ("p5.48xlarge", 8, 450e9, 3200e9 / 8 / 8),
    ],
)
def test_links_are_per_gpu_and_one_direction(name, gpus, in_node, between):
    cluster = hardware_db.cluster(name)
    np.testing.assert_allclose(cluster.links.bandwidth, [in_node, between], rtol=1e-6)
    parts = hardware_db.cluster_parts(name)
    assert parts.gpus_per_node == gpus
    assert parts.node is not None and parts.network is not None
    assert keys.si(parts.node.intra_node, "bandwidth_gb_per_s") == in_node
    assert keys.si(parts.network, "bandwidth_gb_per_s") * parts.nics / gpus == pytest.approx(between)


def test_summit_has_27648_gpus():
    cluster = hardware_db.cluster("summit")
    assert float(cluster.nodes) == 4608 and float(cluster.nodes * cluster.gpus_per_node) == 27648


# ---------------------------------------------------------------------------------------------------------
# From a name to a cluster
# ---------------------------------------------------------------------------------------------------------


def test_a_node_is_replicated():
    cluster = hardware_db.cluster("dgx-1-v100", gpus=64)
    assert (float(cluster.nodes), float(cluster.gpus_per_node)) == (8, 8)
    part = hardware_db.cluster("dgx-1-v100", gpus=4)
    assert (float(part.nodes), float(part.gpus_per_node)) == (1, 4)
    large = hardware_db.cluster("dgx-1-v100", gpus=8 * 10**9)
    assert float(large.nodes) == 10**9


@pytest.mark.parametrize(
    ("gpus", "words"), [(12, ("8 or 16", "12")), (9, ("8 or 16",)), (0, ("0", "at least 1")), (-8, ("-8",)),
                        (8.0, ("8.0", "whole number")), (math.nan, ("nan",)), (True, ("True",))]
)  # fmt: skip
def test_impossible_numbers_of_gpus(gpus, words):
    with pytest.raises(InputError) as caught:
        hardware_db.cluster("dgx-1-v100", gpus=gpus)
    assert all(word in str(caught.value) for word in words)


def test_a_named_cluster_has_an_end():
    with pytest.raises(InputError, match="216 GPUs"):
        hardware_db.cluster("summitdev", gpus=220)
    with pytest.raises(InputError, match="nearest 212 or 216"):
        hardware_db.cluster("summitdev", gpus=214)
    assert float(hardware_db.cluster("summitdev", gpus=216).nodes) == 54


def test_another_network():
    own = hardware_db.cluster_parts("dgx-1-v100", gpus=16)
    assert own.network == hardware_db.load_network("edr") and own.nics == 4
    faster = hardware_db.cluster_parts("dgx-1-v100", gpus=16, network="hdr")
    assert faster.network == hardware_db.load_network("hdr") and faster.nics == 4
    one = hardware_db.cluster_parts("dgx-1-v100", gpus=16, network="1xethernet-10g")
    assert one.network == hardware_db.load_network("10gbe") and one.nics == 1
    with pytest.raises(InputError, match="did you mean 'hdr'"):
        hardware_db.cluster("dgx-1-v100", network="hdrr")


def test_a_device_alone():
    single = hardware_db.cluster("v100")
    assert float(single.nodes) == float(single.gpus_per_node) == 1
    assert np.all(np.asarray(single.links.bandwidth) == 0)
    with pytest.raises(InputError, match=r"nothing connects 4.*dgx-1-v100.*edr"):
        hardware_db.cluster("v100", gpus=4)
    spread = hardware_db.cluster("v100", gpus=4, network="edr")
    assert float(spread.nodes) == 4 and float(spread.gpus_per_node) == 1
    assert np.asarray(spread.links.bandwidth)[0].max() == 0 < np.asarray(spread.links.bandwidth)[1].min()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("dgx-a10", "dgx-a100"), ("DGX_H100", "dgx-h100"), ("summitt", "summit"), ("v10", "v100")],
)
def test_nearest_name(given, meant):
    with pytest.raises(
        InputError, match=f"unknown cluster or node or device '{given}': did you mean '{meant}'"
    ):
        hardware_db.cluster(given)


def test_names_ignore_case():
    assert hardware_db.load_device("V100") == hardware_db.load_device("v100-sxm2-16gb")


def test_switches_that_sum():
    assert float(hardware_db.cluster("dgx-h100").links.in_switch_bandwidth) > 0
    assert float(hardware_db.cluster("dgx-a100").links.in_switch_bandwidth) == 0


def test_generations_are_numbered_like_the_schema_names_them():
    named = (*GENERATIONS["nvidia"], *GENERATIONS["amd"])
    assert named == NUMBERED
    assert int(hardware_db.device("h100-sxm5-80gb").generation) == NUMBERED.index("hopper")
