"""The design spaces of TVM MetaSchedule as sketches, so that our searches can search them.

MetaSchedule's rules turn a function into a few traces. A trace is a list of scheduling instructions, some of which
sample a decision. Here each trace is a sketch, and each sampling instruction a knob, in the trace's order:

    sample_perfect_tile(loop, n=4, max_innermost_factor=64)     Tile          tile0 = (2, 4, 1, 8)
    sample_categorical([0, 16, 64, 512])                        Ordinal       choice0 = 16
    sample_compute_location(block)                              Ordinal       location0 = 3

A configuration is applied by replaying the trace with its decisions. Then MetaSchedule's postprocessors run. The terms
are those of Shao et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022, section 3.

Rules and postprocessors are TVM's defaults for `llvm` and for `cuda` (Listing 1 of the AF-DS paper, reductions across
threads, tensor cores for float16). TVM's additions for processors with dot-product instructions are left out, because
they concern 8-bit integers only. Constant inputs take part in the layout rewriting, as when TVM tunes a model: the
rewriting of a weight is a transform of that input.

    sd.tune(workload, sketches=meta_schedule_sketches(workload, target), search="evolutionary")
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar

from tvm.ir import IRModule
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx import For, PrimFunc, SeqStmt

from ..errors import SpaceError, TargetError, UnsupportedFunction
from ..ir.stages import StageGraph
from ..ir.workload import Workload
from ..machine.contract import OPENCL, Machine
from ..space import Categorical, Knob, Ordinal, Space, Tile
from .contract import Variant
from .gpu.intrinsics import cuda_intrinsics

_SEED = 1
_REPLAYS = 64  # random replays that show where blocks can be computed
_REWRITTEN = "meta_schedule.layout_rewrite_preproc"
_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
_NAMES = {_TILE: "tile", _CHOICE: "choice", _LOCATION: "location"}
_INLINE = -2  # a location; -1 is a loop nest of its own, 0 and more are the loops around the block that reads it


def meta_schedule_sketches(workload: Workload, target: Machine) -> list[MetaSchedule]:
    """MetaSchedule's design spaces of a workload, in the order in which it generates them.

    Args:
        workload: The function to schedule.
        target: The machine to schedule it for.

    Raises:
        UnsupportedFunction: MetaSchedule's rules fail on it.
    """
    return [MetaSchedule(index) for index in range(len(_design(workload, target).traces))]


@dataclass(frozen=True)
class MetaSchedule:
    """One of the design spaces that MetaSchedule generates for a workload.

    Not every point of its space can be scheduled, because a postprocessor may refuse it. `apply` then raises an
    exception, and the candidate has failed.

    If a location is impossible beside the other decisions, the next possible one outwards is taken, as in
    MetaSchedule's own search. Points that differ only in the location may then be the same schedule.

    Attributes:
        index: The design space's position in the order of generation.
    """

    max_error: ClassVar[float] = 0.0

    index: int

    @property
    def name(self) -> str:
        """The sketch's name: "meta_schedule." and the index."""
        return f"meta_schedule.{self.index}"

    def space(self, workload: Workload, target: Machine) -> Space | None:
        """The space with a knob per sampling instruction. Its origin is what MetaSchedule samples with a fixed seed.

        Returns:
            The space; None if the workload has fewer design spaces.

        Raises:
            UnsupportedFunction: The trace has a sampling instruction that is no knob here.
        """
        design = _design(workload, target)
        if self.index >= len(design.traces):
            return None
        return space_of_trace(self.name, design.module, design.traces[self.index])

    def apply(self, workload: Workload, target: Machine, config: Mapping[str, Any]) -> Variant:
        """The schedule of the trace with the decisions of a configuration.

        Raises:
            SpaceError: A tile does not fit its loop, or a postprocessor refuses the schedule.
        """
        design = _design(workload, target)
        trace = design.traces[self.index]
        return _variant(schedule_of_trace(self.name, design.module, trace, config, design.postprocessors))


def space_of_trace(name: str, module: IRModule, trace: Trace) -> Space:
    """The space of a trace, with a knob per sampling instruction. Its origin is the decisions that the trace holds.

    Args:
        name: The name of the space.
        module: What the trace schedules.
        trace: The trace, without what postprocessors did.

    Raises:
        UnsupportedFunction: The trace has a sampling instruction that is no knob here.
    """
    sampled = _sampled(trace)
    locations = _locations(module, trace)
    knobs = [_knob(knob, instruction, trace, locations) for knob, instruction in sampled.items()]
    instructions = json.dumps(trace.as_json()[0], default=lambda immediate: immediate.value)
    version = metadata.version("apache-tvm")
    return Space(
        name,
        knobs,
        origin={knob: _value(instruction, trace.get_decision(instruction)) for knob, instruction in sampled.items()},
        revision=f"tvm {version}, {hashlib.sha256(instructions.encode()).hexdigest()[:16]}",
    )


