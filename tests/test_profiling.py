"""Measuring kernels on the device that JAX sees: programs compute what they are named for, files are tidy."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest

from jaxscale import zoo
from jaxscale.cli.main import run
from jaxscale.hardware_db import load_device
from jaxscale.lowering import lower
from jaxscale.measurement_format import ENGINE_FAMILIES, MEASUREMENT_DIMENSIONS
from jaxscale.measurements import check_measurements, least_seconds, read_measurements
from jaxscale.nouns import Shard
from jaxscale.profiling import describe_device, designed_shapes, measure, network_shapes
from jaxscale.profiling.programs import PROGRAMS
from jaxscale.shapes import distinct


def counted(row):
    """FLOPs that XLA counts in the program of a row."""
    sizes = {name: int(row[name]) for name in MEASUREMENT_DIMENSIONS[row["family"]]}
    function, shapes = PROGRAMS[row["family"]](sizes, row["direction"])
    given = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    compiled = jax.jit(function).lower(*given).compile()
    return compiled.cost_analysis()["flops"], [
        leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(function, *given))
    ]


CONVOLUTION = {
    "batch": 2, "in_channels": 8, "in_height": 14, "in_width": 14, "out_channels": 16, "out_height": 7,
    "out_width": 7, "kernel_height": 3, "kernel_width": 3, "stride": 2, "dilation": 1, "groups": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("direction", "result"),
    [("forward", (2, 7, 7, 16)), ("backward_data", (2, 14, 14, 8)), ("backward_filter", (3, 3, 8, 16))],
)
def test_each_direction_of_a_convolution_gives_its_own_gradient(direction, result):
    _, shapes = counted({"family": "convolution", "direction": direction} | CONVOLUTION)
    assert shapes == [result]


@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_each_direction_of_a_product_is_one_product(direction):
    flops, _ = counted({"family": "matmul", "direction": direction, "m": 64, "n": 32, "k": 16})
    assert flops == pytest.approx(2 * 64 * 32 * 16, rel=0.01)


def test_the_gradient_of_a_batched_product_is_two_products():
    flops, shapes = counted(
        {"family": "batched_matmul", "direction": "backward", "batch": 4, "m": 64, "n": 32, "k": 16}
    )
    assert flops == pytest.approx(2 * 2 * 4 * 64 * 32 * 16, rel=0.01)
    assert shapes == [(4, 64, 16), (4, 16, 32)]


@pytest.mark.parametrize("family", PROGRAMS)
def test_designed_samples_are_tidy_and_can_be_run(family):
    shapes = designed_shapes(family, 8, "fp32", seed=3)
    assert set(shapes.direction) == set(ENGINE_FAMILIES[family]) - {"training"}
    pd.testing.assert_frame_equal(shapes, designed_shapes(family, 8, "fp32", seed=3))
    tidy = check_measurements(
        shapes.assign(
            device="v100", source="here", seconds=1e-5 + least_seconds(shapes.assign(device="v100"))
        )
    )
    assert len(tidy) == len(shapes)
    for row in shapes.to_dict("records"):
        sizes = {name: int(row[name]) for name in MEASUREMENT_DIMENSIONS[family]}
        function, arrays = PROGRAMS[family](sizes, row["direction"])
        jax.eval_shape(function, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in arrays))


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "googlenet"])
def test_the_kernels_of_a_network_are_all_there(name):
    network = zoo.build(name)
    shapes = network_shapes(network, [4], "fp32", "adam")
    workload = lower(network, "fp32", "adam")
    flags = np.zeros((len(workload.layers.parameters), 1), np.float32)
    kinds = distinct(workload, Shard(np.float32([4]), np.float32([1]), flags))
    assert len(shapes) == sum(len(kind.itemsize) for kind in kinds.values())
    for row in shapes.to_dict("records"):
        sizes = {dimension: int(row[dimension]) for dimension in MEASUREMENT_DIMENSIONS[row["family"]]}
        function, arrays = PROGRAMS[row["family"]](sizes, row["direction"])
        jax.eval_shape(function, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in arrays))


def test_a_larger_product_takes_longer():
    product = {"family": "matmul", "direction": "forward", "precision": "fp32"}
    sizes = [product | dict.fromkeys("mnk", float(edge)) for edge in (16, 1024)]
    measured = measure(pd.DataFrame(sizes), repeats=3)
    assert measured.seconds[1] > 10 * measured.seconds[0]
    assert (measured.spread >= 0).all()


def test_what_is_profiled_can_be_read(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.toml").write_text(describe_device(repeats=1))
    assert load_device("./here.toml").peak_fp32_tflop_per_s > 1e-4
    arguments = ["profile", "lenet-5", "--batch", "8", "--device", "./here.toml", "--repeats", "1"]
    assert run([*arguments, "--out", "lenet.csv"]) == 0
    assert "written to lenet.csv" in capsys.readouterr().out
    read = read_measurements("lenet.csv")
    assert set(read.family) >= {"convolution", "matmul", "optimizer"}
    assert set(read.device) == {"./here.toml"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "a.csv", "--device", "v100"], "takes a MODEL or a --family, one of the two"),
        (["lenet-5", "--family", "matmul"], "takes a MODEL or a --family, one of the two"),
        (["lenet-5", "--device", "v100"], "needs --out"),
        (["lenet-5", "--out", "a.csv"], "needs --device"),
        (["lenet-5", "--device", "v1000", "--out", "a.csv"], "unknown device 'v1000': did you mean 'v100"),
        (["lenet-5", "--device", "v100", "--out", "a.txt"], "unknown measurement format '.txt'"),
        (["--family", "matmull", "--device", "v100", "--out", "a.csv"], "did you mean 'matmul'"),
        (["lenet-5", "--describe", "a.toml"], "leave out MODEL"),
        (["--describe", "a.txt"], "unknown file format '.txt'"),
        (
            ["alexnet", "--device", "v100", "--out", "a.csv", "--longest", "1 ns"],
            "no kernel is left to measure",
        ),
    ],
)
def test_bad_input_is_one_sentence(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["profile", *arguments]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "note:" not in line]
    assert len(err) == 1 and said in err[0]
    assert not list(tmp_path.iterdir())
