"""Loads the program of a saved model: its files are read once, checked, and loaded from what was checked.

A native model needs no TVM, which takes a second to import. `tvm_modules` is imported for the others.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import ArtifactError, InputError, TargetError, one_line
from ...machine import cpu_flags
from ...machine.tiles import permit
from ...runtime.device.code import read_files
from ...runtime.folder import DEVICE
from ...runtime.library import Library, library_of
from ...runtime.open_size import OpenSize
from ..program.compiled import CompiledProgram, NativeCode
from ..program.document import from_json, opens_from_json
from ..program.weights_file import constants_in, map_constants
from .artifact_files import (
    KERNELS,
    METADATA,
    NATIVE,
    NO_MODEL,
    OPENS,
    PROGRAM,
    WEIGHTS,
    open_files,
    private_copy,
    unchanging,
)
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
    if metadata.device:
        kernels = [name for name in checksums if name == DEVICE or name.startswith("kernels-")]
    else:
        kernels = [NATIVE] if NATIVE in checksums else [name for name in checksums if name.endswith(".bc")] or [KERNELS]
        if here:
            _check_runs_here(path, metadata, kernels == [NATIVE])
    with contextlib.ExitStack() as stack:
        copies = {}
        stated = [WEIGHTS] if WEIGHTS in checksums else []
        ranges = [OPENS] if OPENS in checksums else []
        for name in (PROGRAM, *ranges, *stated, *kernels, *(part.file for part in metadata.foreign)):
            if name not in files:
                raise ArtifactError(f"{path}: {name} is missing")
            checked = unchanging if name == WEIGHTS else private_copy
            copies[name], actual = stack.enter_context(checked(files[name]))
            if actual != checksums.get(name):
                raise ArtifactError(f"{path}: {name} is damaged: its checksum differs")
        foreign = OnnxruntimeParts(
            metadata.foreign, [Path(copies[part.file]).read_bytes() for part in metadata.foreign]
        )
        name = PROGRAM
        try:
            program = from_json(Path(copies[PROGRAM]).read_bytes(), len(metadata.foreign))
            if [(size.inputs, size.outputs) for size in program.sizes] != [
                (size.inputs, size.outputs) for size in metadata.all_sizes
            ]:
                raise ValueError(f"its inputs and outputs are not those of {METADATA}")
            opens = tuple[OpenSize, ...]()
            for name in ranges:
                opens = opens_from_json(Path(copies[name]).read_bytes(), program)
            if program.constants and not stated:
                raise ValueError(f"{METADATA} names no {WEIGHTS}, and it has constants")
            modules, library = list[Any](), None
            device = None
            if metadata.device:
                name = DEVICE
                device = read_files(lambda file: Path(copies[file]).read_bytes())
            for name in () if metadata.device else kernels:
                code = _load_kernels(path, name, copies[name], checksums[name], metadata, here)
                if isinstance(code, Library):
                    library = code
                else:
                    modules.append(code)
            if here and modules:
                from .tvm_modules import generate_code

                generate_code(modules)
            weights = np.zeros(0, np.uint8)
            for name in stated:
                weights = map_constants(program, Path(copies[name]))
        except ArtifactError:
            raise
        except Exception as error:
            # TVM raises whatever the system's loader or LLVM's parser raises.
            raise ArtifactError(f"{path}: {name} cannot be loaded: {one_line(error)}") from error
    native = None if library is None else NativeCode(library, weights)
    constants = constants_in(program, weights)
    return CompiledProgram(program, modules, constants, native, device, opens), metadata, found, foreign


def _read_metadata(path: Path, files: Mapping[str, BinaryIO]) -> tuple[Metadata, dict[str, str], str]:
    """The metadata of a saved model, the checksums of its files, and its digest."""
    if METADATA not in files:
        raise ArtifactError(f"{path}: {NO_MODEL}")
    try:
        return Metadata.from_json(files[METADATA].read())
    except ValueError as error:
        raise ArtifactError(f"{path}: {METADATA} cannot be read: {one_line(error)}") from error


def _check_runs_here(path: Path, metadata: Metadata, native: bool) -> None:
    if not native:
        from .tvm_modules import check_version, has_bitcode_loader

        check_version(metadata, str(path))
        if not has_bitcode_loader():
            raise ArtifactError(
                f"{path}: holds LLVM bitcode, and this TVM has no LLVM; save the model with native=True"
            )
    lacking = cpu_flags.missing_features(metadata.features) if native else lacking_features(metadata.features)
    if lacking:
        raise ArtifactError(f"{path}: was made for {metadata.cpu}; this CPU lacks {', '.join(lacking)}")
    try:
        permit(metadata.units)
    except TargetError as error:
        raise ArtifactError(f"{path}: {error}") from error


def _load_kernels(path: Path, name: str, copy: str, digest: str, metadata: Metadata, here: bool) -> Library | Any:
    """The kernels in a file: the library of a native model that needs no TVM, else a module of TVM."""
    if name == NATIVE and here:
        library = library_of(str(path), os.open(copy, os.O_RDONLY | os.O_CLOEXEC), digest)
        if not library.needs_tvm:
            return library
    from .tvm_modules import check_version, load_bitcode, load_library

    if name != NATIVE:
        return load_bitcode(copy)
    if here:
        check_version(metadata, str(path))
    return load_library(copy)
