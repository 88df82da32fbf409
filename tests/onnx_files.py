"""Small ONNX files made by hand."""

from math import prod
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
"""The networks that the onnx package brings along."""


def write(tmp_path, nodes, inputs, weights=(), outputs=("y",), opset=17, **model):
    """A file with the given nodes; `inputs` and `weights` are (name, shape), other constants are tensors."""
    tensors = [
        helper.make_tensor(item[0], TensorProto.FLOAT, item[1], bytes(4 * prod(item[1])), raw=True)
        if isinstance(item, tuple)
        else item
        for item in weights
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        tensors,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=imports, **model).SerializeToString())
    return path


def integers(name, *values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def conv(source="x", output="y", weight="w", **attributes):
    return helper.make_node("Conv", [source, weight], [output], **attributes)
