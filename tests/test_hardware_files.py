"""Files of the hardware database: the user's own, schema errors, fitted constants, cost of a look-up."""

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

DEVICES, NODES = hardware_db.device_names(), hardware_db.node_names()
NETWORKS, CLUSTERS = hardware_db.network_names(), hardware_db.cluster_names()

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


@pytest.mark.parametrize("name", ["", " ", "a" * 10_000, "*", "nodes/dgx-2", "\0"])
def test_odd_names(name):
    with pytest.raises(InputError, match="unknown cluster or node or device") as caught:
        hardware_db.cluster(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["..", "/"])
def test_a_folder_is_no_entry(name):
    with pytest.raises(InputError, match=r"is a folder, allowed are names and \.toml files; .*HARDWARE_PATH"):
        hardware_db.cluster(name)


def test_another_file_is_no_entry(tmp_path):
    path = write(tmp_path / "node.json", "{}")
    with pytest.raises(InputError, match=r"node.json' is no \.toml file, allowed are"):
        hardware_db.cluster(str(path))


def test_a_name_comes_before_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "dgx-2").mkdir()
    (tmp_path / "v100").mkdir()
    monkeypatch.chdir(tmp_path)
    assert float(hardware_db.cluster("dgx-2").gpus_per_node) == 16
    assert hardware_db.load_device("v100").memory_bandwidth_gb_per_s == 900


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
        (BANDWIDTH, BANDWIDTH + "\nxyz = 3", ("'xyz' is not a key of a device (allowed: ", "power_w")),
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
