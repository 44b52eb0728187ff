"""Inputs whose values decide the shape of a tensor, as axes, sizes and repeats do. A model is compiled without them.

Every shape of a compiled model is fixed. So the user fixes the value of such an input (`--value`), and the model is
imported with a constant in its place.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ...errors import ModelError, shown
from .source import described
from .standard import is_standard

_DECIDING: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Which inputs of an operator decide the shape of its outputs. Those of reductions are their axes."""

_PASSES_ON = (
    "Add",
    "Cast",
    "Concat",
    "Div",
    "Gather",
    "Identity",
    "Mul",
    "Reshape",
    "Slice",
    "Squeeze",
    "Sub",
    "Unsqueeze",
)
"""What a shape is computed with: whoever decides an operand, while the others are constants, decides the result."""


def refuse_deciding_inputs(model: onnx.ModelProto, name: str) -> None:
    """Raises `ModelError` for the first input whose value decides a shape.

    Shapes that depend on data, as that of a NonZero, are something else: onnxruntime runs what makes them.

    Args:
        model: The model.
        name: Its name, for messages.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer} | {""}
    origin = {value.name: value.name for value in graph.input if value.name not in constants}
    for node in graph.node:
        if not is_standard(node):
            continue
        if node.op_type == "Constant":
            constants.update(node.output)
        for position in deciding_positions(node):
            if position < len(node.input) and node.input[position] in origin:
                key = shown(origin[node.input[position]])
                raise ModelError(
                    f"{name}: input {key!r} decides the shape of what {described(node)} makes; fix its value, as in "
                    f"--value {key}=1 (values={{{key!r}: ...}} in Python)"
                )
        decided = {origin[value] for value in node.input if value in origin}
        if (
            node.op_type in _PASSES_ON
            and decided
            and all(value in origin or value in constants for value in node.input)
        ):
            origin[node.output[0]] = min(decided)


def deciding_positions(node: onnx.NodeProto) -> tuple[int, ...]:
    """The positions of the inputs of a node that decide the shape of its outputs.

    Args:
        node: A node of the standard's operators; a node of any other domain has none.
    """
    if not is_standard(node):
        return ()
    return (1,) if node.op_type.startswith("Reduce") else _DECIDING.get(node.op_type, ())
