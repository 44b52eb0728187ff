"""A compiled model: NumPy arrays in, NumPy arrays out; saved to a folder, loaded without a compiler elsewhere.

folder/
  metadata.json   what the model is, for which machine, its inputs and outputs, checksums of the other files; the digest
                  of all this is the digest of the model
  program.json    the sequence of kernel calls, one for each size; see `model.program`
  opens.json      the same at any size of a range, if it runs at all sizes of one; see `model.open_sizes`
  weights.bin     the constants, if there are any, which loading maps
  kernels.bc      the kernels as LLVM bitcode, which loading turns into machine code; kernels-1.bc and so on hold more
  device.json     in a model for a GPU instead of kernels.bc: how its kernels are launched; see `runtime.device.code`
  kernels-0.cl    their code: the source of OpenCL kernels, or for each architecture NVIDIA's machine code
                  (kernels-0.sm_80.cubin) or portable code (kernels-0.compute_80.ptx)
  model.so        in a native model instead of kernels.bc: a library with a C interface; see `model.native`
  stormdrop.h     in a native model: that interface
  tuning.json.gz  what its tuning found, from which a report is made; see `kept_tuning.py`
  foreign_0.onnx  the parts that onnxruntime runs, if there are any; see `onnxruntime_parts`
"""

from __future__ import annotations

import copy
import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from numpy.typing import NDArray

from ...errors import ArtifactError, DeviceError, InputError, ModelError, one_line
from ...machine.gpu import Gpu
from ...machine.process.forks import check_threads
from ...machine.process.memory import return_freed_memory
from ...machine.threads import checked_threads
from ...measure.timing import time_calls
from ...runtime.calling import CallableModel
from ...runtime.calls import ModelCalls, Observer
from ...runtime.device.calls import DeviceCalls
from ...runtime.device.code import DeviceCode, files_of
from ...runtime.device.opening import CUDA, open_device
from ...runtime.device.parts import copied_bytes
from ...runtime.inputs import CallInputs
from ...runtime.open_size import OpenSize
from ...runtime.parts import RunPart
from ...runtime.program import Program
from ...runtime.sizes import described, sizes_in_words
from ..program.compiled import CompiledProgram
from ..program.document import opens_to_json, to_json
from ..program.weights_file import write_constants
from . import artifact_files
from .artifact_files import (
    INTERFACE,
    METADATA,
    NATIVE,
    OPENS,
    PROGRAM,
    WEIGHTS,
    checksum,
    kernels_file,
    save_folder,
)
from .loading import load_program
from .metadata import Metadata
from .native_calls import NativeCalls
from .onnxruntime_parts import OnnxruntimeParts

if TYPE_CHECKING:
    from ...runtime.device.cuda import CudaDevice