def schedule_of_trace(
    name: str, module: IRModule, trace: Trace, config: Mapping[str, Any], postprocessors: Sequence[Any]
) -> Schedule:
    """The schedule of a trace with the decisions of a configuration of its space.

    Args:
        name: The name of the space, for errors.
        module: What the trace schedules.
        trace: The trace, without what postprocessors did.
        config: The configuration.
        postprocessors: MetaSchedule's postprocessors, which run after the trace.

    Raises:
        SpaceError: A tile does not fit its loop, or a postprocessor refuses the schedule.
    """
    sampled = _sampled(trace)
    decisions = {instruction: _decision(instruction, config[knob]) for knob, instruction in sampled.items()}
    schedule = Schedule(module, seed=_SEED, debug_mask="none")
    Trace(trace.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
    for knob, instruction in _sampled(schedule.trace).items():
        used = schedule.trace.get_decision(instruction)
        # TVM silently replaces tiles that do not fit, which would be the schedule of another configuration.
        if instruction.kind.name == _TILE and list(used) != decisions[sampled[knob]]:
            raise SpaceError(f"{name}: {knob}={config[knob]} does not fit the loop; TVM takes {list(used)}")
    for postprocessor in postprocessors:
        if not postprocessor.apply(schedule):
            raise SpaceError(f"{name}: {postprocessor} refuses the schedule")
    return schedule


def recorded_schedule(sketch: MetaSchedule, workload: Workload, target: Machine, config: Mapping[str, Any]) -> Schedule:
    """The schedule of a configuration with its trace, as MetaSchedule's database holds it.

    Raises:
        SpaceError: As `MetaSchedule.apply`.
    """
    design = _design(workload, target)
    return schedule_of_trace(sketch.name, design.module, design.traces[sketch.index], config, design.postprocessors)


def replay(workload: Workload, trace: Any) -> Variant:
    """The schedule of a complete trace, as MetaSchedule's database holds it.

    Args:
        workload: The function that the trace schedules.
        trace: The trace in JSON, with its decisions and what the postprocessors did.

    Raises:
        Exception: Whatever TVM raises if the trace belongs to another workload.
    """
    # The variable keeps a reference: a schedule changes in place a module that nothing else refers to.
    module = tunable(workload)
    schedule = Schedule(module, seed=_SEED, debug_mask="none")
    Trace.apply_json_to_schedule(trace, schedule)
    return _variant(schedule)


def tunable(workload: Workload) -> IRModule:
    """The workload as a module for MetaSchedule. Constant inputs are marked, so that their layout may change."""
    function = workload.function
    if workload.constants:
        function = function.with_attr("layout_free_buffers", list(workload.constants))
    return IRModule({"main": function})


def tune_context(module: IRModule, target: Machine, generator: Any = None, threads: int = 1) -> Any:
    """TVM's context of a tuning, made without its Python class.

    That class imports all tensor intrinsics first, which takes many seconds, and none of them is used.
    """
    return _ffi_api.TuneContext(module, target.tvm(), generator, None, "main", threads, _SEED, None)


@dataclass(frozen=True)
class _Design:
    """What MetaSchedule generates for a function: traces with decisions, and what has to run after each replay."""

    module: IRModule
    traces: Sequence[Trace]
    postprocessors: Sequence[Any]


@lru_cache(maxsize=64)
def _design(workload: Workload, target: Machine) -> _Design:
    module = tunable(workload)
    kind = str(target.tvm().kind.name)
    if kind == OPENCL:
        raise TargetError("MetaSchedule's spaces are for CPUs and for NVIDIA's GPUs; for OpenCL there is builtin")
    if kind == "cuda" and any(spec.dtype == "float16" for spec in workload.inputs):
        cuda_intrinsics()  # the rules need them
        kind = "cuda-tensorcore"
    generator = PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)
    context = tune_context(module, target, generator)
    _ffi_api.TuneContextInitialize(context)
    try:
        schedules = context.generate_design_space()
    except ScheduleError as error:
        reason = str(error).rsplit("Error message:", 1)[-1].split(".")[0]  # before it stands the whole function
        raise UnsupportedFunction(f"{workload.name}: MetaSchedule's rules fail on it: {reason.strip()}") from error
    return _Design(module, [schedule.trace for schedule in schedules], list(context.space_generator.postprocs))


