"""The kernels of a saved model as modules of TVM."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ...errors import ArtifactError
from ...machine.process.scratch import scratch_folder
from ..program.compiled import CompiledProgram
from .artifact_files import NATIVE, private_copy
from .metadata import Metadata


def check_version(metadata: Metadata, name: str) -> None:
    """Checks that this TVM can call the kernels of a model.

    Args:
        metadata: What the model says about itself.
        name: What messages call it.

    Raises:
        ArtifactError: Another version of TVM has made them.
    """
    if metadata.tvm != tvm.__version__:
        raise ArtifactError(f"{name}: was made with TVM {metadata.tvm}; this is {tvm.__version__}; tune it again")


def has_bitcode_loader() -> bool:
    """Whether this TVM has LLVM, which makes machine code of bitcode."""
    return _loader() is not None


def load_bitcode(file: str) -> Any:
    """A module of LLVM's bitcode.

    Args:
        file: Its path.

    Raises:
        Exception: Whatever LLVM's parser raises.
    """
    loader = _loader()
    assert loader is not None
    return loader(file, "bc")


def generate_code(modules: Sequence[Any]) -> None:
    """Makes machine code of LLVM's, each module in a thread.

    Args:
        modules: The modules.

    Raises:
        Exception: Whatever LLVM raises.
    """

    def generate(module: Any) -> None:
        with contextlib.suppress(AttributeError):
            module.get_function("main")  # to look up a name, even one that is not there, needs the machine code

    with ThreadPoolExecutor(max(1, min(len(modules), os.cpu_count() or 1))) as threads:
        list(threads.map(generate, modules))


def load_library(file: str) -> Any:
    """A module of the library of a native model, whose kernels then use TVM's threads.

    Args:
        file: Its path. No other part of this process may have loaded it.

    Raises:
        Exception: Whatever the system's loader raises.
    """
    # The system's loader knows libraries by name: it would take the name of a closed copy for that copy.
    with scratch_folder() as folder:
        library = folder / NATIVE
        library.symlink_to(file)
        return tvm_ffi.load_module(library)


def with_modules(compiled: CompiledProgram, metadata: Metadata) -> CompiledProgram:
    """A program with TVM's modules of its kernels, by which they can be called one by one.

    Args:
        compiled: The program. If a library executes it, a copy of the library is loaded.
        metadata: What the model says about itself.

    Raises:
        ArtifactError: Another version of TVM has made the kernels.
        OSError: There is no room for a copy.
    """
    if compiled.native is None:
        return compiled
    check_version(metadata, metadata.name)
    library = Path(f"/proc/self/fd/{compiled.native.library.descriptor}")
    with library.open("rb") as file, private_copy(file) as (copy, _):
        return replace(compiled, modules=[load_library(copy)], native=None)


def _loader() -> Any:
    """TVM's function that loads a module from a file of LLVM's; None if this TVM has none."""
    return tvm_ffi.get_global_func("ffi.Module.load_from_file.ll", allow_missing=True)
