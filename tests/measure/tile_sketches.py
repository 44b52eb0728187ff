"""A sketch whose kernels use tiles (AMX), for tests of machines that lack them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from stand_ins.faults import Plain
from stormdrop.ir.attributes import NEEDS
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import Variant
from stormdrop.space import Categorical, Space


@dataclass(frozen=True)
class WithTiles:
    """The sketch `Plain` with one more knob, `tiles`: "none", "named" or "unnamed".

    With the latter two a kernel clears a tile first. "named" says that this needs a unit, "unnamed" does not.
    """

    name: str = "with_tiles"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        space = Plain().space(workload, target)
        return space and Space(self.name, [*space.knobs, Categorical("tiles", ("none", "named", "unnamed"))])

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        main = Plain().apply(workload, target, {"tile": config["tile"]}).main
        if config["tiles"] == "none":
            return Variant(main)
        spoiled = _with_tile(main)
        return Variant(spoiled.with_attr(NEEDS, ["amx-tile"]) if config["tiles"] == "named" else spoiled)


def _with_tile(function: PrimFunc) -> PrimFunc:
    """The function with a statement before its own that clears a tile."""
    root = function.body.block
    clear = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.x86.tilezero", tirx.const(0, "int8")))
    block = SBlock([], [], [], "root", tirx.SeqStmt([clear, root.body]), alloc_buffers=root.alloc_buffers)
    return function.with_body(SBlockRealize([], True, block))
