"""The hardware database: figures against data sheets, inheritance, overrides, and the wording of errors."""

import datetime
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxscale import hardware_db
from jaxscale.errors import InputError
from jaxscale.hardware_db import keys, links, loader, store
from jaxscale.hardware_db.schema import DeviceEntry, NodeEntry
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


# ---------------------------------------------------------------------------------------------------------
# Files of the user
# ---------------------------------------------------------------------------------------------------------

NODE = """
device = "v100"
gpus = 2
host_bandwidth_gb_per_s = 12.0
source = "my desk"
date = 2024-01-31
[intra_node]
link = "pcie3"
bandwidth_gb_per_s = 11.0
latency_us = 4.0
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.PATH_VARIABLE, os.pathsep.join([str(tmp_path), ""]))
    return tmp_path


def test_a_file_given_by_its_path(tmp_path):
    path = write(tmp_path / "my_node.toml", NODE)
    cluster = hardware_db.cluster(str(path))
    assert float(cluster.gpus_per_node) == 2 and float(cluster.links.host_bandwidth) == 12e9
    with pytest.raises(InputError, match="names no network for 2 nodes"):
        hardware_db.cluster(str(path), gpus=4)
    assert float(hardware_db.cluster(str(path), gpus=4, network="edr").links.bandwidth[1]) > 0


def test_a_new_entry_is_found_and_listed(folder):
    write(folder / "nodes/my-node.toml", 'aliases = ["desk"]\n' + NODE)
    assert "my-node" in hardware_db.node_names()
    assert float(hardware_db.cluster("desk").gpus_per_node) == 2
    assert any(line.name == "my-node" for line in hardware_db.summary())


def test_an_override_inherits_only_from_its_base(folder):
    override = 'base = "v100-sxm2-16gb"\npower_w = 250.0\nsource = "capped by us"\ndate = 2024-01-31\n'
    write(folder / "devices/v100-sxm2-16gb.toml", override)
    capped = hardware_db.load_device("v100-sxm2-16gb")
    assert capped.power_w == 250 and capped.memory_bandwidth_gb_per_s == 900
    origin = {fact.key: fact.source for fact in hardware_db.describe("v100-sxm2-16gb")}
    assert origin["power"] == "capped by us"
    assert "NVIDIA V100 data sheet" in origin["memory_bandwidth"] and "16160" in origin["memory_capacity"]
    assert hardware_db.load_device("v100").power_w == 250, "aliases lead to the override"
    assert float(hardware_db.cluster("dgx-1-v100").device.memory_bandwidth) == np.float32(900e9)


def test_a_partial_override_is_not_merged_silently(folder):
    write(folder / "devices/v100-sxm2-16gb.toml", 'power_w = 250.0\nsource = "us"\ndate = 2024-01-31\n')
    with pytest.raises(InputError, match=r"'vendor' is missing.*base"):
        hardware_db.load_device("v100-sxm2-16gb")


def test_provenance_is_not_inherited(folder):
    write(folder / "devices/mine.toml", 'base = "v100"\npower_w = 250.0\n')
    with pytest.raises(InputError, match="'source' is missing"):
        hardware_db.load_device("mine")


def test_bases_that_go_in_a_circle(folder):
    for name, base in (("left", "right"), ("right", "left")):
        write(folder / f"devices/{name}.toml", f'base = "{base}"\nsource = "us"\ndate = 2024-01-31\n')
    with pytest.raises(InputError, match="leads back to the file itself"):
        hardware_db.load_device("left")


def test_a_base_that_is_nothing_but_the_file_itself(folder):
    write(folder / "devices/mine.toml", 'base = "mine"\nsource = "us"\ndate = 2024-01-31\n')
    with pytest.raises(InputError, match="unknown device 'mine'"):
        hardware_db.load_device("mine")


def test_an_alias_in_any_spelling_of_toml(folder):
    write(folder / "nodes/my-node.toml", 'aliases = ["d\\u0065sk"]\n' + NODE)
    assert hardware_db.load_node("desk").gpus == 2


@pytest.mark.parametrize("name", ["", " ", "..", "/", "a" * 10_000, "*", "nodes/dgx-2"])
def test_odd_names(name):
    with pytest.raises(InputError, match="unknown cluster or node or device") as caught:
        hardware_db.cluster(name)
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_read_again(folder):
    path = write(folder / "nodes/my-node.toml", NODE)
    assert hardware_db.load_node("my-node").gpus == 2
    path.write_text(NODE.replace("gpus = 2", "gpus = 16"))
    assert hardware_db.load_node("my-node").gpus == 16


def test_a_folder_that_is_not_there(monkeypatch):
    monkeypatch.setenv(store.PATH_VARIABLE, "nowhere")
    with pytest.raises(InputError, match="JAXSCALE_HARDWARE_PATH names 'nowhere'"):
        hardware_db.device_names()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('device = "v100', ("is not a TOML file",)),
        ("\x00\x01", ("is not a TOML file",)),
        (b"\xff\xfe\x00", ("is not a TOML file",)),
        (None, ("cannot read", "no such file")),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, words):
    path = tmp_path / "broken.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        hardware_db.cluster(str(path))
    assert all(word in str(caught.value) for word in ("broken.toml", *words))


# ---------------------------------------------------------------------------------------------------------
# Schema errors name the file, the key and what is allowed
# ---------------------------------------------------------------------------------------------------------

DEVICE = (store.PACKAGE_FOLDER / "devices/v100-sxm2-16gb.toml").read_text()
BANDWIDTH = "memory_bandwidth_gb_per_s = 900.0"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (BANDWIDTH, "memory_bandwidth_gbit_per_s = 7200.0",
         ("memory_bandwidth_gbit_per_s", "did you mean 'memory_bandwidth_gb_per_s'")),
        (BANDWIDTH, BANDWIDTH + "\ncolour = 3", ("'colour' is not a key of a device", "memory_capacity_gb")),
        (BANDWIDTH, "", ("'memory_bandwidth_gb_per_s' is missing", "GB/s")),
        ("= 900.0", "= -900.0", ("memory_bandwidth_gb_per_s", "-900.0", "number in GB/s from 1e-09")),
        ("= 900.0", "= 0.0", ("memory_bandwidth_gb_per_s", "0.0", "a finite number in GB/s")),
        ("= 900.0", "= nan", ("memory_bandwidth_gb_per_s", "nan", "a finite number in GB/s")),
        ("= 900.0", "= inf", ("memory_bandwidth_gb_per_s", "inf", "a finite number in GB/s")),
        ("= 900.0", "= -inf", ("memory_bandwidth_gb_per_s", "-inf", "a finite number in GB/s")),
        ("= 900.0", "= 1e300", ("memory_bandwidth_gb_per_s", "1e+300", "up to")),
        ("= 900.0", "= 1e-300", ("memory_bandwidth_gb_per_s", "1e-300", "from")),
        ("= 900.0", '= "900 GB/s"', ("memory_bandwidth_gb_per_s", "'900 GB/s'", "a finite number in GB/s")),
        ("= 900.0", "= true", ("memory_bandwidth_gb_per_s", "True", "a finite number in GB/s")),
        ("= 900.0", "= [900.0]", ("memory_bandwidth_gb_per_s", "a finite number in GB/s")),
        ("multiprocessors = 80", "multiprocessors = 80.5", ("multiprocessors", "80.5", "a whole number")),
        ("multiprocessors = 80", "multiprocessors = 0", ("multiprocessors", "0", "1")),
        ('"volta"', '"voltaire"', ("generation", "'voltaire'", "'volta'", "'turing'")),
        ("date = 20", 'date = "today" # 20', ("date", "'today'", "a date written like")),
        ("[sources]", "[sources]\nmemory_width = 'x'", ("sources", "memory_width", "keys of the file")),
        ("usd = ", "usd = -", ("price[0].usd", "a finite number")),
        ("usd = ", "eur = 3\nusd = ", ("price[0].eur", "not a key", "usd, kind, date, source")),
        ('"per_hour"', '"rent"', ("price[0].kind", "'rent'", "'per_hour'")),
        ("[[price]]", "[price]", ("price", "a list")),
    ],
)  # fmt: skip
def test_schema_errors(tmp_path, old, new, words):
    assert old in DEVICE
    path = write(tmp_path / "card.toml", DEVICE.replace(old, new))
    with pytest.raises(InputError) as caught:
        hardware_db.load_device(str(path))
    message = str(caught.value)
    assert all(word in message for word in ("card.toml", *words)), message
    assert "\n" not in message and "pydantic" not in message


def test_errors_inside_a_table(tmp_path):
    path = write(tmp_path / "node.toml", NODE.replace("latency_us = 4.0", "latency_ms = 4.0"))
    with pytest.raises(
        InputError, match=r"'intra_node.latency_ms' is not a key .* did you mean 'latency_us'"
    ):
        hardware_db.load_node(str(path))


def test_integers_are_numbers(tmp_path):
    path = write(tmp_path / "card.toml", DEVICE.replace("= 900.0", "= 900"))
    assert hardware_db.load_device(str(path)).memory_bandwidth_gb_per_s == 900


def test_every_key_with_a_unit_has_a_known_one():
    ends = ("flop_per_s", "_per_s", "_gb", "_us", "_w", "_ghz", "_mb", "_mm2", "_nm")
    for model in (DeviceEntry, NodeEntry):
        for key in model.model_fields:
            assert bool(keys.split(key)[1]) == key.endswith(ends)


# ---------------------------------------------------------------------------------------------------------
# Fitted constants and utilization, where such files exist
# ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the database to which a test may add files."""
    for kind in store.FOLDERS.values():
        (tmp_path / kind).symlink_to(store.PACKAGE_FOLDER / kind)
    monkeypatch.setattr(store, "PACKAGE_FOLDER", tmp_path)
    links._collectives.cache_clear()
    loader._utilization.cache_clear()
    yield tmp_path
    links._collectives.cache_clear()
    loader._utilization.cache_clear()


