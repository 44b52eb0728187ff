"""Kernels for CPUs whose units this one may not have: scheduled and compiled to machine code, not run."""

from __future__ import annotations

import re

import pytest

from stand_ins.assembly import assembly
from stormdrop import operators
from stormdrop.machine.cpu import parse_machine
from stormdrop.sketches.registry import sketches_for

LAYERS = {
    "matmul": operators.matmul(48, 64, 40),
    "dense, bfloat16": operators.dense(32, 64, 96, bias=1, act="relu", dtype="bfloat16"),
    "dense, uint8": operators.dense(32, 64, 96, dtype="uint8"),
    "conv2d, bfloat16": operators.conv2d(1, 12, 12, 32, 32, 3, 3, pad=1, dtype="bfloat16"),
    "conv2d, uint8": operators.conv2d(1, 12, 12, 32, 32, 3, 3, pad=1, dtype="uint8"),
    "conv2d of 3 channels, uint8": operators.conv2d(1, 16, 16, 3, 16, 3, 3, stride=2, pad=1, dtype="uint8"),
    "weights of 4 bits": operators.weight_only_dense(4, 64, 128, bits=4),
    "attention": operators.attention(1, 32, 32, 32, 32),
    "softmax": operators.softmax(16, 100),
}

UNITS = {
    "float32": r"vfn?madd\w+ps\t.*%[yz]mm",
    "dots of uint8": r"vpdpbusd\t.*%zmm",
    "dots of bfloat16": r"vdpbf16ps\t.*%zmm",
    "tiles of uint8": r"tdpbusd\t.*%tmm",
    "tiles of bfloat16": r"tdpbf16ps\t.*%tmm",
}
"""What is multiplied, by the instructions that do it."""

USED = {
    "cpu/sapphirerapids": {
        "matmul": {"float32", "tiles of bfloat16"},  # three products of parts
        "dense, bfloat16": {"float32", "tiles of bfloat16"},
        "dense, uint8": {"dots of uint8", "tiles of uint8"},
        "conv2d, bfloat16": {"float32", "tiles of bfloat16"},
        "conv2d, uint8": {"dots of uint8", "tiles of uint8"},
        "conv2d of 3 channels, uint8": {"dots of uint8", "tiles of uint8"},
        "weights of 4 bits": {"dots of uint8", "float32"},
    },
    "cpu/znver5": {
        "dense, bfloat16": {"dots of bfloat16"},
        "dense, uint8": {"dots of uint8"},
        "conv2d, bfloat16": {"dots of bfloat16", "float32"},  # Winograd's in float32
        "conv2d, uint8": {"dots of uint8"},
        "conv2d of 3 channels, uint8": {"dots of uint8"},
        "weights of 4 bits": {"dots of uint8", "float32"},
    },
}
"""By target and layer the units that the default schedules of its sketches use; where nothing is said, only float32."""


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize("layer", LAYERS)
def test_kernels_are_compiled_for_the_units_of_their_target(layer: str, name: str) -> None:
    workload, target, used = LAYERS[layer], parse_machine(name), set[str]()
    for sketch, space in sketches_for(workload, target):
        text = assembly(sketch.apply(workload, target, space.config(space.origin)).main, target.tvm())
        used |= {unit for unit, instruction in UNITS.items() if re.search(instruction, text)}
    assert used == USED[name].get(layer, {"float32"})
