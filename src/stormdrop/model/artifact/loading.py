"""Loads the program of a saved model: its files are read once, checked, and loaded from what was checked."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray

from ...errors import ArtifactError, InputError, TargetError, one_line
from ...machine.process.scratch import scratch_folder
from ...machine.tiles import permit
from ..program.compiled import CompiledProgram
from ..program.document import from_json
from .artifact_files import KERNELS, METADATA, NATIVE, NO_MODEL, PROGRAM, WEIGHTS, open_files, private_copy, unchanging
from .constants_file import read_constants
from .metadata import Metadata, lacking_features
from .onnxruntime_parts import OnnxruntimeParts


def load_program(
    path: Path, digest: str | None = None, here: bool = True
) -> tuple[CompiledProgram, Metadata, str, OnnxruntimeParts]:
    """Loads the program of a saved model.

    Args:
        path: The folder.
        digest: The digest that the model must have. Nothing of the folder runs if it has another one.
        here: Whether it is to run in this process. Otherwise its kernels may be for another CPU.

    Returns:
        The program, with its kernels; the metadata; the digest; the parts that onnxruntime runs.

    Raises:
        ArtifactError: As `CompiledModel.load`.
        InputError: `digest` is no digest.
    """
    if digest is not None and not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise InputError(f"digest {digest[:80]!r}: must be 64 hexadecimal digits, as `stormdrop tune` prints them")
    try:
        with open_files(path) as files:
            return _load(path, files, digest, here)
    except (OSError, ValueError) as error:  # Python raises ValueError for a path with a NUL
        exists, is_folder = os.path.exists(path), os.path.isdir(path)  # noqa: PTH110, PTH112  these never raise
        if exists and not is_folder and path.suffix == ".onnx":
            raise ArtifactError(
                f"{path}: an ONNX model, which is not compiled yet: `stormdrop compile {shlex.quote(str(path))}` does"
                " so in seconds, `stormdrop tune` makes it fast"
            ) from None
        if not is_folder:
            raise ArtifactError(f"{path}: " + (NO_MODEL if exists else "no such folder")) from None
        raise ArtifactError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _load(
    path: Path, files: Mapping[str, BinaryIO], digest: str | None, here: bool
) -> tuple[CompiledProgram, Metadata, str, OnnxruntimeParts]:
    """The program of a folder whose files are open."""
    metadata, checksums, found = _read_metadata(path, files)
    if digest is not None and digest.lower() != found:
        raise ArtifactError(f"{path}: has the digest {found}, not {digest}: this is another model than the one meant")
    kernels = [NATIVE] if NATIVE in checksums else [name for name in checksums if name.endswith(".bc")] or [KERNELS]
    if here:
        _check_runs_here(path, metadata, kernels[0])
    with contextlib.ExitStack() as stack:
        copies = {}
        weights = [WEIGHTS] if WEIGHTS in checksums else []
        for name in (PROGRAM, *weights, *kernels, *(part.file for part in metadata.foreign)):
            if name not in files:
                raise ArtifactError(f"{path}: {name} is missing")
            checked = unchanging if name == WEIGHTS else private_copy
            copies[name], actual = stack.enter_context(checked(files[name]))
            if actual != checksums.get(name):
                raise ArtifactError(f"{path}: {name} is damaged: its checksum differs")
        foreign = OnnxruntimeParts(
            metadata.foreign, [Path(copies[part.file]).read_bytes() for part in metadata.foreign]
        )
        name, constants = PROGRAM, list[NDArray[np.uint8]]()
        try:
            program = from_json(Path(copies[PROGRAM]).read_bytes(), len(metadata.foreign))
            if [(size.inputs, size.outputs) for size in program.sizes] != [
                (size.inputs, size.outputs) for size in metadata.all_sizes
            ]:
                raise ValueError(f"its inputs and outputs are not those of {METADATA}")
            if program.constants and not weights:
                raise ValueError(f"{METADATA} names no {WEIGHTS}, and it has constants")
            modules = []
            for name in kernels:
                modules.append(_load_kernels(name, copies[name]))
            if here:
                _generate_code(modules)
            for name in weights:
                constants = read_constants(program, Path(copies[name]))
        except Exception as error:
            # TVM raises whatever the system's loader or LLVM's parser raises.
            raise ArtifactError(f"{path}: {name} cannot be loaded: {one_line(error)}") from error
    return CompiledProgram(program, modules, constants), metadata, found, foreign


def _read_metadata(path: Path, files: Mapping[str, BinaryIO]) -> tuple[Metadata, dict[str, str], str]:
    """The metadata of a saved model, the checksums of its files, and its digest."""
    if METADATA not in files:
        raise ArtifactError(f"{path}: {NO_MODEL}")
    try:
        return Metadata.from_json(files[METADATA].read())
    except ValueError as error:
        raise ArtifactError(f"{path}: {METADATA} cannot be read: {one_line(error)}") from error


def _check_runs_here(path: Path, metadata: Metadata, kernels: str) -> None:
    if metadata.tvm != tvm.__version__:
        raise ArtifactError(f"{path}: was made with TVM {metadata.tvm}; this is {tvm.__version__}; tune it again")
    lacking = lacking_features(metadata.features)
    if lacking:
        raise ArtifactError(f"{path}: was made for {metadata.cpu}; this CPU lacks {', '.join(lacking)}")
    try:
        permit(metadata.units)
    except TargetError as error:
        raise ArtifactError(f"{path}: {error}") from error
    if kernels != NATIVE and _loader("ll") is None:
        raise ArtifactError(f"{path}: holds LLVM bitcode, and this TVM has no LLVM; save the model with native=True")


def _generate_code(modules: Sequence[Any]) -> None:
    """Makes machine code of LLVM's, each module in a thread."""

    def generate(module: Any) -> None:
        with contextlib.suppress(AttributeError):
            module.get_function("main")  # to look up a name, even one that is not there, needs the machine code

    with ThreadPoolExecutor(max(1, min(len(modules), os.cpu_count() or 1))) as threads:
        list(threads.map(generate, modules))


def _load_kernels(name: str, copy: str) -> Any:
    if name != NATIVE:
        return _loader("ll")(copy, "bc")
    # The system's loader knows libraries by name: it would take the name of a closed copy for that copy.
    with scratch_folder() as folder:
        library = folder / NATIVE
        library.symlink_to(copy)
        return tvm_ffi.load_module(library)


def _loader(kind: str) -> Any:
    """TVM's function that loads a module of a kind from a file; None if this TVM has none."""
    return tvm_ffi.get_global_func(f"ffi.Module.load_from_file.{kind}", allow_missing=True)