class CompiledModel(CallableModel):
    """A model that is ready to run on this machine.

    `stormdrop.tune_model` makes one, `stormdrop.load` reads one from a folder. It runs at each of its `sizes`: the
    shapes of a call's inputs say which one that is. Several threads may call one model, and several models, at the same
    time: the calls in progress share the cores out, and those that find no core free wait.
    After a fork only one of the two processes can run models: start other processes with
    `multiprocessing.get_context("spawn")`, or fork before the first run.

    A model that was loaded from a native folder is executed by its library, without TVM. Such models share the cores
    out among themselves: their calls and those of other models do not know of each other. Both processes can run them
    after a fork, unless onnxruntime runs a part.

    Attributes:
        threads: The most threads that one call uses, the calling thread included.
        symbols: The index of the task of each kernel, by the kernel's name. Empty for a model that was loaded.
        foreign: The parts that onnxruntime runs.
        digest: The digest of all files of the folder that the model was loaded from or was saved to last: 64
            hexadecimal digits. None if there is no such folder. Give it to `stormdrop.load` to get this very model.
        folder: That folder; None if there is none.

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
        program: CompiledProgram,
        metadata: Metadata,
        symbols: Mapping[str, int] | None = None,
        foreign: OnnxruntimeParts | None = None,
        threads: int | None = None,
    ) -> None:
        """Makes a program ready to run.

        Args:
            program: The program.
            metadata: What the model says about itself.
            symbols: The index of the task of each kernel, by the kernel's name.
            foreign: The parts that onnxruntime runs.
            threads: The most threads that one call uses; all usable cores by default.

        Raises:
            ArtifactError: The code cannot be linked into this process, or onnxruntime is needed and not installed.
            InputError: `threads` is no number from 1 to the usable cores.
        """
        self.threads = checked_threads(threads)
        self._program = program
        self.metadata = metadata
        self.symbols = dict(symbols or {})
        self.foreign = foreign or OnnxruntimeParts()
        self.digest: str | None = None
        self.folder: Path | None = None
        self._make_ready()

    def _make_ready(self) -> None:
        """Links the program into this process. Raises `ArtifactError` if it cannot be."""
        try:
            self._calls = self._calls_of(self._program)
            # Runs the model without the program, if onnxruntime runs all of it.
            self._alone = None if self.device else self.foreign.alone(self.metadata, self.threads)
        except Exception as error:
            raise self._not_ready(error) from error

    def _calls_of(self, program: CompiledProgram) -> ModelCalls:
        """What calls a program: by its library, on its GPU, or in this process by TVM's modules."""
        if program.native is not None:
            return NativeCalls(program, self.metadata, self.threads, self._run_part())
        if program.device is None:
            from .in_process import InProcessCalls

            return InProcessCalls(program, self.metadata, self.threads, self._run_part())
        named = self.metadata.target.get("info") or self.metadata.target
        return self._device_calls(program, program.device, name=str(named.get("name", "")))

    def _device_calls(self, program: CompiledProgram, code: DeviceCode, **which: Any) -> DeviceCalls:
        opened = functools.partial(open_device, self.metadata.device, **which)
        parts = self.foreign.on_device(self.metadata, self.threads)
        return DeviceCalls(opened, program.program, code, program.constants, parts)

    def _not_ready(self, error: Exception) -> ArtifactError | DeviceError:
        """What making it ready has raised. TVM raises whatever the linker of the JIT raises."""
        if isinstance(error, ArtifactError | DeviceError):
            return error
        if isinstance(error, ModelError):
            return ArtifactError(str(error))
        return ArtifactError(f"{self.metadata.name}: cannot be made ready to run: {one_line(error)}")

    @classmethod
    def load(cls, folder: str | Path, digest: str | None = None, threads: int | None = None) -> CompiledModel:
        """Loads a saved model. This runs code of the folder: load what you trust, or check its digest.

        Loading needs no compiler and no `PATH`. It takes a second or more if the kernels are LLVM bitcode, which has
        to become machine code. A native model needs no TVM: TVM is imported if a kernel calls a function of it, as
        those of TopK and of sorting do, or once the model is `observed`.

        Args:
            folder: What `save` wrote.
            digest: The digest that the model must have; see `CompiledModel.digest`. Nothing of the folder runs if it
                has another one.
            threads: The most threads that one call uses; all usable cores by default.

        Raises:
            ArtifactError: The folder holds no model or one with another digest, its files are damaged, they were made
                with another version of TVM and need it, or this CPU lacks instructions that the kernels use.
            DeviceError: It is for a GPU, and that is not here, or cannot run it.
            InputError: `digest` is no digest, or `threads` is no number from 1 to the usable cores.
        """
        checked_threads(threads)  # before anything of the folder runs
        program, metadata, found, foreign = load_program(Path(folder), digest)
        model = cls(program, metadata, foreign=foreign, threads=threads)
        model.digest, model.folder = found, Path(folder)
        return model._opened()

    def _opened(self) -> CompiledModel:
        """This model, ready for its first call. Raises `ArtifactError` or `DeviceError` if it cannot run here."""
        try:
            self._calls.open()
        except ModelError as error:
            raise self._not_ready(error) from error
        return self

    def reloaded(self, folder: Path) -> CompiledModel:
        """This model as it was saved to a folder, loaded where it runs.

        This model then gives its own weights up for those of the folder, which are mapped, so that they are in memory
        once; its kernels, too, unless the folder is native, because nothing could be saved from such kernels again.

        Args:
            folder: What `write_files` wrote.

        Raises:
            ArtifactError: As `load`. This model is then as it was.
        """
        loaded = CompiledModel.load(folder, threads=self.threads)
        loaded.symbols = self.symbols
        kernels = self._program if loaded._program.native is not None else loaded._program
        self._program = replace(kernels, constants=loaded._program.constants)
        self._make_ready()
        return_freed_memory()
        return loaded

    def open(self, opens: Sequence[OpenSize], modules: Sequence[Any]) -> None:
        """Makes it run at each size of some ranges, too.

        Args:
            opens: The programs of the ranges.
            modules: The modules of their kernels.

        Raises:
            ArtifactError: The code cannot be linked into this process.
        """
        modules = list(dict.fromkeys([*self._program.modules, *modules]))
        self._program = replace(self._program, opens=tuple(opens), modules=modules)
        self.metadata = self.metadata  # which says what the inputs of a call may be
        self._make_ready()

    @property
    def opens(self) -> tuple[OpenSize, ...]:
        """The ranges of sizes at which it runs besides its `sizes`."""
        return self._program.opens

    def metadata_at(self, shapes: Mapping[str, Sequence[int]]) -> Metadata:
        """As `Metadata.at`, also of a size of a range, for which the shapes of all inputs are to be given.

        Args:
            shapes: Shapes of inputs, by name.

        Raises:
            InputError: No size has them.
        """
        wanted = tuple(tuple(shapes.get(info.name, ())) for info in self.inputs)
        if wanted not in (size.shapes for size in self.metadata.all_sizes):
            for each in self.opens:
                if (sizes := each.parameters(wanted)) is not None:
                    inputs = tuple(tensor.at(sizes) for tensor in each.inputs)
                    return replace(self.metadata, inputs=inputs, outputs=tuple(out.at(sizes) for out in each.outputs))
        try:
            return self.metadata.at(shapes)
        except InputError as error:
            raise InputError(f"{error}{self._inputs.ranges}") from error

    def by_ranges(self) -> CompiledModel:
        """The same model, which runs by the programs of its ranges also where it was compiled for a size."""
        model = copy.copy(self)
        model._inputs = CallInputs(
            self.metadata.name, self.metadata.all_sizes, ignored=self.metadata.ignored, opens=self.opens, listed=False
        )
        return model

    def save(self, folder: str | Path, native: bool = False) -> Path:
        """Writes the model to a folder, whole or not at all. An older model there is replaced, in one step.

        Whatever ends the process meanwhile, the folder is the older model or the new one. `digest` is then that of the
        folder.

        Args:
            folder: Where to write it. Its parent folders are made if they do not exist.
            native: Write machine code instead of LLVM bitcode. That needs a C compiler (cc) now and no TVM later,
                and loads faster.

        Returns:
            The folder.

        Raises:
            ArtifactError: The folder holds something else than a model or cannot be written, the linker fails, or
                this model was loaded from a native one, whose folder can be copied instead; or `native` is true and the
                model is for a GPU.

        Example:
            ```python
            model.save("resnet50.sd", native=True)
            ```
        """
        path, digest = Path(folder), ""

        def write(new: Path) -> None:
            nonlocal digest
            digest = self.write_files(new, native)

        save_folder(path, write)
        self.digest, self.folder = digest, path
        return path

    def _repr_html_(self) -> str:
        """What Jupyter shows: name, machine, sizes, latency, precision; the kernels are folded away."""
        from ...report.notebook import compiled_html

        tuning: Mapping[str, Any] = self._tuning() or {}
        metadata = self.metadata
        return compiled_html(
            {
                "name": metadata.name,
                "machine": tuning.get("target") or metadata.cpu,
                "precision": metadata.provenance.get("precision", "float32"),
                "inputs": described(self.inputs),
                "outputs": described(self.outputs),
                "sizes": sizes_in_words(self._inputs.sizes) if len(self._inputs.sizes) > 1 else [],
                "kernels": {name: asdict(work) for name, work in metadata.kernels.items()},
                **{key: tuning.get(key) for key in ("latency", "untuned", "speedup", "verified", "profile")},
            }
        )

    def _tuning(self) -> dict[str, Any] | None:
        """The document of its tuning; None if the folder has none, or is another model by now."""
        from .kept_tuning import read_tuning

        if self.folder is None:
            return None
        try:
            _, digest, tuning = read_tuning(self.folder)
        except ArtifactError:  # the folder is gone, and the model is still here
            return None
        return tuning if digest == self.digest else None

    @property
    def metadata(self) -> Metadata:
        """What the model says about itself: inputs, outputs, sizes, machine, versions, provenance."""
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: Metadata) -> None:
        self._metadata = metadata
        sizes, opens = metadata.all_sizes, self._program.opens
        self._inputs = CallInputs(metadata.name, sizes, metadata.batched, metadata.ignored, opens)

    @property
    def program(self) -> Program:
        """What it executes, as plain data: `print` shows it on a page."""
        return self._program.program

    @property
    def other_gpu(self) -> str:
        """What to say if an NVIDIA GPU runs it that is another one than that of its schedules; else empty."""
        if self.metadata.device != CUDA or not isinstance(self._calls, DeviceCalls):
            return ""
        try:
            made_for = msgspec.convert(self.metadata.target, Gpu)
        except msgspec.ValidationError:  # another version of stormdrop has written it
            return ""
        device = cast("CudaDevice", self._calls.device)
        if made_for.is_one(device.name, device.arch, device.multiprocessors):
            return ""
        here = f"it runs on {device.name}, for which others may be faster"
        return f"its schedules are for {made_for.target_name}, and {here}"

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs the model on inputs by name.

        On a CPU a contiguous input is read in place; another one is copied first. An input of which kernels read a
        reshaped view is also copied if its memory does not begin at a multiple of 64 bytes (`aligned` makes such
        arrays, `Metadata.anywhere` names the inputs for which this does not matter).

        Args:
            feeds: Each input by name: a NumPy array, or anything that exports DLPack from the memory of the CPU. Inputs
                that the model does not use (`Metadata.ignored`) may be given. Together they have the shapes of one of
                `sizes`, or fewer rows of the inputs in `Metadata.batched`: the nearest larger size then runs.

        Returns:
            All outputs by name. The arrays belong to the caller: later calls do not change them. They are
            `DeviceArray`s if a GPU runs the model and an input lies in its memory; see `run_on_device`.

        Raises:
            DeviceError: A GPU runs the model, and that is not here, has too little memory, or a kernel has failed.
            InputError: An input is missing, unknown, on another device, or of another shape or type.
            ArtifactError: A model has run in this process before it was forked, and this one needs its threads.

        Example:
            ```python
            outputs = model.run({"data": image})
            ```
        """
        return {info.name: value for info, value in zip(self.outputs, self._results(feeds), strict=True)}

    def _results(self, feeds: Any) -> Sequence[Any]:
        on_device = self._results_on_device(feeds) if self._calls.on_gpu else None
        if on_device is not None:
            return on_device
        given = self._inputs(feeds)
        if self._alone is not None:
            check_threads()
            return self._alone(dict(zip(self._inputs.names, given.arrays, strict=True)))
        return self._calls(given)

    @property
    def native(self) -> bool:
        """Whether it was loaded from a native folder and runs without TVM."""
        return self._program.native is not None

    @property
    def device(self) -> str:
        """What executes it if the CPU does not: "cuda" or "opencl"."""
        return self.metadata.device

    @property
    def gpu(self) -> int | None:
        """The number of the NVIDIA GPU that executes it, in this process; None if it has not been opened on one."""
        return self._calls.gpu if self.device == CUDA and isinstance(self._calls, DeviceCalls) else None

    def on_gpu(self, number: int) -> CompiledModel:
        """The same model on another NVIDIA GPU of this machine; this model if it has been opened there.

        Args:
            number: The number of the GPU in this process, as CUDA and torch count.

        Raises:
            ArtifactError: The model is not for NVIDIA's GPUs, or nothing can run a part of it.
            DeviceError: There is no such GPU, or no driver, or the GPU cannot run it.

        Example:
            ```text
            second = sd.load("a100.sd").on_gpu(1)
            ```
        """
        code = self._program.device
        if code is None or self.device != CUDA or not isinstance(self._calls, DeviceCalls):
            raise ArtifactError(f"{self.metadata.name}: is not for NVIDIA's GPUs")
        if self.gpu == number:
            return self
        model = copy.copy(self)
        model._calls = self._device_calls(self._program, code, number=number)
        return model._opened()

    @property
    def times_itself(self) -> bool:
        """Whether it times its steps itself, as a native model does and one on a GPU; see `profile`."""
        return self._calls.times_itself

    def profile(self, feeds: Mapping[str, NDArray[Any]]) -> list[tuple[str, float]]:
        """Runs a model that `times_itself` as `run`, and times its steps. Of any other one `observed` tells the steps.

        Args:
            feeds: As those of `run`.

        Returns:
            The symbol of each step, in the order of the execution, and its seconds.

        Raises:
            InputError: As `run`.
            ArtifactError: As `run`, or the model does not time itself.
        """
        if not self.times_itself:
            raise ArtifactError(f"{self.metadata.name}: does not time its steps, which an observer sees (observed)")
        return self._calls.profile(self._inputs(feeds))

    def seconds(self, feeds: Mapping[str, NDArray[Any]], executions: int = 1) -> float:
        """The mean seconds of executions. On a GPU they are the GPU's own, without the copies of inputs and outputs.

        Args:
            feeds: As those of `run`.
            executions: Their number; they are done one after the other.

        Raises:
            InputError: As `run`.
            ArtifactError: As `run`.
        """
        if self._calls.on_gpu:
            return self._calls.seconds(self._inputs(feeds), executions)
        return time_calls(lambda: self.run(feeds), executions)

    def copied_bytes(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, int]:
        """The bytes of the copies before and after each part that the CPU runs for a GPU, by their names in `profile`.

        Args:
            feeds: As those of `run`.

        Raises:
            InputError: As `run`.
        """
        return copied_bytes(self.program.sizes[self._inputs(feeds).wanted.index]) if self.device else {}

    def observed(self, observer: Observer) -> CompiledModel:
        """The same model, which tells `observer` of each of its steps before and after it; see `profile`.

        The kernels of a native model are then called by TVM, which is imported for this.

        Args:
            observer: Is told of the steps.

        Raises:
            ArtifactError: The kernels cannot be called one by one, as those of a native model that was made with
                another version of TVM.
        """
        model = copy.copy(self)
        try:
            model._calls = self._calls.observed(observer)
        except Exception as error:
            raise self._not_ready(error) from error
        model._alone = None
        return model

    def _run_part(self) -> RunPart | None:
        return self.foreign.runner(self.metadata, self.threads)

    def write_files(self, folder: Path, native: bool) -> str:
        """Writes the files into an empty folder, as a part of `save`. Returns their digest."""
        kernels = list(self._program.modules)
        if self._program.native is not None or any(code.kind != "llvm" for code in kernels):
            raise ArtifactError(
                f"{self.metadata.name}: was loaded from a native model and cannot be saved: copy its folder"
            )
        if native and self._program.opens:
            raise ArtifactError(f"{self.metadata.name}: runs at a range of sizes, which a native model does not")
        (folder / PROGRAM).write_bytes(to_json(self._program.program))
        opens = [OPENS] if self._program.opens else []
        if opens:
            (folder / OPENS).write_bytes(opens_to_json(self._program.opens))
        weights = [WEIGHTS] if self._program.constants else []
        if weights:
            write_constants(self._program, folder / WEIGHTS)
        if self._program.device is not None:
            files = self._write_device_code(self._program.device, folder, native)
        else:
            files = self._write_kernels(kernels, folder, native)
        for part, model in zip(self.foreign.reports, self.foreign.models, strict=True):
            (folder / part.file).write_bytes(model)
        names = [PROGRAM, *opens, *weights, *files, *(part.file for part in self.foreign.reports)]
        checksums = {name: checksum(folder / name) for name in names}
        text = self.metadata.to_json(checksums)
        (folder / METADATA).write_text(text)
        return Metadata.from_json(text.encode())[2]

    def _write_kernels(self, kernels: Sequence[Any], folder: Path, native: bool) -> list[str]:
        """Writes the kernels of a CPU. Returns the names of the files."""
        if native:
            self._link(kernels, folder / NATIVE)
            return [NATIVE, INTERFACE]
        files = [kernels_file(part) for part in range(len(kernels))]
        for file, code in zip(files, kernels, strict=True):
            artifact_files.write_module(code, "bc", folder / file)
        return files

    def _write_device_code(self, code: DeviceCode, folder: Path, native: bool) -> list[str]:
        """Writes the kernels of a GPU. Returns the names of the files."""
        if native:
            raise ArtifactError(
                f"{self.metadata.name}: is for a GPU and needs no TVM to run as it is: leave native out"
            )
        files = files_of(code)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return list(files)

    def _link(self, kernels: Sequence[Any], library: Path) -> None:
        from ..native import link

        shutil.copyfile(link.INTERFACE, library.with_name(INTERFACE))
        objects = [library.with_name(f"kernels-{part}.o") for part in range(len(kernels))]
        for file, module in zip(objects, kernels, strict=True):
            artifact_files.write_module(module, "o", file)
        weights = library.with_name(WEIGHTS)
        link.link_model(
            self.program,
            objects,
            library,
            name=self.metadata.name,
            features=self.metadata.features,
            units=self.metadata.units,
            constants=weights if weights.exists() else None,
            keep_denormals=bool(self.metadata.target.get("keep_denormals", False)),
            anywhere=self.metadata.anywhere,
        )
        for file in objects:
            file.unlink()
