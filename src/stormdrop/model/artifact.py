"""A compiled model: NumPy in, NumPy out; saved to a folder, loaded without a compiler in another process.

folder/
  metadata.json   what it is, for which machine, its inputs and outputs, checksums of the other files
  model.vm        the sequence of kernel calls, and the constants
  kernels.bc      the kernels as LLVM bitcode, made machine code when loaded
  kernels.so      instead, in a native model: machine code, for which loading needs no LLVM
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm.runtime import load_module
from tvm.runtime.vm import VirtualMachine
from tvm.support.cc import create_shared, get_cc

from ..errors import ArtifactError, InputError
from .files import KERNELS, METADATA, NATIVE, PROGRAM, check_free
from .messages import first_line
from .metadata import Metadata, TensorInfo, lacking_features

WORKSPACE = "workspace"
"""A function of the program that allocates what `main` takes after its inputs."""

_ALIGNMENT = 64  # bytes: what TVM's code assumes of a tensor where nothing else is said


class CompiledModel:
    """A model ready to run on this machine. Not to be called from several threads at once.

    y = model(x)                                  inputs in order, or by keyword
    outputs = model.run({"data": x})              by name, all outputs
    """

    def __init__(self, module: Any, metadata: Metadata, symbols: Mapping[str, int] | None = None) -> None:
        """`module` is TVM's executable (or its module) whose function `main` takes the inputs in order.

        `symbols` says of which task of the graph each kernel is; a model that was loaded does not know.
        """
        self.metadata = metadata
        self.symbols = dict(symbols or {})
        self._inputs: dict[str, tuple[Any, NDArray[Any]]] = {}
        self._types = {info.name: np.dtype(info.dtype) for info in metadata.inputs}
        self._given, self._module = module, module.mod if hasattr(module, "mod") else module
        try:
            self._main = _ready(self._machine())
        except Exception as error:
            # The virtual machine raises whatever the linker of the JIT or the deserialiser raise.
            raise ArtifactError(f"{metadata.name}: cannot be made ready to run: {first_line(error)}") from error

    def _machine(self) -> Any:
        return VirtualMachine(self._given if hasattr(self._given, "jit") else self._module, tvm.cpu())

    def watched(self, watch: Callable[..., int]) -> CompiledModel:
        """The same model with a watch on the calls of its virtual machine; see `profile`."""
        model = copy.copy(self)
        model._inputs = {}
        machine = self._machine()
        machine.set_instrument(tvm_ffi.convert(watch))
        model._main = _ready(machine)
        return model

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.metadata.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.metadata.outputs

    def __call__(self, *arguments: NDArray[Any], **named: NDArray[Any]) -> Any:
        """The output for these inputs, or a tuple of them where there are several. Raises `InputError`."""
        if len(arguments) > len(self.inputs):
            raise InputError(f"{self.metadata.name} takes {len(self.inputs)} inputs, not {len(arguments)}")
        feeds = {info.name: value for info, value in zip(self.inputs, arguments, strict=False)}
        for name in sorted(feeds.keys() & named.keys()):
            raise InputError(f"{self.metadata.name}: input {name!r} is given twice")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs by name. Raises `InputError` for a missing or unknown input, a wrong shape or type.

        Inputs are NumPy arrays, or anything that exports DLPack on the CPU; those that are contiguous are read where
        they are, others and NumPy's read-only ones are copied. (So are, where something else than a kernel reads them
        in the model, those that do not begin at a multiple of 64 bytes: see `aligned`, and `Metadata.anywhere`.)
        Outputs are the caller's. Not for several threads at a time.
        """
        unknown = feeds.keys() - self._types.keys()
        if unknown:
            known = ", ".join(repr(info.name) for info in self.inputs)
            raise InputError(f"{self.metadata.name} has no input {min(unknown)!r}; its inputs are {known}")
        result = self._main(*(self._given_as(info, feeds) for info in self.inputs))
        values = [result] if len(self.outputs) == 1 else list(result)
        return {info.name: value.numpy() for info, value in zip(self.outputs, values, strict=True)}

    def _given_as(self, info: TensorInfo, feeds: Mapping[str, Any]) -> Any:
        """An input for TVM, not copied where it begins as kernels expect it."""
        if info.name not in feeds:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
        given = feeds[info.name]
        value = given if isinstance(given, np.ndarray) else _array(info.name, given)
        contiguous = self._checked(info, value)
        # NumPy exports no read-only memory.
        exports = hasattr(given, "__dlpack__") and (given is not value or value.flags.writeable)
        alignment = value.itemsize if info.name in self.metadata.anywhere else _ALIGNMENT
        if exports and contiguous is value and value.size and value.ctypes.data % alignment == 0:
            return tvm_ffi.from_dlpack(given)
        # Into memory that is there already: fresh pages take longer than the copy.
        if info.name not in self._inputs:
            tensor = tvm.runtime.empty(info.shape, info.dtype)
            self._inputs[info.name] = tensor, np.from_dlpack(tensor)
        tensor, view = self._inputs[info.name]
        np.copyto(view, contiguous)
        return tensor

    def _checked(self, info: TensorInfo, value: NDArray[Any]) -> NDArray[Any]:
        if value.shape != info.shape:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        if value.dtype != self._types[info.name]:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is {value.dtype.name}, not {info.dtype}")
        return np.asarray(value, order="C")

    def save(self, folder: str | Path, native: bool = False) -> Path:
        """Write the model to a folder, whole or not at all; an older model there is replaced.

        A `native` model holds machine code: it needs a linker now (cc) and no LLVM later, and loads faster. Raises
        `ArtifactError` where the path holds something else, or cannot be written, or nothing links.
        """
        path = Path(folder)
        check_free(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
                new, old = Path(scratch) / "new", Path(scratch) / "old"
                new.mkdir()
                self._write(new, native)
                if path.exists():
                    os.replace(path, old)
                try:
                    os.replace(new, path)
                except OSError:
                    if old.exists():
                        os.replace(old, path)
                    raise
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        return path

    def _write(self, folder: Path, native: bool) -> None:
        (kernels,) = self._module.imports
        if kernels.kind != "llvm":
            raise ArtifactError(f"{self.metadata.name}: was loaded from a native model: copy its folder")
        with _quiet():
            _write(self._module, "vm", folder / PROGRAM)
        if native:
            self._link(kernels, folder / NATIVE)
        else:
            _write(kernels, "bc", folder / KERNELS)
        checksums = {name: checksum(folder / name) for name in (PROGRAM, NATIVE if native else KERNELS)}
        (folder / METADATA).write_text(self.metadata.to_json(checksums))

    def _link(self, kernels: Any, library: Path) -> None:
        compiler = needs_linker()
        objects = library.with_suffix(".o")
        _write(kernels, "o", objects)
        try:
            create_shared(str(library), [str(objects)], cc=compiler)
        except (RuntimeError, OSError) as error:
            said = [line for line in str(error).splitlines() if line.strip() and "Compilation error" not in line]
            why = next((line for line in said if "error" in line.lower()), (said or ["it says nothing"])[0])
            raise ArtifactError(f"{self.metadata.name}: {compiler} does not link it: {why}") from error
        objects.unlink()

    @classmethod
    def load(cls, folder: str | Path) -> CompiledModel:
        """A saved model. Needs no compiler and no `PATH`; takes a second or more to make machine code.

        A native one needs TVM's runtime library only (`TVM_USE_RUNTIME_LIB=1`, or a package without the compiler).

        Raises `ArtifactError` for damaged files, another version of TVM, and a CPU that lacks instructions that the
        kernels use.
        """
        path = Path(folder)
        if not (path / METADATA).is_file():
            raise ArtifactError(f"{path}: " + ("no stormdrop model" if path.exists() else "no such folder"))
        try:
            metadata, checksums = Metadata.from_json((path / METADATA).read_text())
            kernels = NATIVE if NATIVE in checksums else KERNELS
            damaged = [name for name in (PROGRAM, kernels) if checksum(path / name) != checksums.get(name)]
        except FileNotFoundError as error:
            raise ArtifactError(f"{path}: {Path(error.filename).name} is missing") from error
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read: {first_line(error)}") from error
        if damaged:
            raise ArtifactError(f"{path}: {damaged[0]} is damaged: its checksum differs")
        if metadata.tvm != tvm.__version__:
            raise ArtifactError(f"{path}: was made with TVM {metadata.tvm}; this is {tvm.__version__}; tune it again")
        lacking = lacking_features(metadata.features)
        if lacking:
            raise ArtifactError(f"{path}: was made for {metadata.cpu}; this CPU lacks {', '.join(lacking)}")
        if kernels == KERNELS and _loader("ll") is None:
            raise ArtifactError(f"{path}: holds LLVM bitcode, and TVM is here without LLVM; save it with native=True")
        with _quiet():
            program = _loader("relax.VMExecutable")(str(path / PROGRAM))
        library = str(path / kernels)
        try:
            program.import_module(_loader("ll")(library, "bc") if kernels == KERNELS else load_module(library))
        except Exception as error:
            # TVM raises whatever the system's loader or LLVM's parser say.
            raise ArtifactError(f"{path}: {kernels} cannot be loaded: {first_line(error)}") from error
        return cls(program, metadata)


def _ready(machine: VirtualMachine) -> Callable[..., Any]:
    """The function `main` of inputs, with the memory between its kernels where it has a workspace."""
    if not machine.module.implements_function(WORKSPACE):
        return machine["main"]  # type: ignore[no-any-return]
    main, tensors = machine["main"], tuple(machine[WORKSPACE]())
    return lambda *inputs: main(*inputs, *tensors)


def needs_linker() -> str:
    """The compiler that links native models. Raises `ArtifactError` where there is none."""
    compiler = get_cc()
    if compiler is None:
        raise ArtifactError("a native model needs a linker, and there is no cc on the PATH")
    return str(compiler)


def aligned(value: NDArray[Any]) -> NDArray[Any]:
    """A copy that a model reads where it is: contiguous, beginning at a multiple of 64 bytes."""
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copied = memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
    copied[...] = value
    return copied


def _array(name: str, given: Any) -> NDArray[Any]:
    """What is no NumPy array as one. Raises `InputError` for what is on another device."""
    if not hasattr(given, "__dlpack__"):
        return np.asarray(given)
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {name!r} is no array in the memory of the CPU: {first_line(error)}") from error


def _write(module: Any, kind: str, file: Path) -> None:
    """A module of TVM's in a file, by way of memory: on a full disk, TVM writes less and says nothing, or aborts."""
    if not hasattr(os, "memfd_create"):  # other systems than Linux
        module.write_to_file(str(file), kind)
        return
    with os.fdopen(os.memfd_create(file.name), "rb") as memory, file.open("wb") as disk:
        module.write_to_file(f"/proc/self/fd/{memory.fileno()}", kind)
        shutil.copyfileobj(memory, disk)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop the warning "Scope ..." that TVM writes to file descriptor 2 for every constant; all else is passed on."""
    try:
        stderr = os.dup(2)
    except OSError:
        yield  # a process without standard error has nothing to keep quiet
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            sink.seek(0)
            for line in sink:
                if b"Warning: Scope " not in line:
                    os.write(2, line)


def _loader(kind: str) -> Any:
    return tvm_ffi.get_global_func(f"ffi.Module.load_from_file.{kind}", allow_missing=True)


def checksum(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
