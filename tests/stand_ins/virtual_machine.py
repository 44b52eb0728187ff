"""TVM's virtual machine in the place of a program: the same kernels, called as Relax's own pipeline calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform, vm_build
from tvm.runtime.vm import VirtualMachine

from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building import compile as compiling
from stormdrop.model.building.derive import derive_program, with_memory
from stormdrop.model.inputs.samples import Feeds
from stormdrop.model.tensors import Array, array_of, copied
from stormdrop.runtime.program import FUNCTION, main_name


@contextmanager
def recorded() -> Iterator[list[tvm.IRModule]]:
    """Yields the modules of which programs are derived meanwhile."""
    modules: list[tvm.IRModule] = []

    def derive(mod: tvm.IRModule, *rest: Any) -> Any:
        modules.append(mod)
        return derive_program(mod, *rest)

    with mock.patch.object(compiling, "derive_program", derive):
        yield modules


def run_by_virtual_machine(model: CompiledModel, mod: tvm.IRModule, size: int, feeds: Feeds) -> dict[str, Array]:
    """The outputs of a model, by its kernels and TVM's virtual machine.

    Args:
        model: The model.
        mod: The module that its program was derived of.
        size: The position of the size.
        feeds: Its inputs by name.
    """
    to_machine = tvm.transform.Sequential(
        [
            with_memory(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )
    builder = relax.ExecBuilder()
    with tvm.target.Target("llvm"):
        vm_build._vmcodegen(builder, to_machine(mod))
    executable = builder.get()
    for module in model._program.modules:
        executable.mod.import_module(module)
    run_part = model.foreign.runner(model.metadata, model.threads)
    for index in range(len(model.foreign)):
        tvm.register_global_func(f"{FUNCTION}{index}", _part(index, run_part, model), override=True)
    machine = VirtualMachine(executable, tvm.cpu())
    result = machine[main_name(size)](*[copied(np.asarray(feeds[info.name])) for info in model.inputs])
    results = [result] if len(model.outputs) == 1 else list(result)
    return {info.name: np.array(array_of(each)) for info, each in zip(model.outputs, results, strict=True)}


def _part(index: int, run_part: Any, model: CompiledModel) -> Callable[..., Any]:
    count = len(model.foreign.sessions_of(model.metadata, model.threads)[index].inputs)

    def call(*tensors: Any) -> Any:
        arrays = [array_of(tensor) for tensor in tensors]
        outputs: list[Any] = arrays[count:]
        if not outputs:
            results = [copied(value) for value in run_part(index, arrays, [None])]
            return results[0] if len(results) == 1 else results
        run_part(index, arrays[:count], outputs)
        return None

    return call


def assert_equal(ours: Mapping[str, Array], right: Mapping[str, Array]) -> None:
    """Asserts that outputs are equal bit for bit."""
    assert ours.keys() == right.keys()
    for name, value in ours.items():
        assert value.dtype == right[name].dtype and value.shape == right[name].shape
        assert value.tobytes() == right[name].tobytes(), name
