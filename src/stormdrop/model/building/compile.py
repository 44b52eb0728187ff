"""Puts the chosen schedules into a graph and compiles it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GenericConst

from ...codegen.device_code import DeviceModule
from ...codegen.needed_features import needed_features as units_of
from ...errors import ModelError, one_line
from ...ir.attributes import UNALIGNED
from ...ir.reference import evaluate
from ...machine.contract import Machine
from ...machine.cpu import Cpu
from ...machine.gpu import Gpu
from ...machine.tiles import permit
from ...runtime.device.code import DeviceCode
from ...runtime.program import State, main_name
from ...runtime.sizes import Size, TensorInfo
from ...sketches.contract import Variant
from ..artifact.artifact import CompiledModel
from ..artifact.layers import KernelCall
from ..artifact.metadata import FallbackReport, Metadata, Work, needed_features
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..graph.expressions import bindings_of, calls_kernel, part_index, variables_of
from ..graph.flow import Marks
from ..graph.graph import Graph
from ..graph.layers import Layers, calls_of, key_of
from ..graph.place import Place
from ..graph.renaming import joined
from ..graph.tasks import Task
from ..passes.rewriting import constant as new_constant
from ..passes.rewriting import rewrite_main
from ..program.compiled import CompiledProgram
from ..program.memory import release_pages
from ..states.in_place import with_states_in_place
from ..tensors import array_of
from .concatenation import Concatenation, find_concatenations
from .derive import Main, derive_program, to_kernels
from .fallback import Fallback, schedule_fallback
from .gpu_fallback import schedule_gpu_fallback
from .gpu_forms import GPU_FORMS
from .kernel_library import KernelLibrary

Transformed = dict[tuple[tvm_ffi.StructuralKey, int], GenericConst]
"""Transformed constants, by the transform and the address of the constant: several sizes of a model share them."""

CreateModel = Callable[[CompiledProgram, Metadata, Mapping[str, int], OnnxruntimeParts], CompiledModel]
"""Makes a model of its program, its metadata, the task of each kernel, and the parts that onnxruntime runs."""

PlainSchedule = Callable[[tirx.PrimFunc], Fallback]
"""Schedules a function that no sketch schedules."""

PlacedVariant = Callable[[int, Place], Variant]
"""The variant of a task (by index) that writes its output into a slice of a wider one."""

_PLACED = "at{}_of{}"
"""How the name of a kernel ends that writes into a slice: its offset and the length of the axis."""


def build(
    graph: Graph,
    variants: Mapping[int, Variant],
    target: Machine,
    *,
    place: PlacedVariant | None = None,
    provenance: Mapping[str, Any] | None = None,
    work: Mapping[int, Work] | None = None,
    library: KernelLibrary | None = None,
    create: CreateModel = CompiledModel,
    plain: PlainSchedule | None = None,
) -> CompiledModel:
    """Compiles a graph with the variants that were chosen for its tasks, for all of its sizes.

    Args:
        graph: The model as kernel calls.
        variants: The variant of each task, by `Task.index`. A task without one gets a plain schedule and is listed in
            the result's `metadata.fallbacks`.
        target: The machine to compile for.
        place: Makes the variant of a task that writes its output into a slice of a wider one. With it, the inputs of
            concatenations are written to their final place instead of being copied there.
        provenance: Stored in the model's metadata: how the model was made.
        work: What a call of each task does, by `Task.index`; stored in the model's metadata.
        library: Keeps the machine code of the kernels. With that of an earlier build, only what is new is compiled.
        create: Makes the model of its program; by default one that runs in this process.
        plain: Schedules the tasks without a variant; by default as the machine wants them.

    Raises:
        ModelError: A variant does not fit its task, or the model cannot be compiled.
        TargetError: The operating system does not permit an arithmetic unit that a kernel needs.
    """
    library = library or KernelLibrary(target)
    transformed: Transformed = {}
    mods, marks, fallbacks, symbols = [], [], dict[str, FallbackReport](), dict[str, int]()
    for each in graph.sizes:
        scheduled = apply_variants(
            each,
            variants,
            plain=plain or plain_schedules(target),
            place=place,
            library=library,
            transformed=transformed,
        )
        mods.append(scheduled.mod)
        marks.append(scheduled.layers.marks(scheduled.mod))
        fallbacks |= {report.task: report for report in scheduled.fallbacks}
        symbols |= scheduled.symbols
    units = _units(mods, target)
    release_pages()  # the kernels have weights of their own now
    by_kernels = [_read_by_kernels_only(each, mod) for each, mod in zip(graph.sizes, mods, strict=True)]
    anywhere = set.intersection(*by_kernels)
    try:
        infos = [(each.inputs, each.outputs) for each in graph.sizes]
        functions = {symbol: graph.tasks[index].function for symbol, index in symbols.items()}
        program, calls = _linked(mods, infos, marks, library, target, functions, graph.states)
    except ModelError as error:
        raise ModelError(f"{graph.name}: {error}") from error
    except Exception as error:
        # Lowering and code generation raise anything from ValueError to TVM's InternalError.
        raise ModelError(f"{graph.name}: cannot be compiled: {one_line(error)}") from error
    metadata = Metadata(
        name=graph.name,
        inputs=graph.inputs,
        outputs=graph.outputs,
        **_described(target),
        fallbacks=tuple(fallbacks.values()),
        provenance=dict(provenance or {}),
        kernels={name: work[index] for name, index in symbols.items() if index in work} if work else {},
        anywhere=tuple(info.name for info in graph.inputs if info.name in anywhere),
        ignored=graph.ignored,
        foreign=graph.foreign.reports,
        units=tuple(sorted(units)),
        sizes=tuple(Size(each.inputs, each.outputs) for each in graph.sizes) if graph.others else (),
        layers=graph.layers.all,
        calls=calls if graph.layers.all else (),
    )
    return create(program, metadata, symbols, graph.foreign)


def plain_schedules(target: Machine) -> PlainSchedule:
    """What schedules functions for a machine that no sketch schedules."""
    if isinstance(target, Gpu):
        return partial(schedule_gpu_fallback, device=target)
    assert isinstance(target, Cpu)
    return partial(schedule_fallback, lanes=target.lanes)


def _units(mods: Sequence[tvm.IRModule], target: Machine) -> set[str]:
    """The arithmetic units that kernels for a CPU cannot do without. Raises `TargetError` if one is not permitted."""
    if not isinstance(target, Cpu):
        return set()
    functions = (function for mod in mods for function in mod.functions.values())
    units = {name for each in functions if isinstance(each, tirx.PrimFunc) for name in units_of(each)}
    if not target.runner:
        permit(units)
    return units


def _described(target: Machine) -> dict[str, Any]:
    """The fields of the metadata that say which machine a model is for."""
    fields: dict[str, Any] = {**asdict(target), "runner": ""}  # type: ignore[call-overload]
    if isinstance(target, Cpu):
        # As JSON gives it back. Who loads the model has it on that machine, not behind a runner.
        features = needed_features(target.tvm())
        return {"target": {**fields, "features": list(target.features)}, "cpu": target.cpu, "features": features}
    fields["architectures"] = list(fields["architectures"])  # as JSON gives it back
    return {"target": fields, "cpu": target.name, "features": (), "device": target.device}


def _device_code(modules: Sequence[DeviceModule]) -> DeviceCode:
    """The kernels of modules."""
    kernels = {symbol: kernel for module in modules for symbol, kernel in module.kernels.items()}
    return DeviceCode(kernels, [image for module in modules if module.kernels for image in module.images])


class Scheduled(NamedTuple):
    """A size of a graph whose kernels are scheduled.

    Attributes:
        mod: The module.
        fallbacks: The tasks that got a plain schedule.
        symbols: The index of the task of each kernel, by the kernel's name.
        layers: The layers that its calls compute.
    """

    mod: tvm.IRModule
    fallbacks: tuple[FallbackReport, ...]
    symbols: dict[str, int]
    layers: Layers


def apply_variants(
    graph: Graph,
    variants: Mapping[int, Variant],
    *,
    plain: PlainSchedule = schedule_fallback,
    place: PlacedVariant | None = None,
    library: KernelLibrary | None = None,
    transformed: Transformed | None = None,
) -> Scheduled:
    """Puts the variants into a graph, and transforms each constant as its kernel expects it.

    Args:
        graph: The model as kernel calls, at one size. Its other sizes are left alone.
        variants: The variant of each task, by `Task.index`.
        plain: Schedules the tasks without a variant.
        place: Makes variants that write into a slice.
        library: Names the kernels; None if they will not be compiled.
        transformed: The constants that another size has transformed already; this one adds its own.

    Raises:
        ModelError: A variant does not fit its task.
    """
    unknown = sorted(set(variants) - {task.index for task in graph.tasks})
    if unknown:
        raise ModelError(f"{graph.name}: has no task {unknown[0]}: its tasks are 0 to {len(graph.tasks) - 1}")
    fallbacks = []
    chosen: dict[str, tuple[Task, Variant]] = {}
    called = graph.called
    for task in graph.tasks:
        if task.index not in called:
            continue
        variant = variants.get(task.index)
        if variant is None:
            fallback = plain(task.function)
            fallbacks.append(FallbackReport(task.name, task.weight, fallback.reached))
            variant = Variant(fallback.function)
        _check_variant(graph.name, task, variant)
        chosen.update(dict.fromkeys(task.callees, (task, variant)))
    tasks = {callee: task for callee, (task, _) in chosen.items()}
    concatenations = find_concatenations(graph.mod, tasks, lambda task: task.index in variants) if place else []
    mutator = _CallSites(graph.mod, chosen, concatenations, place, library, transformed)
    mod = relax.transform.DeadCodeElimination()(rewrite_main(graph.mod, mutator))
    layers = graph.layers.rewritten(graph.mod, mod, mutator.stands_for)
    return Scheduled(mod, tuple(fallbacks), mutator.symbols, layers)


def _linked(
    mods: Sequence[tvm.IRModule],
    infos: Sequence[tuple[Sequence[TensorInfo], Sequence[TensorInfo]]],
    marks: Sequence[Marks],
    library: KernelLibrary,
    target: Machine,
    functions: Mapping[str, tirx.PrimFunc],
    states: Sequence[State],
) -> tuple[CompiledProgram, tuple[tuple[KernelCall, ...], ...]]:
    """The program of the modules of all sizes, with the kernels of the library, and the calls of an execution of each.

    Args:
        mods: The modules.
        infos: The inputs and outputs of each.
        marks: The layers of the variables of each.
        library: Has the kernels.
        target: The machine.
        functions: What the kernels of tasks compute, by their symbols.
        states: The states of a decoder.
    """
    mod = mods[0]
    if len(mods) > 1:
        mod = joined([(each, {"main": main_name(size)}) for size, each in enumerate(mods)])
    scheduled = {variable.name_hint for variable in mod.get_global_vars()}
    with target.tvm():
        mod = to_kernels(GPU_FORMS if isinstance(target, Gpu) else None)(mod)
        calls = tuple(calls_of(mod, main_name(size), each) for size, each in enumerate(marks))
        program, constants = derive_program(mod, [Main(main_name(at), *each) for at, each in enumerate(infos)])
    kernels = {symbol: mod[symbol] for symbol in program.kernels}
    if not isinstance(target, Gpu):
        add = partial(_added, library, plain_schedules(target))
        program = with_states_in_place(program, states, functions, add)
        kernels |= {symbol: library.function(symbol) for symbol in program.kernels if symbol not in kernels}
        return CompiledProgram(program, library.modules(kernels), constants), calls
    added = kernels.keys() - scheduled  # by the pass; for a CPU they need no schedule
    kernels |= {symbol: schedule_gpu_fallback(kernels[symbol], target).function for symbol in sorted(added)}
    return CompiledProgram(program, (), constants, device=_device_code(library.modules(kernels))), calls


def _added(library: KernelLibrary, plain: PlainSchedule, function: tirx.PrimFunc, name: str) -> str:
    """The symbol of a function with a plain schedule, which the library compiles."""
    return library.symbol(plain(function).function.with_attr("tirx.noalias", True), name)


def _read_by_kernels_only(graph: Graph, mod: tvm.IRModule) -> set[str]:
    """The inputs of a size that nothing but kernels and onnxruntime parts reads. Their memory may begin anywhere."""
    main = relax.transform.RewriteDataflowReshape()(mod)["main"]  # it takes some kernels for views
    read_otherwise = {main.body.body}
    for binding in bindings_of(main):
        if not calls_kernel(binding.value) and part_index(binding.value) is None:
            read_otherwise.update(variables_of(binding.value))
    parameters = zip(graph.inputs, main.params, strict=True)
    return {info.name for info, parameter in parameters if parameter not in read_otherwise}


def _check_variant(model: str, task: Task, variant: Variant) -> None:
    if len(variant.main.params) != len(task.function.params):
        raise ModelError(
            f"{model}: the variant of task {task.described} takes {len(variant.main.params)} arguments, "
            f"not {len(task.function.params)}"
        )
    for position in variant.transforms:
        if position not in task.constants:
            raise ModelError(
                f"{model}: argument {position} of task {task.described} is no constant and cannot be packed"
            )


@relax.expr_functor.mutator
class _CallSites(relax.PyExprMutator):
    """Replaces each called function by its scheduled form, and constants by their transformed values.

    An input of one of the `concatenations` becomes a call that writes into a slice of the whole output.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        chosen: Mapping[str, tuple[Task, Variant]],
        concatenations: Sequence[Concatenation],
        place: PlacedVariant | None,
        library: KernelLibrary | None,
        transformed: Transformed | None,
    ) -> None:
        super().__init__(mod)
        self._known: Transformed = {} if transformed is None else transformed
        self._library = library
        self._chosen = chosen
        self._place = place
        self._functions: dict[tuple[int, Place | None, tuple[int, ...]], Any] = {}
        self._inputs = set(mod["main"].params)
        self._parts = {
            part: (concatenation, destination)
            for concatenation in concatenations
            for part, destination in concatenation.parts
        }
        self._outputs = {concatenation.output for concatenation in concatenations}
        self._written: dict[Any, Any] = {}  # what holds the parts so far, by the variable of the concatenation
        self.stands_for: dict[Hashable, list[Hashable]] = {}  # which variables a new one is in the place of

    @property
    def symbols(self) -> dict[str, int]:
        """The index of the task of each scheduled function, by the function's name."""
        return {function.name_hint: index for (index, *_), function in self._functions.items()}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self._parts:
            concatenation, destination = self._parts[binding.var]
            call = self.visit_expr_post_order(binding.value)
            written = self._written.get(concatenation.output)
            whole = self.builder_.emit(self._placed(call, destination, written))
            self._written[concatenation.output] = whole
            self.stands_for[key_of(whole)] = [key_of(binding.var)]
            if binding.var.same_as(concatenation.parts[-1][0]):  # after the last part nothing is left to do
                self.stands_for[key_of(whole)].append(key_of(concatenation.output))
        elif binding.var in self._outputs:
            self.set_var_remap(binding.var, self._written[binding.var])
        else:
            super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if not calls_kernel(call) or call.args[0].name_hint not in self._chosen:
            return call
        task, variant = self._chosen[call.args[0].name_hint]
        (result,) = call.ty_args
        results = list(result.fields) if isinstance(result, relax.TupleType) else [result]
        arguments = self._arguments(call, variant)
        return relax.call_tir(self._function(task, variant, None, arguments), relax.Tuple(arguments), results)

    def _placed(self, call: relax.Call, destination: Place, whole: Any | None) -> Any:
        """A call that writes a slice of `whole`; if that is None, the call also makes the whole."""
        task, _ = self._chosen[call.args[0].name_hint]
        assert self._place is not None
        variant = self._place(task.index, destination)
        arguments = self._arguments(call, variant)
        function = self._function(task, variant, destination, arguments)
        (result,) = call.ty_args
        shape = [*(int(extent) for extent in list(result.shape.values)[:-1]), destination.total]
        wide = relax.TensorType(shape, result.dtype)
        if whole is None:
            return relax.call_tir(function, relax.Tuple(arguments), [wide])
        return relax.op.call_tir_inplace(function, relax.Tuple([*arguments, whole]), [len(arguments)], [wide])

    def _function(self, task: Task, variant: Variant, destination: Place | None, arguments: Sequence[Any]) -> Any:
        """The scheduled function, which is added to the module at its first use.

        Its arguments that are inputs of the model may be unaligned.
        """
        unaligned = tuple(position for position, argument in enumerate(arguments) if argument in self._inputs)
        key = (task.index, destination, unaligned)
        if key not in self._functions:
            function = variant.main.without_attr("global_symbol").with_attr("tirx.noalias", True)
            if unaligned:
                function = function.with_attr(UNALIGNED, list(unaligned))
            suffix = "scheduled" if destination is None else _PLACED.format(destination.offset, destination.total)
            name = f"{task.name}_{suffix}"
            symbol = name if self._library is None else self._library.symbol(function, name)
            self._functions[key] = self.builder_.add_func(function, symbol)
        return self._functions[key]

    def _arguments(self, call: relax.Call, variant: Variant) -> list[Any]:
        """The arguments of a call, with constants transformed as the variant expects them."""
        arguments = list(call.args[1].fields)
        for position, transform in variant.transforms.items():
            arguments[position] = self._transformed(arguments[position], transform)
        return arguments

    def _transformed(self, constant: GenericConst, transform: tirx.PrimFunc) -> GenericConst:
        key = (tvm_ffi.StructuralKey(transform), int(constant.value.data_ptr()))
        if key not in self._known:
            (value,) = evaluate(transform, [array_of(constant)])
            self._known[key] = new_constant(value)
        return self._known[key]
