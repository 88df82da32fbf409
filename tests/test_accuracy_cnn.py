"""The benchmarks on convolutional networks: their arithmetic, on tables made by hand."""

import datetime
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxscale import hardware_db, zoo
from jaxscale.hardware_db import store
from jaxscale.hardware_db.schema import DeviceEntry, utilization_model
from jaxscale.kernels import MATRIX_FAMILIES
from jaxscale.nouns import KERNEL_FAMILIES, PRECISIONS

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not part of an installed package", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "seeds")]

import mp_emulator  # noqa: E402

import accuracy_cnn  # noqa: E402
import utilization  # noqa: E402
from utilization_data import Part  # noqa: E402


def test_scaling_efficiency_compares_rows_of_equal_batch():
    table = pd.DataFrame(
        {
            "model": ["a", "a", "a", "b", "b"],
            "hardware": "h",
            "batch_per_gpu": [32, 32, 64, 32, 32],
            "n_gpus": [1, 4, 1, 1, 2],
            "measured": [1.0, 2.0, 7.0, 3.0, 4.0],
            "predicted": [1.0, 1.25, 7.0, 3.0, 3.0],
        }
    )
    scaled = accuracy_cnn.scaling(table)
    np.testing.assert_allclose(scaled.efficiency, [0.5, 0.75])
    np.testing.assert_allclose(scaled.scaling_error, [0.3, 0.25])
    np.testing.assert_allclose(accuracy_cnn.with_errors(table).error, [0, -0.375, 0, 0, -0.25])


def vote(generation, family, precision, share):
    """A kernel of 1 ms at the roofline that takes what `share` says, and 10 us besides."""
    return {
        "source": "s", "device": "d", "generation": generation, "family": family, "precision": precision,
        "rows": 10, "share": share, "overhead": 1e-5, "ideal": np.array([1e-3]),
        "seconds": np.array([1e-5 + 1e-3 / share]),
    }  # fmt: skip


def test_rules_for_what_was_not_measured():
    fit = utilization.Fit(
        pd.DataFrame(
            [
                vote("volta", "convolution_forward", "fp32", 0.8),
                vote("volta", "convolution_backward_data", "fp32", 0.4),
                vote("volta", "matmul", "fp16", 0.6),
                vote("ampere", "convolution_forward", "fp32", 1.0),
                vote("ampere", "matmul", "bf16", 0.7),
                vote("ampere", "elementwise", "fp32", 0.9),
            ]
        )
    )
    expected = {
        ("volta", "convolution_forward", "fp32"): 0.8,
        ("ampere", "matmul", "tf32"): 0.7,
        ("hopper", "matmul", "fp16"): 0.7,
        ("ampere", "convolution_backward_data", "fp32"): 1.0 * 0.4 / 0.8,
        ("kepler", "convolution_forward", "fp16"): 0.8,  # no FP16 rate: as in FP32, and volta is nearest
        ("ampere", "batched_matmul", "bf16"): 0.7,
        ("pascal", "optimizer", "fp32"): 0.9,
        ("cdna2", "convolution_forward", "fp32"): 0.9,  # no measurement of the vendor: the median
    }
    for (generation, family, precision), share in expected.items():
        assert fit.resolve(generation, family, precision).share == pytest.approx(share)
    assert max(fit.errors.values()) < 1e-9


def test_votes_recover_the_utilization_of_generated_kernels(monkeypatch):
    sizes = np.array([np.full(20, 4096.0), np.full(20, 4096.0), np.linspace(64, 8192, 20)])
    launch = float(hardware_db.device("v100").launch_overhead)
    ideal = utilization.roofline("v100-sxm2-16gb", "matmul", "fp32", sizes)

    def generated(folder):
        yield Part("v100-sxm2-16gb", "matmul", "fp32", sizes, launch + ideal / 0.65, None)

    monkeypatch.setattr(utilization, "SOURCES", (generated,))
    assert utilization.votes(Path()).share.tolist() == [pytest.approx(0.65)]


def test_only_shapes_of_networks_count():
    usual = np.array([32, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1], float)
    grouped, narrow, dilated = usual.copy(), usual.copy(), usual.copy()
    grouped[11], narrow[1], dilated[10] = 32, 3, 2
    shapes = np.stack([usual, grouped, narrow, dilated], axis=1)
    assert utilization.typical("convolution_forward", shapes).tolist() == [True, False, False, False]


def test_shipped_utilizations_cover_every_generation():
    tables = tomllib.loads((store.PACKAGE_FOLDER / "utilization.toml").read_text())
    assert set(tables) == set(DeviceEntry.model_fields["generation"].annotation.__args__)
    for table in tables.values():
        entry = utilization_model(KERNEL_FAMILIES).model_validate(table)
        assert entry.date <= datetime.date(2026, 11, 30)
        keys = {
            f"{name}.{p}" if name in MATRIX_FAMILIES else name for name in KERNEL_FAMILIES for p in PRECISIONS
        }
        assert set(entry.sources) == keys


def test_messages_of_vgg16_by_hand():
    network = zoo.build("vgg16", classes=1001)
    gathered, summed = mp_emulator.engine_bytes(network, 4)
    each = 4 * 64
    assert gathered[0] == each * 64 * 224 * 224 and gathered[15] == each * 1001
    assert summed[0] == 0 and summed[2] == each * 64 * 112 * 112 and summed[13] == each * 512 * 7 * 7
    gathered, summed = mp_emulator.emulator_bytes(network)
    assert summed[2] == each * 64 * 224 * 224 and summed[13] == each * 4096 and summed[15] == each * 1001