def test_defaults_of_the_protocols(package):
    cluster = hardware_db.cluster("dgx-1-v100", gpus=16)
    np.testing.assert_allclose(cluster.links.bandwidth, [150e9, 6.25e9], rtol=1e-6)
    np.testing.assert_allclose(cluster.links.bandwidth_share, [[0.5, 1.0], [0.5, 1.0]])
    np.testing.assert_allclose(cluster.links.latency, [[1e-6, 3e-6], [1.3e-6, 3.9e-6]], rtol=1e-6)
    np.testing.assert_allclose(cluster.links.call_overhead, 5e-6, rtol=1e-6)
    assert all((shares == 1).all() for shares in cluster.device.utilization.values())


def test_fitted_constants_replace_the_defaults(package):
    write(
        package / "collectives.toml",
        """
[nvlink4]
low_latency = { latency_us = 0.7, bandwidth_share = 0.3, call_overhead_us = 9.0 }
simple = { latency_us = 4.0, bandwidth_share = 0.8, call_overhead_us = 20.0 }
in_switch_share = 0.6
copy_ratio = 2.0
source = "a fit"
date = 2024-01-31
""",
    )
    links_ = hardware_db.cluster("dgx-h100", gpus=8).links
    np.testing.assert_allclose(links_.bandwidth[0], 450e9, rtol=1e-6)
    np.testing.assert_allclose(links_.bandwidth_share[0], [0.3, 0.8], rtol=1e-6)
    np.testing.assert_allclose(links_.latency[0], [0.7e-6, 4e-6], rtol=1e-6)
    np.testing.assert_allclose(links_.call_overhead, [9e-6, 20e-6], rtol=1e-6)
    np.testing.assert_allclose(links_.in_switch_bandwidth, 270e9, rtol=1e-6)
    np.testing.assert_allclose(links_.copy_bandwidth, 900e9, rtol=1e-6)


