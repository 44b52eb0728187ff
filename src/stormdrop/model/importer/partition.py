"""Imports a model of which onnxruntime runs the parts that the importer cannot take.

A node is native if the importer takes it, else foreign. Foreign are nodes with an unknown operator, nodes that read or
make something else than tensors of a fixed shape, and nodes at which TVM's importer or a pass fails. Which nodes fail
is found out by trying: the error names the node, or else each different node is tried alone.

    Conv -> LSTM -> MatMul   ->   Conv -> stormdrop.Foreign -> MatMul   ->   conv2d, call_dps_packed(...), matmul

Foreign nodes are merged to onnxruntime parts (`segments`). Each becomes an ONNX model of its own, and one node of our
own domain, which the importer translates to the call of a packed function (`onnxruntime_parts`). If all nodes are
foreign, the whole model is one part (`whole_part`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

from ...errors import ModelError, shown
from ...optional_packages import load
from ...runtime.sizes import OPEN, TensorInfo
from ..artifact.artifact_files import part_file
from ..artifact.metadata import OnnxruntimePart
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..graph.layers import Layers, Traced
from ..graph.onnx_origin import OnnxOrigin
from ..inputs.combinations import Shapes
from ..onnx.nodes import with_nodes
from ..onnx.segments import Segment, Wiring, divide
from ..onnx.standard import is_standard, operator_name
from ..onnx.trial_run import ValueType, value_types
from ..onnx.weights import moved_in
from .converters.onnxruntime_part import DOMAIN, OPERATOR
from .node_layers import layers_of_nodes
from .onnx_model import OnnxGraph, unsupported_nodes
from .whole_part import whole_part

_TRIES = 12
"""How often nodes are found to fail and the rest is tried again, before all nodes count as foreign."""

Convert = Callable[[OnnxGraph], Traced]
"""Translates a model whose nodes are all native or ours. Raises `NotNative`, or `ModelError` for a hopeless model."""


class NotNative(ModelError):
    """The importer, or a pass, cannot take something of a model.

    Attributes:
        node: The node; None if it is not known which one it is.
    """

    def __init__(self, message: str, node: onnx.NodeProto | None = None) -> None:
        super().__init__(message)
        self.node = node


def import_with_parts(read: OnnxGraph, convert: Convert) -> tuple[Traced, OnnxruntimeParts, Shapes]:
    """Translates a model, with calls of onnxruntime parts where it has to be.

    Args:
        read: The model.
        convert: The translation of native nodes.

    Returns:
        The module with its layers, the parts, and the shapes of the outputs that depend on data, by name.

    Raises:
        ModelError: The model needs onnxruntime, which is not installed or does not run it either.
    """
    reasons = unsupported_nodes(read.cleaned)
    if read.unclean is not None:
        return _by_onnxruntime(read, f"{read.name}: {read.unclean}")
    if not reasons:
        try:
            return convert(read), OnnxruntimeParts(), {}
        except NotNative as error:
            refused = str(error)
    else:
        refused = f"{read.name}: {next(iter(reasons.values()))}"
    return _partly_by_onnxruntime(read, convert, reasons, refused)


def _partly_by_onnxruntime(
    read: OnnxGraph, convert: Convert, reasons: dict[int, str], refused: str
) -> tuple[Traced, OnnxruntimeParts, Shapes]:
    """`refused` is the message with which the model would be refused without onnxruntime."""
    load("onnxruntime", f"{refused}; running it anyway", ModelError)
    try:
        types = value_types(read.cleaned, read.inputs, read.name)
    except ModelError:
        return _by_onnxruntime(read, refused)  # a rewrite may have broken the model, and not its source
    candidates = _Candidates(read, types, reasons)
    for _ in range(_TRIES):
        steps = candidates.divided()
        if steps and not any(isinstance(step, int) for step in steps):
            return _by_onnxruntime(read, f"{read.name}: {candidates.first_reason}", types)
        native, parts = candidates.as_parts(steps)
        try:
            return convert(native), parts, _open_outputs(read, types)
        except NotNative as error:
            refused = str(error)
            if not candidates.learn(error, convert):
                break
    return _by_onnxruntime(read, refused)


def _by_onnxruntime(
    read: OnnxGraph, refused: str, types: Mapping[str, ValueType] | None = None
) -> tuple[Traced, OnnxruntimeParts, Shapes]:
    """The whole model as one part. `types` are those of its outputs, if they are known."""
    load("onnxruntime", f"{refused}; running it anyway", ModelError)
    try:
        known = value_types(read.source, read.inputs, read.name) if types is None else types
    except ModelError as error:
        raise ModelError(f"{refused}; {error}") from error
    outputs = _outputs(read, known)
    whole = whole_part(OnnxOrigin(read.source), read.inputs, outputs, refused.removeprefix(f"{read.name}: "))
    if whole is None:
        raise ModelError(f"{refused}; onnxruntime has to run all of it, and takes less than 2 GB of weights then")
    traced = Traced(whole.mod, Layers(layers_of_nodes(read.source)).in_one_call())
    return traced, OnnxruntimeParts([whole.report], [whole.model]), _open_outputs(read, known)


def _outputs(read: OnnxGraph, types: Mapping[str, ValueType]) -> list[TensorInfo]:
    """The outputs as onnxruntime makes them. Raises `ModelError` for one of another kind or of an unknown rank."""
    _check_outputs(read, types)
    outputs = []
    for name in read.outputs:
        shape, dtype = types[name].shape, types[name].dtype
        if shape is None or dtype is None:
            raise ModelError(f"{read.name}: the shape of output {shown(name)!r} depends on data and is not supported")
        outputs.append(TensorInfo(name, shape, dtype))
    return outputs


def _check_outputs(read: OnnxGraph, types: Mapping[str, ValueType]) -> None:
    for name in read.outputs:
        if name in types and types[name].dtype is None:
            raise ModelError(f"{read.name}: output {shown(name)!r} is no tensor of numbers or booleans")


def _open_outputs(read: OnnxGraph, types: Mapping[str, ValueType]) -> Shapes:
    """The shapes of the model's outputs that depend on data."""
    shapes = {name: types[name].shape for name in read.outputs if name in types}
    return {name: shape for name, shape in shapes.items() if shape is not None and OPEN in shape}