def _sampled(trace: Trace) -> dict[str, Any]:
    """The sampling instructions of a trace in their order, by the name of their knob."""
    instructions: dict[str, Any] = {}
    counts = dict.fromkeys(_NAMES, 0)
    for instruction in trace.insts:
        kind = str(instruction.kind.name)
        if not kind.startswith("Sample"):
            continue
        if kind not in _NAMES:
            raise UnsupportedFunction(f"MetaSchedule's trace has a {kind}, which is no knob here")
        instructions[f"{_NAMES[kind]}{counts[kind]}"] = instruction
        counts[kind] += 1
    return instructions


def _knob(name: str, instruction: Any, trace: Trace, locations: Mapping[str, Sequence[int]]) -> Knob:
    if instruction.kind.name == _LOCATION:
        return Ordinal(name, locations[name])
    if instruction.kind.name == _CHOICE:
        values = _choices(instruction)
        return Ordinal(name, values) if values == sorted(values) else Categorical(name, values)
    levels, most = (int(attribute) for attribute in instruction.attrs)
    return Tile(name, math.prod(_value(instruction, trace.get_decision(instruction))), levels, max_inner=most)


def _value(instruction: Any, decision: Any) -> Any:
    """The knob's value for a decision of TVM's."""
    if instruction.kind.name == _TILE:
        return tuple(int(factor) for factor in decision)
    return _choices(instruction)[int(decision)] if instruction.kind.name == _CHOICE else int(decision)


def _decision(instruction: Any, value: Any) -> Any:
    """The inverse of `_value`."""
    if instruction.kind.name == _TILE:
        return list(value)
    return _choices(instruction).index(value) if instruction.kind.name == _CHOICE else value


def _choices(instruction: Any) -> list[int]:
    return [int(choice) for choice in instruction.attrs[0]]


def _depth(location: int) -> float:
    """A key that sorts locations from the outermost to the innermost, where a block is inlined."""
    return float("inf") if location == _INLINE else location


def _locations(module: IRModule, trace: Trace) -> dict[str, list[int]]:
    """For each knob of a location the values that TVM takes in many random replays.

    Which locations are possible depends on the tiles, because loops of one iteration are left out, and on where other
    blocks were put before.
    """
    possible = {
        name: {_value(instruction, trace.get_decision(instruction))}
        for name, instruction in _sampled(trace).items()
        if instruction.kind.name == _LOCATION
    }
    for seed in range(1, _REPLAYS + 1 if possible else 1):
        schedule = Schedule(module, seed=seed, debug_mask="none")
        Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        sampled = _sampled(schedule.trace)
        for name, locations in possible.items():
            locations.add(_value(sampled[name], schedule.trace.get_decision(sampled[name])))
    return {name: sorted(locations, key=_depth) for name, locations in possible.items()}


def _variant(schedule: Schedule) -> Variant:
    """The main function, and as transforms the rewritings of constants that MetaSchedule puts into it."""
    function = schedule.mod["main"]
    main = RemoveWeightLayoutRewriteBlock()(schedule.mod)["main"]
    # It is constructed again, because its type still has the layouts that inputs had before.
    main = PrimFunc(main.params, main.body, main.ret_type, main.attrs)
    return Variant(main, dict(_rewriting(function, nest) for nest in _nests(function) if _rewrites(nest)))


def _nests(function: PrimFunc) -> list[Any]:
    body = function.body.block.body
    return list(body) if isinstance(body, SeqStmt) else [body]


def _rewrites(nest: Any) -> bool:
    inner = _innermost(nest)
    return isinstance(inner, SBlockRealize) and _REWRITTEN in inner.block.annotations


def _rewriting(function: PrimFunc, nest: Any) -> tuple[int, PrimFunc]:
    """The position of the input that a nest rewrites, and the nest as a function."""
    block = _innermost(nest).block
    source, target = block.reads[0].source, block.writes[0].source
    (position,) = [index for index, parameter in enumerate(function.params) if parameter.same_as(source)]
    rewriting = PrimFunc([source, target], SBlockRealize([], True, SBlock([], [], [], "root", nest)))
    return position, StageGraph.parse(rewriting).function()


def _innermost(nest: Any) -> Any:
    while isinstance(nest, For):
        nest = nest.body
    return nest