def test_utilization_by_generation(package):
    write(
        package / "utilization.toml",
        """
[volta]
matmul = 0.8
convolution_forward = { fp32 = 1.2, tf32 = 1.2, fp16 = 0.6, bf16 = 0.5, fp8 = 0.4 }
source = "a fit"
date = 2024-01-31
sources = { matmul = "another fit" }
""",
    )
    shares = hardware_db.device("v100").utilization
    np.testing.assert_allclose(shares["matmul"], [0.8] * 5, rtol=1e-6)
    np.testing.assert_allclose(shares["convolution_forward"], [1.2, 1.2, 0.6, 0.5, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(shares["softmax"], 1)
    np.testing.assert_array_equal(hardware_db.device("p100").utilization["matmul"], 1)
    write(package / "utilization.toml", '[volta]\nmatmull = 0.8\nsource = "a fit"\ndate = 2024-01-31\n')
    loader._utilization.cache_clear()
    with pytest.raises(
        InputError, match=r"utilization.toml: volta: 'matmull' is not .* did you mean 'matmul'"
    ):
        hardware_db.device("v100")


# ---------------------------------------------------------------------------------------------------------
# Cost of looking something up
# ---------------------------------------------------------------------------------------------------------


def test_one_cluster_reads_only_its_own_files(monkeypatch):
    read: list[str] = []
    monkeypatch.setattr(
        store, "_parse", lambda path, *version: read.append(path.stem) or parse(path, *version)
    )
    hardware_db.cluster_parts("dgx-1-p100")
    assert set(read) == {"dgx-1-p100", "p100-sxm2-16gb", "edr"}


parse = store._parse


def test_importing_the_database_loads_nothing_heavy():
    heavy = ("jax", "numpy", "pydantic", "tomllib")
    code = f"import sys, jaxscale.hardware_db; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_summary_has_a_line_for_every_entry():
    lines = hardware_db.summary()
    assert len(lines) == len(DEVICES) + len(NODES) + len(NETWORKS) + len(CLUSTERS)
    v100 = next(line for line in lines if line.name == "v100-sxm2-16gb")
    assert "15.7 TFLOP/s" in v100.description and "900 GB/s" in v100.description and "v100" in v100.aliases
