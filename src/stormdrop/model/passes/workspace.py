"""Memory between kernels that is there before a model runs.

TVM's virtual machine allocates what passes between kernels in every execution, a few microseconds for each kernel: a
tenth of a small model. Here all of it is allocated once, by a function of its own, and handed to `main` after its
inputs:

    main(x):                                    workspace():
        s = alloc_storage(4096)                     s = alloc_storage(4096)
        t = alloc_tensor(s, 0, (1, 1024))           return alloc_tensor(s, 0, (1, 1024)), ...
        kernel(x, t)
        y = alloc_tensor(...)                   main(x, t):
        kernel2(t, y)                               kernel(x, t)
        return y                                    y = alloc_tensor(...)
                                                    kernel2(t, y)
                                                    return y

What `main` returns is new in every execution: the caller keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax import backend, transform

from ..artifact import WORKSPACE
from .rewriting import rewritten

_STORAGE, _TENSOR = "relax.memory.alloc_storage", "relax.memory.alloc_tensor"
_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")


def pipeline() -> tvm.transform.Pass:
    """Relax's own way from a graph to the virtual machine's calls, with the memory between kernels taken out."""
    return tvm.transform.Sequential(
        [
            backend.DispatchSampling(),
            backend.DispatchSortScan(),
            transform.LegalizeOps(),
            transform.RewriteDataflowReshape(),
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
            transform.LowerAllocTensor(),
            tvm.transform.module_pass(_apart, opt_level=0, name="workspace"),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            tvm.transform.module_pass(_unchecked, opt_level=0, name="unchecked"),
            transform.AttachGlobalSymbol(),
        ]
    )


def _apart(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """The module with `workspace`, where `main` is one sequence of bindings and needs memory."""
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if any(not isinstance(binding, relax.VarBinding) or isinstance(binding.value, relax.If) for binding in bindings):
        return mod
    returned = _returned(main.body.body, {binding.var: binding.value for binding in bindings})
    moved = [each for each in bindings if _allocation(each.value) and each.var not in returned]
    gone, tensors = {each.var for each in moved}, [each.var for each in moved if _allocation(each.value) == _TENSOR]
    if not tensors:
        return mod
    places = [relax.Var(var.name, var.ty) for var in tensors]
    mutator = _Without(mod, lambda binding: binding.var in gone)
    for var, place in zip(tensors, places, strict=True):
        mutator.set_var_remap(var, place)
    result = rewritten(mod, mutator)
    rest = result["main"]
    result["main"] = relax.Function([*rest.params, *places], rest.body, main.ret_ty, main.is_pure, main.attrs)
    body = relax.BlockBuilder(mod).normalize(relax.SeqExpr([relax.BindingBlock(moved)], relax.Tuple(tensors)))
    result[WORKSPACE] = relax.utils.copy_with_new_vars(relax.Function([], body, is_pure=False))
    return result


def _unchecked(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Without the checks of each argument's type and shape in every execution: who calls it has made them."""

    def checks(binding: relax.VarBinding) -> bool:
        return getattr(_operator(binding.value), "global_symbol", "") in _CHECKS

    return rewritten(mod, _Without(mod, checks))


@relax.expr_functor.mutator
class _Without(relax.PyExprMutator):
    """Takes bindings out."""

    def __init__(self, mod: tvm.IRModule, gone: Callable[[relax.VarBinding], bool]) -> None:
        super().__init__(mod)
        self._gone = gone

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if not self._gone(binding):
            super().visit_var_binding_(binding)


def _operator(value: Any) -> Any:
    return value.op if isinstance(value, relax.Call) else None


def _allocation(value: Any) -> str | None:
    """The name of the operator that a value allocates memory by."""
    name = getattr(_operator(value), "name", "")
    return name if name in (_STORAGE, _TENSOR) else None


def _returned(result: Any, values: Mapping[Any, Any]) -> set[Any]:
    """Variables whose memory a result may be."""
    found: set[Any] = set()
    waiting = [result]
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Var):
            if value not in found and value in values:
                waiting.append(values[value])
            found.add(value)
        elif isinstance(value, relax.Tuple):
            waiting.extend(value.fields)
        elif isinstance(value, relax.TupleGetItem):
            waiting.append(value.tuple_value)
        elif isinstance(value, relax.Call):
            waiting.extend(value.args)
    return found
