"""ONNX files as networks (extra `[onnx]`).

Shapes come from ONNX's own inference, operator by operator, with the values of small constants at hand, so
that a Reshape whose target is computed by a chain of Shape, Gather and Concat is followed. The batch axis
is dropped; a symbolic one is read as a batch of one. `onnx_operators` says which layer an operator becomes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.errors import InputError
from jaxscale.layers import BatchNorm, Shape
from jaxscale.network import Network, NetworkBuilder
from jaxscale.onnx_operators import Operator, is_known, to_layer

if TYPE_CHECKING:
    import onnx

SMALL = 64
"""Constants of at most so many elements are kept by value: they may be shapes."""


class UnknownOperatorWarning(UserWarning):
    """Operators of an imported file were counted as elementwise because jaxscale does not know them."""


def read_onnx(path: str | PathLike[str], image_size: int | None = None) -> Network:
    """Read the network in an ONNX file; of its weights only the shapes count, so external data may be absent.

    A scale and shift per channel that follow a batch normalization are taken as that normalization's own.

    Args:
        path: the file.
        image_size: height and width of the image in pixels, in place of what the file says; needed where
            the file leaves them open.

    Raises:
        InputError: onnx is not installed; no such file, or not a whole ONNX file; several inputs; an operator
            that carries weights and is not a convolution, matrix product or batch normalization.

    Warns:
        UnknownOperatorWarning: operators without weights count as elementwise; one warning names them all.

    >>> import onnx
    >>> folder = Path(onnx.__file__).parent / "backend/test/data/light"
    >>> network = read_onnx(folder / "light_resnet50.onnx")
    >>> network.input_shape, network.parameters
    ((3, 224, 224), 25557032)
    """
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise InputError(f"image_size must be a positive integer, not {image_size!r}")
    path = Path(path)
    model = _load(path)
    reader = _Reader(path, model, image_size)
    for node in model.graph.node:
        reader.read(node)
    if reader.unknown:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(reader.unknown.items()))
        warnings.warn(
            f"{path.name}: unknown operators without weights count as elementwise: {listed}",
            UnknownOperatorWarning,
            stacklevel=2,
        )
    return reader.builder.build()


def _load(path: Path) -> onnx.ModelProto:
    try:
        import onnx
        import onnx.inliner
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError("reading ONNX files needs the package onnx: pip install jaxscale[onnx]") from None
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not an ONNX file") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except DecodeError:
        raise InputError(f"{path} is not an ONNX file, or is cut short") from None
    if not model.ir_version or not model.opset_import or not all(map(_is_sound, model.graph.node)):
        raise InputError(f"{path} is not an ONNX file, or is cut short")
    if not model.graph.node:
        raise InputError(f"{path} holds an empty graph, without any operator")
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _is_sound(node: onnx.NodeProto) -> bool:
    """Whether all names in a node are text, which the parser does not check, and it gives something."""
    names = (node.op_type, node.domain, node.name, *node.input, *node.output)
    try:
        "".join((*names, *(attribute.name for attribute in node.attribute))).encode()
    except (UnicodeError, TypeError):
        return False
    return node.op_type.isprintable() and len(node.output) > 0


class _Reader:
    """Walks the graph once, with what is known of every tensor met so far."""

    def __init__(self, path: Path, model: onnx.ModelProto, image_size: int | None) -> None:
        from onnx import numpy_helper

        graph = model.graph
        self.file = path.name
        self.opsets = {_domain(opset.domain): opset.version for opset in model.opset_import}
        self.ir_version = model.ir_version
        self.declared = {info.name: info.type for info in (*graph.value_info, *graph.output)}
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.uses.update(output.name for output in graph.output)
        self.unknown: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.types: dict[str, onnx.TypeProto] = {}
        self.values: dict[str, Any] = {}  # small constants, as numpy arrays
        self.index: dict[str, int] = {}  # activations: the node that gives them; other tensors are constant
        for tensor in graph.initializer:
            self.types[tensor.name] = _tensor_type(tensor.data_type, tuple(tensor.dims))
            if prod(tensor.dims) <= SMALL and not tensor.external_data:
                try:
                    self.values[tensor.name] = numpy_helper.to_array(tensor)
                except (ValueError, TypeError, KeyError):
                    raise InputError(f"the constant {tensor.name!r} of {self.file} is damaged") from None
        source = self._only_input(graph)
        shape = self._input_shape(source, image_size)
        self.batch = shape[0]
        self.types[source.name] = _tensor_type(source.type.tensor_type.elem_type, shape)
        self.index[source.name] = NetworkBuilder.input
        self.builder = NetworkBuilder(path.stem, shape[1:])

    def read(self, node: onnx.NodeProto) -> None:
        """Fold a constant, or append what `node` computes to the network."""
        where = f"operator {node.op_type} ({node.name or node.output[0]!r}) of {self.file}"
        for name in filter(None, node.input):
            if name not in self.types:
                raise InputError(f"{where} reads {name!r}, which nothing before it gives")
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise InputError(f"{where} is control flow, which jaxscale cannot count")
        self.types.update(self._infer(node, where))
        if node.op_type in ("Shape", "Size") or not any(name in self.index for name in node.input):
            self._fold(node)
        else:
            self._append(node, where)

    def _only_input(self, graph: onnx.GraphProto) -> onnx.ValueInfoProto:
        found = [value for value in graph.input if value.name not in self.types and self.uses[value.name]]
        if len(found) != 1:
            listed = f" ({', '.join(value.name for value in found)})" if found else ""
            raise InputError(f"{self.file} has {len(found)} inputs{listed}: jaxscale reads networks with one")
        return found[0]

    def _input_shape(self, source: onnx.ValueInfoProto, image_size: int | None) -> Shape:
        """Shape of the input with its batch axis."""
        dims = [dim.dim_value or None for dim in source.type.tensor_type.shape.dim]
        if len(dims) < 2:
            raise InputError(f"input {source.name!r} of {self.file} needs a batch axis and at least one more")
        dims[0] = dims[0] or 1
        if image_size is not None:
            if len(dims) != 4:
                raise InputError(f"input {source.name!r} of {self.file} is no image: it takes no image_size")
            channels_last = dims[3] in (1, 3, 4) and dims[1] not in (1, 3, 4)
            height = 1 if channels_last else 2
            dims[height : height + 2] = image_size, image_size
        shape = tuple(dim for dim in dims if dim is not None)
        if len(shape) != len(dims):
            hint = "give image_size" if len(dims) == 4 and dims[1] else "only the batch may be open"
            raise InputError(f"input {source.name!r} of {self.file} leaves sizes open: {hint}")
        return shape

    def _infer(self, node: onnx.NodeProto, where: str) -> dict[str, onnx.TypeProto]:
        """Types of the outputs; of an operator unknown to ONNX, what the file declares or the input's."""
        from onnx import checker, defs, numpy_helper, shape_inference

        domain = _domain(node.domain)
        inputs = list(filter(None, node.input))
        try:
            schema = defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
            inferred = shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self.types[name] for name in inputs},
                {name: numpy_helper.from_array(self.values[name]) for name in inputs if name in self.values},
                opset_imports=self._opset_imports(),
                ir_version=self.ir_version,
            )
        except defs.SchemaError:
            inferred = {name: self.declared[name] for name in node.output if name in self.declared}
            likely = [self.types[name] for name in inputs if name in self.index][:1]
            for name in node.output:
                if likely and (name not in inferred or _dims(inferred[name]) is None):
                    inferred[name] = likely[0]
        except (shape_inference.InferenceError, checker.ValidationError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{where} does not fit its inputs: {reason}") from None
        return inferred

    def _fold(self, node: onnx.NodeProto) -> None:
        """Give a constant its value where it is small and known."""
        import numpy as np
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        inputs = set(filter(None, node.input))
        if node.op_type in ("Shape", "Size"):
            operands = {name: np.empty(_dims(self.types[name]) or (), bool) for name in inputs}
        else:
            operands = {name: self.values[name] for name in inputs if name in self.values}
        outputs = [_dims(self.types[name]) if name in self.types else None for name in node.output]
        if len(operands) < len(inputs) or any(dims is None or prod(dims) > SMALL for dims in outputs):
            return
        graph = helper.make_graph(
            [node],
            node.op_type,
            [helper.make_value_info(name, self.types[name]) for name in inputs],
            [helper.make_value_info(name, self.types[name]) for name in node.output],
        )
        model = helper.make_model(graph, opset_imports=self._opset_imports(), ir_version=self.ir_version)
        try:
            results = ReferenceEvaluator(model).run(None, operands)
        except Exception:  # what the reference cannot run stays a constant of unknown value
            return
        self.values.update(zip(node.output, results, strict=True))

    def _append(self, node: onnx.NodeProto, where: str) -> None:
        sources = [self.index[name] for name in node.input if name in self.index]
        if self._continues_normalization(node):
            self.index[node.output[0]] = sources[0]
            return
        if not is_known(node.op_type):
            self.unknown[node.op_type] += 1
        for output in node.output:
            if output != node.output[0] and not self.uses[output]:
                continue
            operator = self._operator(node, output, where)
            layer = to_layer(operator)
            if layer is None:
                self.index[output] = sources[0]
                continue
            self.index[output] = self.builder.apply(layer, *sources, name=self._unique(node.name or output))
            given = self.builder.shape(self.index[output])
            if given != operator.output_shape:
                raise InputError(f"{where} should give the shape {operator.output_shape}, not {given}")

    def _continues_normalization(self, node: onnx.NodeProto) -> bool:
        """Whether `node` is the scale or shift that some frameworks write apart from their normalization."""
        if node.op_type not in ("Mul", "Add") or len(node.input) != 2:
            return False
        weights = [name for name in node.input if self._is_weight(name)]
        activations = [name for name in node.input if name in self.index]
        if len(weights) != 1 or len(activations) != 1 or self.index[activations[0]] < 0:
            return False
        source = self.builder.node(self.index[activations[0]])
        channels = source.output_shape[0]
        per_channel = (channels, *(1 for _ in source.output_shape[1:]))
        dims = _dims(self.types[weights[0]]) or ()
        return (
            isinstance(source.layer, BatchNorm)
            and self.uses[activations[0]] == 1
            and dims in (per_channel, (1, *per_channel))
        )

    def _operator(self, node: onnx.NodeProto, output: str, where: str) -> Operator:
        from onnx import helper

        constants = [name if name and name not in self.index else None for name in node.input]
        return Operator(
            kind=node.op_type,
            where=where,
            attributes={item.name: helper.get_attribute_value(item) for item in node.attribute},
            activations=tuple(self._per_sample(name, where) for name in node.input if name in self.index),
            constants=tuple(_dims(self.types[name]) if name else None for name in constants),
            values=tuple(self.values.get(name) if name else None for name in constants),
            weights=sum(prod(_dims(self.types[name]) or ()) for name in node.input if self._is_weight(name)),
            output_shape=self._per_sample(output, where),
        )

    def _is_weight(self, name: str) -> bool:
        """A constant that training would change: real numbers, and more than one of them."""
        from onnx import TensorProto

        if not name or name in self.index:
            return False
        real = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
        kind = self.types[name].tensor_type.elem_type
        return kind in real and prod(_dims(self.types[name]) or ()) > 1

    def _per_sample(self, name: str, where: str) -> Shape:
        """Shape of a tensor without its batch axis."""
        shape = _dims(self.types[name]) if name in self.types else None
        if shape is None:
            raise InputError(f"{where}: the shape of {name!r} depends on the data")
        if shape[:1] == (self.batch,):
            return shape[1:] or (1,)
        if self.batch != 1:
            raise InputError(
                f"{where} mixes the batch of {self.batch} into the shape {shape}: export batch 1"
            )
        return shape or (1,)

    def _opset_imports(self) -> list[onnx.OperatorSetIdProto]:
        from onnx import helper

        return [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]

    def _unique(self, name: str) -> str:
        self.names[name] += 1
        return name if self.names[name] == 1 else f"{name}#{self.names[name]}"


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _dims(kind: onnx.TypeProto) -> Shape | None:
    """Sizes of a tensor, None where inference leaves one open."""
    dims = kind.tensor_type.shape.dim
    known = kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
    return tuple(dim.dim_value for dim in dims) if known and all(map(_is_set, dims)) else None


def _is_set(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value")


def _tensor_type(element: int, shape: Shape) -> onnx.TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(element, shape)