class _Candidates:
    """The nodes of a model, and those among them that were found to be foreign, with the reasons."""

    def __init__(self, read: OnnxGraph, types: Mapping[str, ValueType], reasons: Mapping[int, str]) -> None:
        self._read, self._types = read, types
        self._wiring = Wiring(read.cleaned.graph)
        self._reasons = dict(reasons)
        self._initializers = {tensor.name: tensor for tensor in read.cleaned.graph.initializer}
        self._alone_tried = False
        _check_outputs(read, types)
        for position, names in enumerate(self._wiring.reads):
            made = [name for name in self._wiring.nodes[position].output if name]
            unfit = [name for name in (*names, *made) if name in types and not types[name].static]
            if unfit and position not in self._reasons:
                self._reasons[position] = f"{shown(unfit[0])!r} is no tensor of a fixed shape"

    @property
    def first_reason(self) -> str:
        """Why the first foreign node is foreign."""
        return self._reasons[min(self._reasons)]

    def divided(self) -> list[int | Segment]:
        """The native nodes, and the onnxruntime parts."""
        return list(divide(self._wiring, set(self._reasons), self._may_cross))

    def as_parts(self, steps: Sequence[int | Segment]) -> tuple[OnnxGraph, OnnxruntimeParts]:
        """The model with one node for each onnxruntime part, and the parts."""
        reports: list[OnnxruntimePart] = []
        models: list[bytes] = []
        nodes = [node for node in self._read.cleaned.graph.node if is_standard(node, "Constant")]
        for step in steps:
            if isinstance(step, int):
                nodes.append(self._wiring.nodes[step])
                continue
            nodes.append(self._call(step, len(models)))
            reports.append(self._report(step, len(models)))
            models.append(moved_in(self._model(step)).SerializeToString())
        native = with_nodes(self._read.cleaned, nodes)
        return replace(self._read, cleaned=native), OnnxruntimeParts(reports, models)

    def learn(self, failure: NotNative, convert: Convert) -> bool:
        """Notes which native nodes are at fault. False if none is found."""
        before = len(self._reasons)
        if failure.node is not None:
            outputs = list(failure.node.output)
            same = [position for position, node in enumerate(self._wiring.nodes) if list(node.output) == outputs]
            for position in same:
                self._note_equal(position, str(failure))
        elif not self._alone_tried:
            self._alone_tried = True
            self._try_alone(convert)
        return len(self._reasons) > before

    def _note_equal(self, position: int, message: str) -> None:
        """Notes a node that fails, and all others with the same operator, attributes and types."""
        signature = self._signature(position)
        for other in range(len(self._wiring.nodes)):
            if other not in self._reasons and not self._is_constant(other) and self._signature(other) == signature:
                self._reasons[other] = message.removeprefix(f"{self._read.name}: ")

    def _try_alone(self, convert: Convert) -> None:
        known: dict[Any, str | None] = {}
        for position in range(len(self._wiring.nodes)):
            if position in self._reasons or self._is_constant(position):
                continue
            signature = self._signature(position)
            if signature not in known:
                known[signature] = self._failure_alone(position, convert)
            if (message := known[signature]) is not None:
                self._reasons[position] = message.removeprefix(f"{self._read.name}: ")

    def _failure_alone(self, position: int, convert: Convert) -> str | None:
        segment = self._wiring.segment([position])
        try:
            convert(replace(self._read, cleaned=self._model(segment), outputs=segment.outputs))
        except NotNative as error:
            return str(error)
        return None

    def _signature(self, position: int) -> Any:
        node = self._wiring.nodes[position]
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        inputs = [
            (len(tensor.dims) and tuple(tensor.dims), tensor.data_type)
            if (tensor := self._initializers.get(name)) is not None
            else self._types.get(name)
            for name in node.input
        ]
        return node.domain, node.op_type, tuple(attributes), tuple(inputs), len(node.output)

    def _may_cross(self, name: str) -> bool:
        return name not in self._types or self._types[name].dtype is not None

    def _is_constant(self, position: int) -> bool:
        return is_standard(self._wiring.nodes[position], "Constant")

    def _call(self, segment: Segment, index: int) -> onnx.NodeProto:
        """The node that stands for an onnxruntime part."""
        return helper.make_node(
            OPERATOR,
            segment.inputs,
            segment.outputs,
            f"foreign_{index}",
            domain=DOMAIN,
            index=index,
            types=[self._types[name].proto() for name in segment.outputs],
        )

    def _report(self, segment: Segment, index: int) -> OnnxruntimePart:
        operators = Counter(operator_name(self._wiring.nodes[position]) for position in segment.nodes)
        reason = next(self._reasons[position] for position in segment.nodes if position in self._reasons)
        return OnnxruntimePart(part_file(index), dict(operators), reason)

    def _model(self, segment: Segment) -> onnx.ModelProto:
        """An onnxruntime part as a model, with the constants that it reads."""
        cleaned = self._read.cleaned
        read = {name for position in segment.nodes for name in self._wiring.reads[position]}
        constants = [
            node for node in cleaned.graph.node if is_standard(node, "Constant") and read.intersection(node.output)
        ]
        graph = helper.make_graph(
            [*constants, *(self._wiring.nodes[position] for position in segment.nodes)],
            cleaned.graph.name or "part",
            [helper.make_value_info(name, self._types[name].proto()) for name in segment.inputs],
            [helper.make_value_info(name, self._types[name].proto()) for name in segment.outputs],
            [tensor for tensor in cleaned.graph.initializer if tensor.name in read],
        )
        return helper.make_model(
            graph, opset_imports=cleaned.opset_import, ir_version=cleaned.ir_version, functions=cleaned.functions
        )
