"""Putting the chosen schedules into a graph, and compiling it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.ir import GenericConst

from ..codegen.lowering import PIPELINE
from ..errors import ModelError
from ..ir.attributes import ANYWHERE
from ..machine.cpu import Target
from ..sketches.contract import Variant
from .artifact import CompiledModel
from .fallback import schedule_fallback
from .importer.graph import Graph
from .importer.tasks import Task
from .messages import first_line
from .metadata import FallbackReport, Metadata, Work, needed_features
from .passes import workspace
from .passes.concatenation import Concatenation, Place, find_concatenations

Evaluate = Callable[[tirx.PrimFunc, Sequence[NDArray[Any]]], list[NDArray[Any]]]


def build(
    graph: Graph,
    variants: Mapping[int, Variant],
    target: Target,
    *,
    place: Callable[[int, Place], Variant] | None = None,
    provenance: Mapping[str, Any] | None = None,
    work: Mapping[int, Work] | None = None,
    evaluate: Evaluate | None = None,
) -> CompiledModel:
    """Compile a graph with a variant per task (by `Task.index`); tasks without one get a plain schedule.

    `place` gives the variant of a task that writes its result into a slice of a wider output: with it, the inputs of
    concatenations are written where they belong. The transforms of constant inputs are computed here, by `evaluate`
    (by default the NumPy reference), and stored in the model. What was scheduled plainly is in the result's
    `metadata.fallbacks`. `provenance` is kept with the model as it is given, and so is the `work` of tasks. Raises
    `ModelError` where a variant does not fit its task, or the model does not compile.
    """
    mod, fallbacks, symbols = apply(graph, variants, lanes=target.lanes, place=place, evaluate=evaluate)
    main = relax.transform.RewriteDataflowReshape()(mod)["main"]  # some kernels are views to it
    read = _read_by_kernels(main)
    try:
        executable = tvm.compile(mod, target.tvm(), relax_pipeline=workspace.pipeline(), tir_pipeline=PIPELINE)
    except Exception as error:
        # Lowering and code generation raise anything from ValueError to TVM's InternalError.
        raise ModelError(f"{graph.name}: cannot be compiled: {first_line(error)}") from error
    metadata = Metadata(
        name=graph.name,
        inputs=graph.inputs,
        outputs=graph.outputs,
        target=asdict(target),
        cpu=target.cpu,
        features=needed_features(target.tvm()),
        fallbacks=fallbacks,
        provenance=dict(provenance or {}),
        kernels={name: work[index] for name, index in symbols.items() if index in work} if work else {},
        anywhere=tuple(info.name for info, given in zip(graph.inputs, main.params, strict=True) if given in read),
    )
    return CompiledModel(executable, metadata, symbols)


def apply(
    graph: Graph,
    variants: Mapping[int, Variant],
    *,
    lanes: int = 16,
    place: Callable[[int, Place], Variant] | None = None,
    evaluate: Evaluate | None = None,
) -> tuple[tvm.IRModule, tuple[FallbackReport, ...], dict[str, int]]:
    """The graph's module with every kernel scheduled and every constant as its kernel wants it.

    With it what was scheduled plainly, and the index of the task of each kernel, by the kernel's name.
    """
    if evaluate is None:
        from ..ir.reference import evaluate as reference

        evaluate = reference
    unknown = sorted(set(variants) - {task.index for task in graph.tasks})
    if unknown:
        raise ModelError(f"{graph.name}: has no task {unknown[0]}: its tasks are 0 to {len(graph.tasks) - 1}")
    fallbacks = []
    chosen: dict[str, tuple[Task, Variant]] = {}
    for task in graph.tasks:
        variant = variants.get(task.index)
        if variant is None:
            fallback = schedule_fallback(task.function, lanes)
            fallbacks.append(FallbackReport(task.name, task.weight, fallback.reached))
            variant = Variant(fallback.function)
        _check(graph.name, task, variant)
        chosen.update(dict.fromkeys(task.callees, (task, variant)))
    tasks = {callee: task for callee, (task, _) in chosen.items()}
    placed = find_concatenations(graph.mod, tasks, lambda task: task.index in variants) if place else []
    rewriter = _CallSites(graph.mod, chosen, evaluate, placed, place)
    rewritten = rewriter.visit_expr(graph.mod["main"])
    rewriter.builder_.update_func(graph.mod.get_global_var("main"), rewritten)
    mod = relax.transform.DeadCodeElimination()(rewriter.builder_.get())
    return mod, tuple(fallbacks), rewriter.symbols


def _read_by_kernels(main: relax.Function) -> set[Any]:
    """The parameters of `main` that nothing but kernels reads: those may begin anywhere."""
    others = {main.body.body}
    for block in main.body.blocks:
        for binding in block.bindings:
            called = isinstance(binding.value, relax.Call) and binding.value.op == tvm.ir.Op.get("relax.call_tir")
            if not called:
                relax.analysis.post_order_visit(binding.value, others.add)
    return set(main.params) - others


def _check(model: str, task: Task, variant: Variant) -> None:
    if len(variant.main.params) != len(task.function.params):
        raise ModelError(
            f"{model}: the variant of task {task.name} takes {len(variant.main.params)} arguments, "
            f"not {len(task.function.params)}"
        )
    for position in variant.transforms:
        if position not in task.constants:
            raise ModelError(f"{model}: argument {position} of task {task.name} is no constant and cannot be packed")


@relax.expr_functor.mutator
class _CallSites(relax.PyExprMutator):
    """Replaces callees by their scheduled form, and constants by their transformed values."""

    def __init__(
        self,
        mod: tvm.IRModule,
        chosen: Mapping[str, tuple[Task, Variant]],
        evaluate: Evaluate,
        concatenations: Sequence[Concatenation],
        place: Callable[[int, Place], Variant] | None,
    ) -> None:
        super().__init__(mod)
        self._chosen = chosen
        self._evaluate = evaluate
        self._place = place
        self._call_tir = tvm.ir.Op.get("relax.call_tir")
        self._functions: dict[tuple[int, Place | None, tuple[int, ...]], Any] = {}
        self._inputs = set(mod["main"].params)
        self._parts = {part: (whole, where) for whole in concatenations for part, where in whole.parts}
        self._wholes = {whole.whole: whole for whole in concatenations}
        self._written: dict[Any, Any] = {}  # the whole so far, by the variable of the concatenation

    @property
    def symbols(self) -> dict[str, int]:
        """The task of each scheduled function, by the function's name."""
        return {function.name_hint: index for (index, *_), function in self._functions.items()}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self._parts:
            whole, where = self._parts[binding.var]
            call = self.visit_expr_post_order(binding.value)
            self._written[whole.whole] = self.builder_.emit(self._placed(call, where, self._written.get(whole.whole)))
        elif binding.var in self._wholes:
            self.set_var_remap(binding.var, self._written[binding.var])
        else:
            super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != self._call_tir or call.args[0].name_hint not in self._chosen:
            return call
        task, variant = self._chosen[call.args[0].name_hint]
        (result,) = call.ty_args
        results = list(result.fields) if isinstance(result, relax.TupleType) else [result]
        arguments = self._arguments(call, variant)
        return relax.call_tir(self._function(task, variant, None, arguments), relax.Tuple(arguments), results)

    def _placed(self, call: relax.Call, where: Place, whole: Any | None) -> Any:
        """A call that writes a slice of `whole`, which the first of them makes."""
        task, _ = self._chosen[call.args[0].name_hint]
        assert self._place is not None
        variant = self._place(task.index, where)
        arguments = self._arguments(call, variant)
        function = self._function(task, variant, where, arguments)
        (result,) = call.ty_args
        shape = [*(int(extent) for extent in list(result.shape.values)[:-1]), where.total]
        wide = relax.TensorType(shape, result.dtype)
        if whole is None:
            return relax.call_tir(function, relax.Tuple(arguments), [wide])
        return relax.op.call_tir_inplace(function, relax.Tuple([*arguments, whole]), [len(arguments)], [wide])

    def _function(self, task: Task, variant: Variant, where: Place | None, arguments: Sequence[Any]) -> Any:
        anywhere = tuple(position for position, each in enumerate(arguments) if each in self._inputs)
        key = (task.index, where, anywhere)
        if key not in self._functions:
            function = variant.main.without_attr("global_symbol").with_attr("tirx.noalias", True)
            if anywhere:
                function = function.with_attr(ANYWHERE, list(anywhere))
            name = f"{task.name}_scheduled" if where is None else f"{task.name}_at{where.offset}_of{where.total}"
            self._functions[key] = self.builder_.add_func(function, name)
        return self._functions[key]

    def _arguments(self, call: relax.Call, variant: Variant) -> list[Any]:
        arguments = list(call.args[1].fields)
        for position, transform in variant.transforms.items():
            arguments[position] = self._transformed(arguments[position], transform)
        return arguments

    def _transformed(self, constant: GenericConst, transform: tirx.PrimFunc) -> GenericConst:
        (value,) = self._evaluate(transform, [constant.value.numpy()])
        return relax.const(np.ascontiguousarray(value))
