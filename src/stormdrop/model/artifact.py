"""A compiled model: NumPy arrays in, NumPy arrays out; saved to a folder, loaded without a compiler elsewhere.

folder/
  metadata.json   what the model is, for which machine, its inputs and outputs, checksums of the other files
  model.vm        the sequence of kernel calls, and the constants
  kernels.bc      the kernels as LLVM bitcode, which loading turns into machine code
  kernels.so      in a native model instead of kernels.bc: machine code, for which loading needs no LLVM
"""

from __future__ import annotations

import contextlib
import copy
import os
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

from ..errors import ArtifactError, InputError, one_line
from . import artifact_files
from .artifact_files import KERNELS, METADATA, NATIVE, PROGRAM, check_free, checksum, replace_folder
from .metadata import Metadata, TensorInfo, lacking_features

WORKSPACE = "workspace"
"""The name of the program's function that allocates the tensors which `main` takes after its inputs."""

_ALIGNMENT = 64  # bytes: TVM's code assumes this of a tensor unless its function says otherwise


class CompiledModel:
    """A model that is ready to run on this machine.

    `stormdrop.tune_model` makes one, `stormdrop.load` reads one from a folder. It is not safe to call one model from
    several threads at the same time.

    Attributes:
        metadata: What the model says about itself: inputs, outputs, machine, versions, provenance.
        symbols: The index of the task of each kernel, by the kernel's name. Empty for a model that was loaded.

    Example:
        ```python
        model = stormdrop.load("resnet50.sd")
        y = model(x)                              # inputs in order, or by keyword
        outputs = model.run({"data": x})          # inputs by name; all outputs by name
        model.save("copy.sd")
        ```
    """

    def __init__(self, module: Any, metadata: Metadata, symbols: Mapping[str, int] | None = None) -> None:
        """Make a program ready to run.

        Args:
            module: TVM's executable, or its module. Its function `main` takes the inputs in order.
            metadata: What the model says about itself.
            symbols: The index of the task of each kernel, by the kernel's name.

        Raises:
            ArtifactError: The code cannot be linked into this process.
        """
        self.metadata = metadata
        self.symbols = dict(symbols or {})
        self._input_copies: dict[str, tuple[Any, NDArray[Any]]] = {}
        self._types = {info.name: np.dtype(info.dtype) for info in metadata.inputs}
        self._executable, self._module = module, module.mod if hasattr(module, "mod") else module
        try:
            self._main = _main_function(self._new_machine())
        except Exception as error:
            # The virtual machine raises whatever the linker of the JIT or the deserialiser raises.
            raise ArtifactError(f"{metadata.name}: cannot be made ready to run: {one_line(error)}") from error

    @classmethod
    def load(cls, folder: str | Path) -> CompiledModel:
        """Load a saved model.

        Loading needs no compiler and no `PATH`. It takes a second or more if the kernels are LLVM bitcode, which has
        to become machine code. A native model needs TVM's runtime library only (`TVM_USE_RUNTIME_LIB=1`, or a TVM
        package without the compiler).

        Args:
            folder: What `save` wrote.

        Raises:
            ArtifactError: The folder holds no model, its files are damaged, they were made with another version of
                TVM, or this CPU lacks instructions that the kernels use.
        """
        path = Path(folder)
        metadata, kernels = _read_metadata(path)
        if metadata.tvm != tvm.__version__:
            raise ArtifactError(f"{path}: was made with TVM {metadata.tvm}; this is {tvm.__version__}; tune it again")
        lacking = lacking_features(metadata.features)
        if lacking:
            raise ArtifactError(f"{path}: was made for {metadata.cpu}; this CPU lacks {', '.join(lacking)}")
        if kernels == KERNELS and _loader("ll") is None:
            raise ArtifactError(
                f"{path}: holds LLVM bitcode, and this TVM has no LLVM; save the model with native=True"
            )
        with _without_scope_warnings():
            program = _loader("relax.VMExecutable")(str(path / PROGRAM))
        library = str(path / kernels)
        try:
            program.import_module(_loader("ll")(library, "bc") if kernels == KERNELS else load_module(library))
        except Exception as error:
            # TVM raises whatever the system's loader or LLVM's parser raises.
            raise ArtifactError(f"{path}: {kernels} cannot be loaded: {one_line(error)}") from error
        return cls(program, metadata)

    def save(self, folder: str | Path, native: bool = False) -> Path:
        """Write the model to a folder, whole or not at all. An older model there is replaced.

        Args:
            folder: Where to write it. Its parent folders are made if they do not exist.
            native: Write machine code instead of LLVM bitcode. That needs a linker (cc) now and no LLVM later, and
                loads faster.

        Returns:
            The folder.

        Raises:
            ArtifactError: The folder holds something else than a model or cannot be written, the linker fails, or
                this model was loaded from a native one, whose folder can be copied instead.

        Example:
            ```python
            model.save("resnet50.sd", native=True)
            ```
        """
        path = Path(folder)
        check_free(path)
        try:
            replace_folder(path, lambda new: self._write(new, native))
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        return path

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each input, in the order in which a call takes them."""
        return self.metadata.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each output, in the order in which a call returns them."""
        return self.metadata.outputs

    def __call__(self, *arguments: NDArray[Any], **named: NDArray[Any]) -> Any:
        """Run the model on inputs in order or by keyword; otherwise as `run`.

        Args:
            *arguments: The first inputs, in the order of `inputs`.
            **named: The other inputs by name.

        Returns:
            The output as a NumPy array, or a tuple of arrays in the order of `outputs` if there are several.

        Raises:
            InputError: An input is missing, unknown, given twice, or of another shape or type.

        Example:
            ```python
            probabilities = model(image)
            ```
        """
        if len(arguments) > len(self.inputs):
            raise InputError(f"{self.metadata.name} takes {len(self.inputs)} inputs, not {len(arguments)}")
        feeds = {info.name: value for info, value in zip(self.inputs, arguments, strict=False)}
        for name in sorted(feeds.keys() & named.keys()):
            raise InputError(f"{self.metadata.name}: input {name!r} is given twice")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model on inputs by name.

        A contiguous input is read in place; another one, and a read-only NumPy array, is copied first. An input that
        something else than a kernel reads is also copied if its memory does not begin at a multiple of 64 bytes
        (`aligned` makes such arrays, `Metadata.anywhere` names the inputs for which this does not matter).

        Args:
            feeds: Each input by name: a NumPy array, or anything that exports DLPack from the memory of the CPU.

        Returns:
            All outputs by name. The arrays belong to the caller: later calls do not change them.

        Raises:
            InputError: An input is missing, unknown, on another device, or of another shape or type.

        Example:
            ```python
            outputs = model.run({"data": image})
            ```
        """
        unknown = feeds.keys() - self._types.keys()
        if unknown:
            known = ", ".join(repr(info.name) for info in self.inputs)
            raise InputError(f"{self.metadata.name} has no input {min(unknown)!r}; its inputs are {known}")
        result = self._main(*(self._input_tensor(info, feeds) for info in self.inputs))
        values = [result] if len(self.outputs) == 1 else list(result)
        return {info.name: value.numpy() for info, value in zip(self.outputs, values, strict=True)}

    def instrumented(self, callback: Callable[..., int]) -> CompiledModel:
        """The same model, whose virtual machine calls `callback` before and after each of its calls; see `profile`."""
        model = copy.copy(self)
        model._input_copies = {}
        machine = self._new_machine()
        machine.set_instrument(tvm_ffi.convert(callback))
        model._main = _main_function(machine)
        return model

    def _new_machine(self) -> Any:
        return VirtualMachine(self._executable if hasattr(self._executable, "jit") else self._module, tvm.cpu())

    def _input_tensor(self, info: TensorInfo, feeds: Mapping[str, Any]) -> Any:
        """An input as TVM's tensor: the caller's memory if the kernels can read it, else a copy."""
        if info.name not in feeds:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
        feed = feeds[info.name]
        value = feed if isinstance(feed, np.ndarray) else _as_array(info.name, feed)
        contiguous = self._checked(info, value)
        # NumPy does not export read-only memory.
        exports = hasattr(feed, "__dlpack__") and (feed is not value or value.flags.writeable)
        alignment = value.itemsize if info.name in self.metadata.anywhere else _ALIGNMENT
        if exports and contiguous is value and value.size and value.ctypes.data % alignment == 0:
            return tvm_ffi.from_dlpack(feed)
        # The copy goes into memory that is kept, because touching fresh pages takes longer than copying.
        if info.name not in self._input_copies:
            tensor = tvm.runtime.empty(info.shape, info.dtype)
            self._input_copies[info.name] = tensor, np.from_dlpack(tensor)
        tensor, view = self._input_copies[info.name]
        np.copyto(view, contiguous)
        return tensor

    def _checked(self, info: TensorInfo, value: NDArray[Any]) -> NDArray[Any]:
        """An input of the right shape and type, contiguous."""
        if value.shape != info.shape:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        if value.dtype != self._types[info.name]:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is {value.dtype.name}, not {info.dtype}")
        return np.asarray(value, order="C")

    def _write(self, folder: Path, native: bool) -> None:
        (kernels,) = self._module.imports
        if kernels.kind != "llvm":
            raise ArtifactError(
                f"{self.metadata.name}: was loaded from a native model and cannot be saved: copy its folder"
            )
        with _without_scope_warnings():
            artifact_files.write_module(self._module, "vm", folder / PROGRAM)
        if native:
            self._link(kernels, folder / NATIVE)
        else:
            artifact_files.write_module(kernels, "bc", folder / KERNELS)
        checksums = {name: checksum(folder / name) for name in (PROGRAM, NATIVE if native else KERNELS)}
        (folder / METADATA).write_text(self.metadata.to_json(checksums))

    def _link(self, kernels: Any, library: Path) -> None:
        compiler = needs_linker()
        objects = library.with_suffix(".o")
        artifact_files.write_module(kernels, "o", objects)
        try:
            create_shared(str(library), [str(objects)], cc=compiler)
        except (RuntimeError, OSError) as error:
            lines = [line for line in str(error).splitlines() if line.strip() and "Compilation error" not in line]
            reason = next((line for line in lines if "error" in line.lower()), (lines or ["it gives no reason"])[0])
            raise ArtifactError(f"{self.metadata.name}: {compiler} does not link it: {reason}") from error
        objects.unlink()


def needs_linker() -> str:
    """Find the compiler that links native models.

    Returns:
        Its path.

    Raises:
        ArtifactError: There is none on the PATH.
    """
    compiler = get_cc()
    if compiler is None:
        raise ArtifactError("a native model needs a linker, and there is no cc on the PATH")
    return str(compiler)


def aligned(value: NDArray[Any]) -> NDArray[Any]:
    """Copy an array into memory that a model reads in place: contiguous, beginning at a multiple of 64 bytes."""
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copied = memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
    copied[...] = value
    return copied


def _read_metadata(path: Path) -> tuple[Metadata, str]:
    """The metadata of a saved model whose files are intact, and the name of the file with its kernels."""
    if not (path / METADATA).is_file():
        raise ArtifactError(f"{path}: " + ("no stormdrop model" if path.exists() else "no such folder"))
    try:
        metadata, checksums = Metadata.from_json((path / METADATA).read_text())
        kernels = NATIVE if NATIVE in checksums else KERNELS
        damaged = [name for name in (PROGRAM, kernels) if checksum(path / name) != checksums.get(name)]
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: {Path(error.filename).name} is missing") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from error
    if damaged:
        raise ArtifactError(f"{path}: {damaged[0]} is damaged: its checksum differs")
    return metadata, kernels


def _main_function(machine: VirtualMachine) -> Callable[..., Any]:
    """The function `main` of the inputs alone: if the program has a workspace, it is allocated here and passed on."""
    if not machine.module.implements_function(WORKSPACE):
        return machine["main"]  # type: ignore[no-any-return]
    main, tensors = machine["main"], tuple(machine[WORKSPACE]())
    return lambda *inputs: main(*inputs, *tensors)


def _as_array(name: str, feed: Any) -> NDArray[Any]:
    """An input that is no NumPy array as one. Raises `InputError` if it is on another device."""
    if not hasattr(feed, "__dlpack__"):
        return np.asarray(feed)
    try:
        return np.from_dlpack(feed)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {name!r} is no array in the memory of the CPU: {one_line(error)}") from error


@contextlib.contextmanager
def _without_scope_warnings() -> Iterator[None]:
    """Drop the warning "Scope ..." that TVM writes to file descriptor 2 for every constant; pass all else on."""
    try:
        stderr = os.dup(2)
    except OSError:
        yield  # this process has no standard error
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
    """TVM's function that loads a module of a kind from a file; None if this TVM has none."""
    return tvm_ffi.get_global_func(f"ffi.Module.load_from_file.{kind}", allow_missing=True)
