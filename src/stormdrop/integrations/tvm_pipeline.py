"""`tvm.compile(mod, target, relax_pipeline="stormdrop")`: tunes a Relax module inside TVM's own build.

    mod  ->  its kernels, tuned  ->  mod with scheduled kernels  ->  TVM's default pipeline

Importing this file registers the pipeline. TVM's target says that it is for a CPU; kernels are tuned for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import tvm
from tvm import relax

from ..errors import InputError
from ..machine.cpu import Cpu
from ..model.inputs.combinations import is_list
from ..model.tuning.tune import tune_model_with
from ..records import Store
from ..tuning.options import DEFAULT_SEARCH, TuneOptions

NAME = "stormdrop"


def pipeline(
    *,
    time: float | str | None = None,
    trials: int | None = None,
    search: str = DEFAULT_SEARCH,
    seed: int = 0,
    fresh: bool = False,
    keep_denormals: bool = False,
    store: Store | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Callable[[tvm.IRModule], tvm.IRModule]:
    """Makes a Relax pipeline that tunes. Its options are those of `sd.tune_model`.

    The built module takes and returns what the module did before, unlike a `CompiledModel`, which allocates the memory
    between its kernels once.

    Args:
        time: The most wall time of the tuning; without `time` and `trials` it is 10 minutes.
        trials: The most distinct candidates to measure, over all kernels.
        search: The name of the search.
        seed: The seed of everything that is random.
        fresh: Ignore all records.
        keep_denormals: Compute with denormals, where kernels take them for zero otherwise.
        store: Where records are kept; the user's own database by default.
        shapes: The sizes of inputs that are symbolic, by the input's name.

    Raises:
        InputError: A setting is bad. When the pipeline runs: TVM's target is no CPU, or the module cannot be imported.

    Example:
        ```python
        from stormdrop.integrations import tvm_pipeline

        tuning = tvm_pipeline.pipeline(time="3m")
        # executable = tvm.compile(mod, "llvm", relax_pipeline=tuning, tir_pipeline="stormdrop")
        ```
    """
    for name, shape in (shapes or {}).items():
        if any(map(is_list, shape)):
            raise InputError(f"relax_pipeline {NAME}: tvm.compile builds one size; input {name!r} has several")
    options = TuneOptions.of(time=time, trials=trials, search=search, seed=seed, fresh=fresh)

    # A plain function: TVM would make a RuntimeError of what a pass of its own raises, also of Ctrl-C.
    def tune(mod: tvm.IRModule) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True)
        if target is not None and str(target.kind.name) != "llvm":
            raise InputError(f"relax_pipeline {NAME}: models are tuned for CPUs; the target is {target.kind.name}")
        # TVM's own lowering makes no instructions of arithmetic units.
        machine = replace(Cpu.detect(), features=(), keep_denormals=keep_denormals)
        result = tune_model_with(mod, machine, options, store=store, shapes=shapes)
        assert result.module is not None
        return relax.get_pipeline("default_build")(result.module())

    return tune


if NAME not in relax.pipeline.PIPELINE_MAP:
    relax.register_pipeline(NAME)(pipeline)
