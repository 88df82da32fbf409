"""ONNX files that cannot be counted, in whole or in part: each is named in one sentence."""

import sys

import pytest

from jaxscale.errors import InputError
from jaxscale.onnx_import import UnknownOperatorWarning, read_onnx

onnx = pytest.importorskip("onnx")
from onnx import helper  # noqa: E402
from onnx_files import LIGHT, conv, integers, write  # noqa: E402


def test_unknown_operators_are_named_in_one_warning(tmp_path):
    nodes = [
        helper.make_node("Sin", ["x"], ["a"]),
        helper.make_node("Wobble", ["a"], ["b"], domain="custom"),
        helper.make_node("Sin", ["b"], ["y"]),
    ]
    with pytest.warns(UnknownOperatorWarning, match=r"Sin \(2\), Wobble \(1\)") as caught:
        network = read_onnx(write(tmp_path, nodes, [("x", [1, 3, 4, 4])]))
    assert len(caught) == 1
    assert [node.layer.kind for node in network.nodes] == ["Sin", "Wobble", "Sin"]
    assert {node.output_shape for node in network.nodes} == {(3, 4, 4)}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([helper.make_node("Wobble", ["x", "w"], ["y"], domain="custom")], "Wobble.*carries 135 weights"),
        ([helper.make_node("ConvTranspose", ["x", "v"], ["y"])], "ConvTranspose.*carries 54 weights"),
        ([helper.make_node("Conv", ["x", "x"], ["y"])], "Conv.*computed filters"),
        ([helper.make_node("MatMul", ["x", "x"], ["y"])], "MatMul.*a constant matrix only"),
        (
            [helper.make_node("Relu", ["elsewhere"], ["y"])],
            "reads 'elsewhere', which nothing before it gives|0 inputs",
        ),
        ([conv(weight="v")], "Conv.*filters for 2 channels, not 3"),
        ([conv(strides=[2, 2, 2])], "Conv.*strides"),
        (
            [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2])],
            "MaxPool.*dilated",
        ),
        ([helper.make_node("Reshape", ["x", "target"], ["y"])], "cannot hold the 192 elements"),
        ([helper.make_node("NonZero", ["x"], ["y"])], "NonZero.*depends on the data"),
    ],
)
def test_graphs_that_cannot_be_counted_are_refused(tmp_path, nodes, words):
    weights = [("w", (5, 3, 3, 3)), ("v", (3, 2, 3, 3)), integers("target", 7, 7)]
    path = write(tmp_path, nodes, [("x", [1, 3, 8, 8])], weights)
    with pytest.raises(InputError, match=words) as refusal:
        read_onnx(path)
    assert "\n" not in str(refusal.value)


def test_one_dimensional_convolution_is_refused(tmp_path):
    path = write(tmp_path, [conv()], [("x", [1, 3, 8])], [("w", (5, 3, 3))])
    with pytest.raises(InputError, match=r"Conv.*1-dimensional"):
        read_onnx(path)


def test_control_flow_is_refused(tmp_path):
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    with pytest.raises(InputError, match=r"If.*control flow"):
        read_onnx(write(tmp_path, [node], [("x", [1, 3, 8, 8])]))


def test_batch_mixed_into_another_axis_is_refused(tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "target"], ["y"])]
    path = write(tmp_path, nodes, [("x", [4, 2, 8, 8])], [integers("target", 8, 64)])
    with pytest.raises(InputError, match="mixes the batch of 4"):
        read_onnx(path)


def test_inputs_must_be_one_with_a_known_shape(tmp_path):
    both = [helper.make_node("Add", ["a", "b"], ["y"])]
    with pytest.raises(InputError, match=r"2 inputs \(a, b\)"):
        read_onnx(write(tmp_path, both, [("a", [1, 3]), ("b", [1, 3])]))
    with pytest.raises(InputError, match="0 inputs"):
        read_onnx(write(tmp_path, both, [], [("a", (1, 3)), ("b", (1, 3))]))
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    with pytest.raises(InputError, match="give image_size"):
        read_onnx(write(tmp_path, relu, [("x", ["N", 3, "H", "W"])]))
    with pytest.raises(InputError, match="only the batch may be open"):
        read_onnx(write(tmp_path, relu, [("x", ["N", "C", 8, 8])]))
    with pytest.raises(InputError, match="batch axis"):
        read_onnx(write(tmp_path, relu, [("x", None)]))
    with pytest.raises(InputError, match="is no image"):
        read_onnx(write(tmp_path, relu, [("x", [1, 3])]), image_size=8)


@pytest.mark.parametrize("image_size", [0, -1, 2.5, float("nan"), float("inf"), True, "224"])
def test_image_size_must_be_a_positive_integer(image_size):
    with pytest.raises(InputError, match="image_size must be a positive integer"):
        read_onnx(LIGHT / "light_squeezenet.onnx", image_size=image_size)


def test_files_that_are_no_networks_are_refused(tmp_path):
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "file.onnx"
    for share in (0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match="not an ONNX file, or is cut short"):
            read_onnx(path)
    for content in (b"a text\n" * 100, bytes(1000), b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"{}"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an ONNX file, or is cut short"):
            read_onnx(path)
    with pytest.raises(InputError, match="is a folder"):
        read_onnx(tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*absent.onnx: No such file"):
        read_onnx(tmp_path / "absent.onnx")
    with pytest.raises(InputError, match="empty graph"):
        read_onnx(write(tmp_path, [], [("x", [1, 3])], outputs=("x",)))


@pytest.mark.parametrize("where", range(0, 4000, 97))
def test_damaged_files_are_read_or_refused(tmp_path, where):
    content = bytearray((LIGHT / "light_bvlc_alexnet.onnx").read_bytes())
    content[where % len(content)] ^= 0xFF
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(content))
    try:
        assert read_onnx(path).nodes
    except InputError as refusal:
        assert "\n" not in str(refusal)
    except UnknownOperatorWarning:
        pass


def test_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install jaxscale\[onnx\]"):
        read_onnx(LIGHT / "light_squeezenet.onnx")
