"""The passes that lower scheduled functions for GPUs, beside those of TVM."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from stormdrop.codegen.gpu_lowering import GPU_PIPELINE

LEFT_OUT = {
    *("s_tir.LowerAutoCopy", "s_tir.InjectPermutedLayout", "s_tir.TransformMmaBufferLayout"),
    *("s_tir.VerifyVTCMLimit", "s_tir.LowerVtcmAlloc", "s_tir.LowerAsyncDMA"),
    *("tirx.FP8ComputeLegalize", "tirx.FP8StorageLegalize", "tirx.BF16ComputeLegalize"),
}


def passes_of(pipeline: Any) -> list[str]:
    """The names of the passes that a pipeline runs, without its own and without passes that hold others."""
    names: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Names:
        def run_before_pass(self, module: Any, info: Any) -> None:
            names.append(str(info.name))

    with tvm.transform.PassContext(instruments=[Names()], config={"tirx.use_async_copy": True}):
        pipeline(tvm.IRModule())
    return [name for name in names if name.startswith(("s_tir.", "tirx."))]


def test_the_passes_are_those_of_tvm_in_its_order_but_for_those_that_are_left_out() -> None:
    ours, theirs = (passes_of(make()[0]) for make in (PIPELINE_MAP[GPU_PIPELINE], default_s_tir_pipeline))
    remaining = iter(theirs)
    assert all(name in remaining for name in ours)
    assert Counter(theirs) - Counter(ours) == Counter(LEFT_OUT)
