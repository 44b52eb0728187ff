"""Allocates the memory between kernels once, before the model runs.

TVM's virtual machine allocates the tensors between kernels anew in every execution. That takes a few microseconds per
kernel, a tenth of the time of a small model. Here a separate function allocates them once, and `main` takes them after
its inputs:

    main(x):                                    workspace():
        s = alloc_storage(4096)                     s = alloc_storage(4096)
        t = alloc_tensor(s, 0, (1, 1024))           return alloc_tensor(s, 0, (1, 1024)), ...
        kernel(x, t)
        y = alloc_tensor(...)                   main(x, t):
        kernel2(t, y)                               kernel(x, t)
        return y                                    y = alloc_tensor(...)
                                                    kernel2(t, y)
                                                    return y

What `main` returns is still allocated in every execution, because the caller keeps it. A model of several sizes has a
`main` and a `workspace` for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import tvm
from tvm import relax
from tvm.relax import backend, transform

from ..artifact.machines import main_name, workspace_name
from ..graph.expressions import bindings_of, operator_name
from ..passes.rewriting import rewrite_main

_STORAGE, _TENSOR = "relax.memory.alloc_storage", "relax.memory.alloc_tensor"
_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")


def to_kernels() -> tvm.transform.Pass:
    """The first part of Relax's own pipeline, after which `main` calls all kernels in the order of an execution."""
    return tvm.transform.Sequential(
        [
            backend.DispatchSampling(),
            backend.DispatchSortScan(),
            transform.LegalizeOps(),
            transform.RewriteDataflowReshape(),
        ]
    )


def to_machine() -> tvm.transform.Pass:
    """The rest of it, to calls of the virtual machine, with the workspace as a separate function."""
    return tvm.transform.Sequential(
        [
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
            transform.LowerAllocTensor(),
            tvm.transform.module_pass(_separate_workspace, opt_level=0, name="workspace"),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            tvm.transform.module_pass(_remove_checks, opt_level=0, name="unchecked"),
            transform.AttachGlobalSymbol(),
        ]
    )


def _separate_workspace(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    for size, name in _mains(mod):
        mod = _with_workspace(mod, name, workspace_name(size))
    return mod


def _with_workspace(mod: tvm.IRModule, name: str, workspace: str) -> tvm.IRModule:
    """The module with the allocations of `main` moved to `workspace`, if `main` is a plain sequence of bindings."""
    main = mod[name]
    bindings = bindings_of(main)
    if any(not isinstance(binding, relax.VarBinding) or isinstance(binding.value, relax.If) for binding in bindings):
        return mod
    returned = _returned(main.body.body, {binding.var: binding.value for binding in bindings})
    moved = _between_kernels(bindings, returned)
    removed = {binding.var for binding in moved}
    tensors = [binding.var for binding in moved if _allocation(binding.value) == _TENSOR]
    if not tensors:
        return mod
    parameters = [relax.Var(variable.name, variable.ty) for variable in tensors]
    mutator = _RemoveBindings(mod, lambda binding: binding.var in removed)
    for variable, parameter in zip(tensors, parameters, strict=True):
        mutator.set_var_remap(variable, parameter)
    result = rewrite_main(mod, mutator, name)
    shortened = result[name]
    result[name] = relax.Function(
        [*shortened.params, *parameters], shortened.body, main.ret_ty, main.is_pure, main.attrs
    )
    body = relax.BlockBuilder(mod).normalize(relax.SeqExpr([relax.BindingBlock(moved)], relax.Tuple(tensors)))
    result[workspace] = relax.utils.copy_with_new_vars(relax.Function([], body, is_pure=False))
    return result


def _remove_checks(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """The module without the checks of each argument's type and shape, which `CompiledModel.run` has made already."""

    def is_check(binding: relax.VarBinding) -> bool:
        return getattr(getattr(binding.value, "op", None), "global_symbol", "") in _CHECKS

    for _, name in _mains(mod):
        mod = rewrite_main(mod, _RemoveBindings(mod, is_check), name)
    return mod


def _mains(mod: tvm.IRModule) -> list[tuple[int, str]]:
    """The positions of the sizes of a model, with the names of their functions."""
    functions = {variable.name_hint for variable in mod.functions}
    sizes = itertools.takewhile(lambda size: main_name(size) in functions, itertools.count())
    return [(size, main_name(size)) for size in sizes]


@relax.expr_functor.mutator
class _RemoveBindings(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, is_removed: Callable[[relax.VarBinding], bool]) -> None:
        super().__init__(mod)
        self._is_removed = is_removed

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if not self._is_removed(binding):
            super().visit_var_binding_(binding)


def _allocation(value: Any) -> str | None:
    """The name of the operator by which a value allocates memory; None if it allocates none."""
    name = operator_name(value)
    return name if name in (_STORAGE, _TENSOR) else None


def _between_kernels(bindings: Sequence[relax.VarBinding], returned: Set[Any]) -> list[relax.VarBinding]:
    """The allocations of memory that `main` does not return.

    TVM plans an output that is a part of a tuple in the storage of a tensor before it that nobody needs any more. This
    tensor stays where its storage is.
    """
    moved: dict[Any, relax.VarBinding] = {}
    for binding in bindings:
        operator = _allocation(binding.value)
        if operator == _TENSOR and binding.value.args[0] not in moved:
            continue
        if operator and binding.var not in returned:
            moved[binding.var] = binding
    return list(moved.values())


def _returned(result: Any, values: Mapping[Any, Any]) -> set[Any]:
    """The variables whose memory the result may be."""
    returned: set[Any] = set()
    waiting = [result]
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Var):
            if value not in returned and value in values:
                waiting.append(values[value])
            returned.add(value)
        elif isinstance(value, relax.Tuple):
            waiting.extend(value.fields)
        elif isinstance(value, relax.TupleGetItem):
            waiting.append(value.tuple_value)
        elif isinstance(value, relax.Call):
            waiting.extend(value.args)
    return returned
