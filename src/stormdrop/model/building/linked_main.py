"""A program as a function that is compiled beside its kernels, for a machine that has nothing but TVM's runtime.

    main(storage, constants, x, y):
        kernel(x, constants + 0, storage + 0)
        kernel2(storage + 0, y)

A board gets it in one library with the kernels. In this process `program.executor` does the same without a compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from ...runtime.program import Program, SizeProgram, View, main_name

_SYMBOL = "__tvm_ffi_"
"""TVM's names of kernels in a library begin with this."""


def linked_main(program: Program, target: Any) -> Any:
    """A module with a function for each size: `main`, `main_1` and so on.

    A function takes the storage and the constants as one tensor of uint8 each, then the inputs and the outputs. Blocks
    of storage begin at `SizeProgram.block_offsets`, constants at their offsets.

    Args:
        program: The program, without parts that onnxruntime runs.
        target: TVM's target.

    Returns:
        The module. Its kernels have to be linked to it.
    """
    callers: dict[str, tuple[Any, tirx.PrimFunc]] = {}
    functions = {main_name(at): _main(main_name(at), program, size, callers) for at, size in enumerate(program.sizes)}
    mod = tvm.IRModule(functions)
    for variable, function in callers.values():
        mod[variable] = function
    return tirx.build(mod, target)


def _main(
    name: str, program: Program, size: SizeProgram, callers: dict[str, tuple[Any, tirx.PrimFunc]]
) -> tirx.PrimFunc:
    """The function of a size. The functions that call kernels are added to `callers`, by kernel."""
    storage = _bytes("storage", size.block_offsets[-1])
    constants = _bytes("constants", program.constant_bytes)
    tensors = [
        tirx.decl_buffer(info.shape, info.dtype, f"{kind}_{index}", layout=None)
        for kind, infos in (("input", size.inputs), ("output", size.outputs))
        for index, info in enumerate(infos)
    ]

    def address(position: int) -> Any:
        """Where a view begins."""
        view = size.views[position]
        if view.memory == "storage":
            return _address(storage, size.block_offsets[view.index] + view.offset)
        if view.memory == "constant":
            return _address(constants, program.constants[view.index].offset)
        return _address(tensors[view.index + (len(size.inputs) if view.memory == "output" else 0)])

    calls: list[Any] = []
    for step in size.steps:
        arguments = list(map(address, step.arguments))
        if step.kind == "copy":
            (source,), (target,) = step.reads, step.writes
            count = tirx.IntImm("int64", size.views[target].bytes)
            calls.append(tirx.call_extern("handle", "memcpy", address(target), address(source), count))
        else:
            if step.name not in callers:
                callers[step.name] = _caller(step.name, [size.views[position] for position in step.arguments])
            calls.append(tvm.ir.Call(callers[step.name][0], arguments, ret_ty="int32"))
    body = [tirx.Evaluate(call) for call in calls]
    function = tirx.PrimFunc([storage, constants, *tensors], tirx.SeqStmt(body) if len(body) != 1 else body[0])
    return function.with_attr({"global_symbol": name, "tirx.noalias": True})


def _caller(kernel: str, views: Sequence[View]) -> tuple[Any, tirx.PrimFunc]:
    """A function that calls a kernel on the addresses of its arguments.

    TVM's code generator would give a kernel that is called in two places two names.
    """
    pointers = [tirx.Var(f"argument_{index}", "handle") for index in range(len(views))]
    arrays = []
    for pointer, view in zip(pointers, views, strict=True):
        shape = tirx.call_intrin("handle", "tirx.tvm_stack_make_shape", *(tirx.IntImm("int64", n) for n in view.shape))
        kind = tirx.const(0, view.dtype)
        arrays.append(tirx.tvm_stack_make_array(pointer, shape, 0, len(view.shape), kind, tirx.IntImm("int64", 0)))
    none = tirx.reinterpret("handle", tirx.IntImm("uint64", 0))
    call = tirx.call_cpacked(f"{_SYMBOL}{kernel}", *arrays, none)
    body: Any = tirx.SeqStmt([tirx.Evaluate(call), tirx.Return(tirx.IntImm("int32", 0))])
    for key, value in (("device_id", 0), ("device_type", 1)):  # which TVM puts into the arrays
        body = tirx.AttrStmt(tirx.IntImm("int32", 0), key, tirx.IntImm("int32", value), body)
    function = tirx.PrimFunc(pointers, body, tvm.ir.PrimType("int32"))
    return tvm.ir.GlobalVar(f"call_{kernel}"), function


def _address(buffer: Any, offset: int = 0) -> Any:
    """The address of an element, which is the first one unless the buffer has one dimension."""
    indices = [tirx.IntImm("int64", offset)] if offset else [tirx.IntImm("int64", 0)] * len(buffer.shape)
    return tirx.address_of(tirx.BufferLoad(buffer, indices))


def _bytes(name: str, size: int) -> Any:
    return tirx.decl_buffer((max(size, 1),), "uint8", name, layout=None)
