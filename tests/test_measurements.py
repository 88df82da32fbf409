"""Measured kernels: the tidy format, its files, what it refuses, its summary and its splits."""

import gzip
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from jaxscale import measurements
from jaxscale.errors import InputError
from jaxscale.kernels import DIRECT
from jaxscale.measurement_format import MEASUREMENT_DIMENSIONS, check_measurements, least_seconds
from jaxscale.nouns import KERNEL_DIMENSIONS

GEMM = {
    "family": "matmul", "direction": "forward", "precision": "fp32", "device": "v100-sxm2-16gb",
    "source": "mine", "m": 4096.0, "n": 4096.0, "k": 4096.0, "seconds": 0.01,
}  # fmt: skip
SOFTMAX = {
    "family": "softmax", "direction": "backward", "precision": "fp32", "device": "v100-sxm2-16gb",
    "source": "mine", "rows": 4096.0, "columns": 1024.0, "reads": 2.0, "writes": 1.0, "seconds": 1e-4,
}  # fmt: skip


def table(*changes, base=GEMM):
    return pd.DataFrame([base | change for change in (changes or ({},))])


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_file_comes_back_as_it_was_written(tmp_path, ending):
    frame = check_measurements(pd.DataFrame([GEMM, SOFTMAX | {"seconds": 1 / 3e4, "extra_bytes": 5e9}]))
    path = measurements.write_measurements(frame, tmp_path / f"kernels.{ending}")
    again = measurements.read_measurements(path)
    pd.testing.assert_frame_equal(again, frame)
    assert [file.name for file in tmp_path.iterdir()] == [f"kernels.{ending}"]


def test_what_is_left_out_is_zero_and_aliases_become_names():
    frame = check_measurements(table({"device": "V100", "precision": "FP32"}))
    assert frame.loc[0, ["device", "precision"]].tolist() == ["v100-sxm2-16gb", "fp32"]
    assert frame.loc[0, ["spread", "extra_bytes", "extra_kernels"]].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"family": "matmull"}, "row 1: unknown family 'matmull': did you mean 'matmul'"),
        ({"direction": "backward"}, "row 1: matmul is not measured 'backward', allowed are forward, backw"),
        ({"precision": "int8"}, "row 1: unknown precision 'int8'"),
        ({"device": "v1000"}, "row 1: unknown device 'v1000': did you mean 'v100'"),
        ({"source": None}, "row 1: source is empty"),
        ({"seconds": 0.0}, "row 1: seconds is 0, allowed are finite numbers above 0"),
        ({"seconds": -1.0}, "row 1: seconds is -1, allowed"),
        ({"seconds": np.nan}, "row 1: seconds is nan, allowed"),
        ({"seconds": np.inf}, "row 1: seconds is inf, allowed"),
        ({"seconds": "fast"}, "row 1: seconds is 'fast', allowed are numbers"),
        ({"m": 0.0}, "row 1: matmul has m 0, allowed are finite numbers from 1"),
        ({"m": np.nan}, "row 1: matmul has m nan"),
        ({"m": np.inf}, "row 1: matmul has m inf"),
        ({"batch": 3.0}, "row 1: matmul has no batch, it has m, n, k"),
        ({"extra_bytes": -1.0}, "row 1: extra_bytes is -1, allowed are finite numbers from 0"),
        ({"spread": np.inf}, "row 1: spread is inf"),
        ({"time_ms": 10.0}, "column 'time_ms' is not allowed, times stand in 'seconds', in s"),
        ({"time_us": 10.0}, "column 'time_us' is not allowed"),
        ({"hieght": 10.0}, "unknown column 'hieght'"),
        ({"M": 10.0}, "column 'M' must be written 'm'"),
        ({"seconds": 1e-6}, "over 1000 times faster than the peak of v100-sxm2-16gb"),
        ({"seconds": 10.0}, "matmul of source 'mine' takes 1142 times as long"),  # milliseconds
        ({"m": 1e300}, "over 1000 times faster than the peak"),
    ],
)
def test_what_is_refused(change, sentence):
    with pytest.raises(InputError) as refusal:
        check_measurements(table(change), "kernels.csv")
    assert str(refusal.value).startswith("kernels.csv: ")
    assert sentence in str(refusal.value)


