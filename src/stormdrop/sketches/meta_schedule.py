"""TVM MetaSchedule's own design spaces as sketches, to be searched with our searches.

MetaSchedule's rules turn a function into a few traces: lists of scheduling instructions, some of which sample a
decision. Each trace is a sketch here, each sampling instruction a knob, in the trace's order:

    sample_perfect_tile(loop, n=4, max_innermost_factor=64)     Tile          tile0 = (2, 4, 1, 8)
    sample_categorical([0, 16, 64, 512])                        Ordinal       choice0 = 16
    sample_compute_location(block)                              Ordinal       location0 = 3

A configuration is applied by replaying the trace with its decisions; then MetaSchedule's postprocessors run. (Shao et
al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022, section 3, calls the trace the search
space and its samplings the decisions.)

Rules and postprocessors are TVM's defaults for `llvm`, or for `cuda` (Listing 1 of the AF-DS paper, and reductions
across threads; tensor cores for float16); what it adds for processors with dot-product instructions concerns 8-bit
integers only. Constant inputs take part in its layout rewriting, as they do where TVM tunes a model: the rewriting of a
weight is a transform of that input.

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
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply
from tvm.s_tir.schedule import Trace
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx import For, PrimFunc, SeqStmt

from ..errors import SpaceError, UnsupportedFunction
from ..ir.stages import StageGraph
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..space import Categorical, Knob, Ordinal, Space, Tile
from .contract import Variant

_SEED = 1
_REPLAYS = 64  # to find out where blocks can be computed
_REWRITTEN = "meta_schedule.layout_rewrite_preproc"
_TILE, _CHOICE, _LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
_NAMES = {_TILE: "tile", _CHOICE: "choice", _LOCATION: "location"}
_INLINE = -2  # a location; -1 is a loop nest of the block's own, 0 and more are the loops around its reader


def meta_schedule_sketches(workload: Workload, target: Machine) -> list[MetaSchedule]:
    """MetaSchedule's design spaces of a workload, in the order in which it generates them."""
    return [MetaSchedule(index) for index in range(len(_design(workload, target).traces))]


@dataclass(frozen=True)
class MetaSchedule:
    """Number `index` of the design spaces of whatever workload it is given.

    A point of its space need not schedule: a postprocessor may refuse it. That is an exception of `apply`, so a failed
    candidate.

    A location that is impossible beside the other decisions means the next possible one outwards, as it does in
    MetaSchedule's own search: points that differ in nothing else may then be the same schedule.
    """

    max_error: ClassVar[float] = 0.0

    index: int

    @property
    def name(self) -> str:
        return f"meta_schedule.{self.index}"

    def space(self, workload: Workload, target: Machine) -> Space | None:
        """A knob per sampling instruction. The origin is what MetaSchedule samples first, from a fixed seed.

        None where there are fewer design spaces. Raises `UnsupportedFunction` for a sampling instruction that is no
        knob here.
        """
        design = _design(workload, target)
        if self.index >= len(design.traces):
            return None
        trace = design.traces[self.index]
        sampled = _sampled(trace)
        locations = _locations(design, trace)
        knobs = [_knob(name, instruction, trace, locations) for name, instruction in sampled.items()]
        instructions = json.dumps(trace.as_json()[0], default=_number)
        version = metadata.version("apache-tvm")
        return Space(
            self.name,
            knobs,
            origin={name: _value(each, trace.get_decision(each)) for name, each in sampled.items()},
            revision=f"tvm {version}, {hashlib.sha256(instructions.encode()).hexdigest()[:16]}",
        )

    def apply(self, workload: Workload, target: Machine, config: Mapping[str, Any]) -> Variant:
        """The trace with the decisions of `config`. Raises `SpaceError` where TVM does not take them."""
        design = _design(workload, target)
        trace = design.traces[self.index]
        sampled = _sampled(trace)
        decisions = {instruction: _decision(instruction, config[name]) for name, instruction in sampled.items()}
        schedule = Schedule(design.module, seed=_SEED, debug_mask="none")
        Trace(trace.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
        for name, instruction in _sampled(schedule.trace).items():
            used = schedule.trace.get_decision(instruction)
            # TVM replaces tiles that do not fit silently: that schedule has another name.
            if instruction.kind.name == _TILE and list(used) != decisions[sampled[name]]:
                raise SpaceError(f"{self.name}: {name}={config[name]} does not fit the loop; TVM takes {list(used)}")
        for postprocessor in design.postprocessors:
            if not postprocessor.apply(schedule):
                raise SpaceError(f"{self.name}: {postprocessor} refuses the schedule")
        return _variant(schedule)


def replay(workload: Workload, trace: Any) -> Variant:
    """The schedule of a trace in JSON with everything in it, as MetaSchedule's database holds it.

    Raises what TVM raises where the trace is not this workload's.
    """
    module = tunable(workload)  # held: a schedule writes into a module that is its alone, and so into the workload
    schedule = Schedule(module, seed=_SEED, debug_mask="none")
    Trace.apply_json_to_schedule(trace, schedule)
    return _variant(schedule)


def tunable(workload: Workload) -> IRModule:
    """The workload as MetaSchedule takes it: a module, in which constant inputs are marked as free in their layout."""
    function = workload.function
    if workload.constants:
        function = function.with_attr("layout_free_buffers", list(workload.constants))
    return IRModule({"main": function})


def tune_context(module: IRModule, target: Machine, generator: Any = None, threads: int = 1) -> Any:
    """TVM's context of a tuning. Its class would import all tensor intrinsics first: many seconds, and none is used."""
    return _ffi_api.TuneContext(module, target.tvm(), generator, None, "main", threads, _SEED, None)


@dataclass(frozen=True)
class _Design:
    """What MetaSchedule makes of a function: its traces, with decisions, and what is to run after each replay."""

    module: IRModule
    traces: Sequence[Trace]
    postprocessors: Sequence[Any]


@lru_cache(maxsize=64)
def _design(workload: Workload, target: Machine) -> _Design:
    module = tunable(workload)
    kind = str(target.tvm().kind.name)
    if kind == "cuda" and any(spec.dtype == "float16" for spec in workload.inputs):
        import tvm.s_tir.tensor_intrin.cuda  # noqa: F401  what the rules look for; takes seconds, once in a process

        kind = "cuda-tensorcore"
    generator = PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)
    context = tune_context(module, target, generator)
    _ffi_api.TuneContextInitialize(context)
    schedules = context.generate_design_space()
    return _Design(module, [each.trace for each in schedules], list(context.space_generator.postprocs))


