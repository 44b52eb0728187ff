"""Functions that sum up products of bytes are marked for TVM's fusion, and others are left to TVM."""

from __future__ import annotations

import pytest
import tvm

from stormdrop import operators
from stormdrop.ir.workload import Workload
from stormdrop.model.passes.byte_contractions import mark_byte_contractions

FUSES_WHAT_FOLLOWS = 4


@pytest.mark.parametrize(
    ("workload", "marked"),
    [
        (operators.matmul(4, 8, 6, dtype="uint8"), True),
        (operators.conv2d(1, 6, 6, 8, 16, 3, 3, pad=1, dtype="int8"), True),
        (operators.matmul(4, 8, 6), False),  # TVM knows products of floats
        (operators.dense(4, 8, 6, act="relu", dtype="uint8"), False),  # it does not end with the contraction
        (operators.softmax(4, 8), False),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else str(value),
)
def test_contractions_of_bytes_are_marked(workload: Workload, marked: bool) -> None:
    function = mark_byte_contractions(tvm.IRModule({"kernel": workload.function}))["kernel"]
    assert (int(function.attrs.get("op_pattern", 0)) == FUSES_WHAT_FOLLOWS) == marked