def test_the_row_is_named():
    with pytest.raises(InputError, match="row 3: seconds is -2"):
        check_measurements(table({}, {"m": 8.0, "n": 8.0, "k": 8.0, "seconds": 1e-5}, {"seconds": -2.0}))


@pytest.mark.parametrize("column", ["family", "device", "seconds", "k"])
def test_a_missing_column_is_named(column):
    with pytest.raises(InputError, match=f"there is no column '{column}'"):
        check_measurements(table().drop(columns=column))


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="has no rows"):
        check_measurements(table().iloc[:0])


def test_repetitions_may_differ_by_a_factor_of_three_within_one_source():
    check_measurements(table({}, {"seconds": 0.03}))
    check_measurements(table({}, {"seconds": 0.031, "source": "other"}))
    check_measurements(table({}, {"seconds": 0.031, "extra_bytes": 1e9}))
    with pytest.raises(
        InputError, match=r"row 1: the same kernel takes 0.01 s and 0.031 s, allowed is a factor"
    ):
        check_measurements(table({}, {"seconds": 0.031}))


def test_damaged_files_are_one_sentence(tmp_path):
    whole = measurements.write_measurements(table(), tmp_path / "a.csv.gz").read_bytes()
    parquet = measurements.write_measurements(table(), tmp_path / "a.parquet").read_bytes()
    damaged = {
        "truncated.csv.gz": whole[: len(whole) // 2],
        "text.csv.gz": b"family,direction\n",
        "truncated.parquet": parquet[: len(parquet) // 2],
        "binary.csv": bytes(range(128, 256)),
        "ragged.csv": b"family,seconds\nmatmul,1\nmatmul,1,2,3\n",
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is not a whole") as refusal:
            measurements.read_measurements(tmp_path / name)
        assert "\n" not in str(refusal.value)
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "empty.csv.gz").write_bytes(gzip.compress(b""))
    for name in ("empty.csv", "empty.csv.gz"):
        with pytest.raises(InputError, match="is empty"):
            measurements.read_measurements(tmp_path / name)
    with pytest.raises(InputError, match="there is no such file"):
        measurements.read_measurements(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"unknown measurement format '\.xlsx'"):
        measurements.read_measurements(tmp_path / "kernels.xlsx")


def test_a_refused_table_leaves_the_old_file(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text("old")
    with pytest.raises(InputError):
        measurements.write_measurements(table({"seconds": 0.0}), path)
    assert path.read_text() == "old"


def test_the_median_of_repeats_keeps_sources_apart():
    frame = check_measurements(
        table({"seconds": 0.01}, {"seconds": 0.02}, {"seconds": 0.012}, {"source": "other", "seconds": 0.02})
    )
    merged = measurements.median_of_repeats(frame)
    assert sorted(zip(merged.source, merged.seconds, strict=True)) == [("mine", 0.012), ("other", 0.02)]


def test_the_map_counts_rows_and_names_devices():
    p100 = GEMM | {"device": "p100", "source": "other"}
    mi50 = GEMM | {"device": "mi50", "seconds": 0.02}
    frame = check_measurements(pd.DataFrame([GEMM, p100, SOFTMAX, mi50]))
    mapped = measurements.measurement_map(frame).set_index(["family", "direction", "precision", "vendor"])
    assert mapped.loc[("matmul", "forward", "fp32", "nvidia")].tolist() == [
        2, "p100-sxm2-16gb, v100-sxm2-16gb", "mine, other",
    ]  # fmt: skip
    assert mapped.loc[("matmul", "forward", "fp32", "amd"), "rows"] == 1
    assert len(mapped) == 3


def shapes(rows=4000) -> Any:
    sizes = np.random.default_rng(0).integers(1, 4096, (rows, 3)).astype(float)
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"])
    return frame.assign(family="matmul", direction="forward", precision="fp32", seconds=1.0)


def test_no_shape_stands_on_both_sides():
    one = shapes()
    other = one.sample(frac=1, random_state=1).assign(direction="training", precision="fp16", device="b")
    train, held = measurements.split_by_shape(pd.concat([one, other], ignore_index=True), 0.2, seed=3)
    assert len(train) + len(held) == 8000
    assert not set(map(tuple, train[["m", "n", "k"]].to_numpy())) & set(
        map(tuple, held[["m", "n", "k"]].to_numpy())
    )
    assert len(held) / 8000 == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / 4000) ** 0.5)


def test_a_split_depends_on_the_seed_and_on_nothing_else():
    frame = shapes()
    position = measurements.shape_position(frame, 1)
    wider = frame.assign(batch=np.nan)[::-1]
    np.testing.assert_array_equal(measurements.shape_position(wider, 1)[::-1], position)
    assert abs(np.corrcoef(position, measurements.shape_position(frame, 2))[0, 1]) < 4 / 4000**0.5
    with pytest.raises(InputError, match="held-out fraction is 20"):
        measurements.split_by_shape(frame, 20)


def test_directions_of_a_memory_bound_kernel_share_their_shape():
    forward = check_measurements(table(base=SOFTMAX))
    backward = check_measurements(table({"reads": 1.0, "direction": "forward"}, base=SOFTMAX))
    assert measurements.shape_position(forward) == measurements.shape_position(backward)


def test_every_direction_names_families_of_the_engine_with_equal_dimensions():
    for family, directions in measurements.ENGINE_FAMILIES.items():
        for kernels in directions.values():
            assert {KERNEL_DIMENSIONS[kernel] for kernel in kernels} == {MEASUREMENT_DIMENSIONS[family]}
    used = {k for ds in measurements.ENGINE_FAMILIES.values() for ks in ds.values() for k in ks}
    assert used == set(KERNEL_DIMENSIONS)


def test_training_is_bounded_by_three_products():
    frame = check_measurements(table({}, {"direction": "training", "seconds": 0.03}))
    # 2 x 4096^3 / 15.7e12 = 8.754 ms
    np.testing.assert_allclose(least_seconds(frame), [8.754e-3, 3 * 8.754e-3], rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "sizes", "flops", "elements"),
    [
        # GPT-3, one sequence: 4 s^2 h FLOPs forward without a mask (Korthikanti et al. 2022, appendix A).
        ("attention_forward", (1, 2048, 2048, 96, 96, 128, 0), 4 * 2048**2 * 12288, 4 * 2048 * 12288),
        ("attention_backward", (1, 2048, 2048, 96, 96, 128, 0), 10 * 2048**2 * 12288, 8 * 2048 * 12288),
        # A causal mask leaves s (s + 1) / 2 of s^2 pairs; a single query sees all.
        ("attention_forward", (2, 3, 3, 1, 1, 8, 1), 4 * 2 * 8 * 6, 2 * 8 * 12),
        ("attention_forward", (1, 1, 100, 8, 2, 16, 1), 4 * 8 * 16 * 100, 16 * 2 * (8 + 200)),
        # An LSTM of 4 gates, one step and one sample: 8 h (i + h) FLOPs.
        ("recurrent", (1, 3, 5, 4, 1, 1), 8 * 5 * 8, 4 * 5 * 8 + 8),
        ("recurrent", (2, 3, 5, 4, 7, 2), 2 * 14 * 8 * 5 * 8, 2 * (4 * 5 * 8 + 14 * 8)),
        ("embedding", (10, 4, 1000), 40, 4 * 20),
        ("embedding", (1000, 4, 10), 4000, 4 * 1010),
    ],
)
def test_counts_by_hand(family, sizes, flops, elements):
    counted, moved = DIRECT[family](jnp.array(sizes, float), jnp.array(2.0))
    assert float(counted) == flops
    assert float(moved) == 2 * elements


def readers():
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("the benchmarks are not part of an installed package")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import kernels_data  # pyright: ignore[reportMissingImports]

    return kernels_data


def test_small_sets_are_in_the_format_and_under_their_bounds(shared_data):
    """Rates of whole sets are physical: products of memory-bound or matrix kernels end at the data sheet."""
    data = readers()
    frame = data.load(["deepbench_rnn", "deepbench_gemm", "sailor", "aceso"], shared_data / "kernels")
    checked = check_measurements(frame.drop(columns="set"))
    reached = least_seconds(checked) / checked.seconds
    limits = {"convolution": 4.0, "normalization": 1.25}
    for family, share in reached.groupby(checked.family):
        # Boost above the rated clock and caches explain a tenth or so.
        assert share.max() < limits.get(family, 1.15), family