def _sampled(trace: Trace) -> dict[str, Any]:
    """The instructions that sample something, by the name of their knob, in the trace's order."""
    found: dict[str, Any] = {}
    counts = dict.fromkeys(_NAMES, 0)
    for instruction in trace.insts:
        kind = str(instruction.kind.name)
        if not kind.startswith("Sample"):
            continue
        if kind not in _NAMES:
            raise UnsupportedFunction(f"MetaSchedule's trace has a {kind}, which is no knob here")
        found[f"{_NAMES[kind]}{counts[kind]}"] = instruction
        counts[kind] += 1
    return found


def _knob(name: str, instruction: Any, trace: Trace, locations: Mapping[str, Sequence[int]]) -> Knob:
    if instruction.kind.name == _LOCATION:
        return Ordinal(name, locations[name])
    if instruction.kind.name == _CHOICE:
        values = _candidates(instruction)
        return Ordinal(name, values) if values == sorted(values) else Categorical(name, values)
    levels, most = (int(attribute) for attribute in instruction.attrs)
    return Tile(name, math.prod(_value(instruction, trace.get_decision(instruction))), levels, max_inner=most)


def _value(instruction: Any, decision: Any) -> Any:
    """What a configuration holds for a decision of TVM's."""
    if instruction.kind.name == _TILE:
        return tuple(int(factor) for factor in decision)
    return _candidates(instruction)[int(decision)] if instruction.kind.name == _CHOICE else int(decision)


def _decision(instruction: Any, value: Any) -> Any:
    """The inverse of `_value`."""
    if instruction.kind.name == _TILE:
        return list(value)
    return _candidates(instruction).index(value) if instruction.kind.name == _CHOICE else value


def _candidates(instruction: Any) -> list[int]:
    return [int(candidate) for candidate in instruction.attrs[0]]


def _number(immediate: Any) -> Any:
    return immediate.value


def _depth(location: int) -> float:
    """Orders locations from the outside inwards: inlining puts a block where its value is read."""
    return float("inf") if location == _INLINE else location


def _locations(design: _Design, trace: Trace) -> dict[str, list[int]]:
    """For each knob of a location those that TVM takes in some of many replays, all of them random.

    Which there are depends on the tiles (a loop of one iteration is none), and on where other blocks were put before.
    """
    met = {
        name: {_value(each, trace.get_decision(each))}
        for name, each in _sampled(trace).items()
        if each.kind.name == _LOCATION
    }
    for seed in range(1, _REPLAYS + 1 if met else 1):
        schedule = Schedule(design.module, seed=seed, debug_mask="none")
        Trace(trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        sampled = _sampled(schedule.trace)
        for name, locations in met.items():
            locations.add(_value(sampled[name], schedule.trace.get_decision(sampled[name])))
    return {name: sorted(locations, key=_depth) for name, locations in met.items()}


def _variant(schedule: Schedule) -> Variant:
    """The main function and the rewritings of constants, which MetaSchedule's last postprocessor puts into it."""
    function = schedule.mod["main"]
    main = RemoveWeightLayoutRewriteBlock()(schedule.mod)["main"]
    # Made anew: its type still has the layouts that inputs had before.
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
    (position,) = [at for at, parameter in enumerate(function.params) if parameter.same_as(source)]
    alone = PrimFunc([source, target], SBlockRealize([], True, SBlock([], [], [], "root", nest)))
    return position, StageGraph.parse(alone).function()


def _innermost(nest: Any) -> Any:
    while isinstance(nest, For):
        nest = nest.body
    return nest
