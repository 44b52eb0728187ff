"""A compiled model: NumPy arrays in, NumPy arrays out; saved to a folder, loaded without a compiler elsewhere.

folder/
  metadata.json   what the model is, for which machine, its inputs and outputs, checksums of the other files; the digest
                  of all this is the digest of the model
  model.vm        the sequence of kernel calls, and the constants
  kernels.bc      the kernels as LLVM bitcode, which loading turns into machine code; kernels-1.bc and so on hold more
  kernels.so      in a native model instead of kernels.bc: machine code, for which loading needs no LLVM
  foreign_0.onnx  the parts that onnxruntime runs, if there are any; see `foreign`
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm.runtime.vm import VirtualMachine
from tvm.support.cc import create_shared, get_cc

from ..errors import ArtifactError, InputError, ModelError, one_line, shown
from ..machine.forks import check_threads
from . import artifact_files
from .artifact_files import METADATA, NATIVE, PROGRAM, check_free, checksum, kernels_file
from .atomic_folder import replace_folder
from .foreign import ForeignParts
from .loading import load_program, without_scope_warnings
from .machines import Machine, Machines, checked_threads, main_function
from .metadata import Metadata, TensorInfo, described

# Ctrl-C in a function of ours that TVM calls arrives as what it is, and not as a RuntimeError.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)

_ALIGNMENT = 64  # bytes: TVM's code assumes this of a tensor unless its function says otherwise


class CompiledModel:
    """A model that is ready to run on this machine.

    `stormdrop.tune_model` makes one, `stormdrop.load` reads one from a folder. Several threads may call one model, and
    several models, at the same time: the calls in progress share the cores out, and those that find no core free wait.
    After a fork only one of the two processes can run models: start other processes with
    `multiprocessing.get_context("spawn")`, or fork before the first run.

    Attributes:
        threads: The most threads that one call uses, the calling thread included.
        metadata: What the model says about itself: inputs, outputs, machine, versions, provenance.
        symbols: The index of the task of each kernel, by the kernel's name. Empty for a model that was loaded.
        foreign: The parts that onnxruntime runs.
        digest: The digest of all files of the folder that the model was loaded from or was saved to last: 64
            hexadecimal digits. None if there is no such folder. Give it to `stormdrop.load` to get this very model.

    Example:
        ```python
        model = stormdrop.load("resnet50.sd")
        y = model(x)                              # inputs in order, or by keyword
        outputs = model.run({"data": x})          # inputs by name; all outputs by name
        model.save("copy.sd")
        ```
    """

    def __init__(
        self,
        module: Any,
        metadata: Metadata,
        symbols: Mapping[str, int] | None = None,
        foreign: ForeignParts | None = None,
        threads: int | None = None,
    ) -> None:
        """Make a program ready to run.

        Args:
            module: TVM's executable, or its module. Its function `main` takes the inputs in order.
            metadata: What the model says about itself.
            symbols: The index of the task of each kernel, by the kernel's name.
            foreign: The parts that onnxruntime runs.
            threads: The most threads that one call uses; all usable cores by default.

        Raises:
            ArtifactError: The code cannot be linked into this process, or onnxruntime is needed and not installed.
            InputError: `threads` is no number from 1 to the usable cores.
        """
        self.threads = checked_threads(threads)
        self.metadata = metadata
        self.symbols = dict(symbols or {})
        self.foreign = foreign or ForeignParts()
        self.digest: str | None = None
        self._types = {info.name: np.dtype(info.dtype) for info in metadata.inputs}
        self._executable, self._module = module, module.mod if hasattr(module, "mod") else module
        try:
            self._machines = Machines(lambda: self._machine(self._new_machine()))
        except ModelError as error:
            raise ArtifactError(str(error)) from error
        except Exception as error:
            # The virtual machine raises whatever the linker of the JIT or the deserialiser raises.
            raise ArtifactError(f"{metadata.name}: cannot be made ready to run: {one_line(error)}") from error

    @classmethod
    def load(cls, folder: str | Path, digest: str | None = None, threads: int | None = None) -> CompiledModel:
        """Load a saved model. This runs code of the folder: load what you trust, or check its digest.

        Loading needs no compiler and no `PATH`. It takes a second or more if the kernels are LLVM bitcode, which has
        to become machine code. A native model needs TVM's runtime library only (`TVM_USE_RUNTIME_LIB=1`, or a TVM
        package without the compiler).

        Args:
            folder: What `save` wrote.
            digest: The digest that the model must have; see `CompiledModel.digest`. Nothing of the folder runs if it
                has another one.
            threads: The most threads that one call uses; all usable cores by default.

        Raises:
            ArtifactError: The folder holds no model or one with another digest, its files are damaged, they were made
                with another version of TVM, or this CPU lacks instructions that the kernels use.
            InputError: `digest` is no digest, or `threads` is no number from 1 to the usable cores.
        """
        checked_threads(threads)  # before anything of the folder runs
        program, metadata, found, foreign = load_program(Path(folder), digest)
        model = cls(program, metadata, foreign=foreign, threads=threads)
        model.digest = found
        return model

    def save(self, folder: str | Path, native: bool = False) -> Path:
        """Write the model to a folder, whole or not at all. An older model there is replaced, in one step.

        Whatever ends the process meanwhile, the folder is the older model or the new one. `digest` is then that of the
        folder.

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
        path, digest = Path(folder), ""

        def write(new: Path) -> None:
            nonlocal digest
            digest = self.write_files(new, native)
            check_free(path)  # once more: somebody may have put a file there meanwhile

        try:
            check_free(path)
            replace_folder(path, write)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        self.digest = digest
        return path

    def __repr__(self) -> str:
        """A few lines: the model's name, its inputs and its outputs."""
        tensors = {"inputs": self.inputs, "outputs": self.outputs}
        lines = [f"{name:<8} {described(infos)}" for name, infos in tensors.items()]
        return "\n  ".join([f"{type(self).__name__} {shown(self.metadata.name)}:", *lines])

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
            feeds: Each input by name: a NumPy array, or anything that exports DLPack from the memory of the CPU. Inputs
                that the model does not use (`Metadata.ignored`) may be given.

        Returns:
            All outputs by name. The arrays belong to the caller: later calls do not change them.

        Raises:
            InputError: An input is missing, unknown, on another device, or of another shape or type.
            ArtifactError: A model has run in this process before it was forked.

        Example:
            ```python
            outputs = model.run({"data": image})
            ```
        """
        check_threads()
        unknown = feeds.keys() - self._types.keys() - set(self.metadata.ignored)
        if unknown:
            known = ", ".join(repr(info.name) for info in self.inputs)
            raise InputError(f"{self.metadata.name} has no input {min(unknown)!r}; its inputs are {known}")
        with self._machines.call(self.threads) as machine:
            result = machine.main(*(self._input_tensor(info, feeds, machine) for info in self.inputs))
            values = [result] if len(self.outputs) == 1 else list(result)
            return {info.name: value.numpy() for info, value in zip(self.outputs, values, strict=True)}

    def instrumented(self, callback: Callable[..., int]) -> CompiledModel:
        """The same model, whose virtual machine calls `callback` before and after each of its calls; see `profile`."""

        def create() -> Machine:
            machine = self._new_machine()
            machine.set_instrument(tvm_ffi.convert(callback))
            return self._machine(machine)

        model = copy.copy(self)
        model._machines = Machines(create)
        return model

    def _new_machine(self) -> Any:
        return VirtualMachine(self._executable if hasattr(self._executable, "jit") else self._module, tvm.cpu())

    def _machine(self, machine: VirtualMachine) -> Machine:
        main = main_function(machine, len(self.inputs))
        return Machine(self.foreign.around(main, self.metadata.name, self.threads))

    def _input_tensor(self, info: TensorInfo, feeds: Mapping[str, Any], machine: Machine) -> Any:
        """An input as TVM's tensor: the caller's memory if the kernels can read it, else a copy."""
        if info.name not in feeds:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
        feed = _without_lazy_bits(feeds[info.name])
        value = feed if isinstance(feed, np.ndarray) else _as_array(info.name, feed)
        contiguous = self._checked(info, value)
        # NumPy does not export read-only memory.
        exports = hasattr(feed, "__dlpack__") and (feed is not value or value.flags.writeable)
        alignment = value.itemsize if info.name in self.metadata.anywhere else _ALIGNMENT
        if exports and contiguous is value and value.size and value.ctypes.data % alignment == 0:
            return tvm_ffi.from_dlpack(feed)
        # The copy goes into memory that is kept, because touching fresh pages takes longer than copying.
        if info.name not in machine.copies:
            tensor = tvm.runtime.empty(info.shape, info.dtype)
            machine.copies[info.name] = tensor, np.from_dlpack(tensor)
        tensor, view = machine.copies[info.name]
        np.copyto(view, contiguous)
        return tensor

    def _checked(self, info: TensorInfo, value: NDArray[Any]) -> NDArray[Any]:
        """An input of the right shape and type, contiguous."""
        if value.shape != info.shape:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        if value.dtype != self._types[info.name]:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is {value.dtype.name}, not {info.dtype}")
        return np.asarray(value, order="C")

    def write_files(self, folder: Path, native: bool) -> str:
        """Write the files into an empty folder, as a part of `save`. Returns their digest."""
        kernels = list(self._module.imports)
        if any(module.kind != "llvm" for module in kernels):
            raise ArtifactError(
                f"{self.metadata.name}: was loaded from a native model and cannot be saved: copy its folder"
            )
        with without_scope_warnings():
            artifact_files.write_module(self._module, "vm", folder / PROGRAM)
        files = [NATIVE] if native else [kernels_file(part) for part in range(len(kernels))]
        if native:
            self._link(kernels, folder / NATIVE)
        else:
            for file, module in zip(files, kernels, strict=True):
                artifact_files.write_module(module, "bc", folder / file)
        for part, model in zip(self.foreign.reports, self.foreign.models, strict=True):
            (folder / part.file).write_bytes(model)
        names = [PROGRAM, *files, *(part.file for part in self.foreign.reports)]
        checksums = {name: checksum(folder / name) for name in names}
        text = self.metadata.to_json(checksums)
        (folder / METADATA).write_text(text)
        return Metadata.from_json(text.encode())[2]

    def _link(self, kernels: Sequence[Any], library: Path) -> None:
        compiler = needs_linker()
        objects = [library.with_name(f"kernels-{part}.o") for part in range(len(kernels))]
        for file, module in zip(objects, kernels, strict=True):
            artifact_files.write_module(module, "o", file)
        try:
            create_shared(str(library), [str(file) for file in objects], cc=compiler)
        except (RuntimeError, OSError) as error:
            lines = [line for line in str(error).splitlines() if line.strip() and "Compilation error" not in line]
            reason = next((line for line in lines if "error" in line.lower()), (lines or ["it gives no reason"])[0])
            raise ArtifactError(f"{self.metadata.name}: {compiler} does not link it: {reason}") from error
        for file in objects:
            file.unlink()


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


def _without_lazy_bits(feed: Any) -> Any:
    """A tensor of torch that is negated or conjugated only by a mark, as what the mark means.

    DLPack does not carry the mark: torch exports the memory of a negated tensor without a word.
    """
    if getattr(feed, "is_conj", bool)():
        feed = feed.resolve_conj()
    return feed.resolve_neg() if getattr(feed, "is_neg", bool)() else feed


def _as_array(name: str, feed: Any) -> NDArray[Any]:
    """An input that is no NumPy array as one. Raises `InputError` if it is on another device."""
    if not hasattr(feed, "__dlpack__"):
        return np.asarray(feed)
    try:
        return np.from_dlpack(feed)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {name!r} is no array in the memory of the CPU: {one_line(error)}") from error
