"""What a worker holds for one workload: its inputs, the expected outputs, and the kernels built so far."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...codegen.compile import Kernel, build_module, check_arguments
from ...codegen.needed_features import check_host
from ...errors import one_line
from ...ir.stages import shape_of
from ...machine.contract import CPU
from ...machine.limits.passing import Passing
from ...machine.sharing.foreign_load import Counters, read_counters
from ...trial import Phases, Status
from ..pool.jobs import KERNELS, Build, Built, Data, Failed, Key, Race, Raced, Ran, Reals, Run, Verified, Verify
from ..timing import Call, interleaved, sample
from .devices import DeviceLost, device_of
from .output_check import difference, excess, fill, same_bytes
from .prepared_constants import PreparedConstants, copies_of, is_large

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ...ir.workload import Workload
    from ...machine.contract import Machine
    from ...sketches.contract import AnySketch

Array = NDArray[Any]


@dataclass(frozen=True)
class _Built:
    kernel: Kernel
    transforms: Mapping[int, PrimFunc]
    max_error: float


class Workbench:
    """Builds and runs candidates of one workload inside a worker.

    Attributes:
        spoiled: Whether no kernel can run in this process any more, because one failed that leaves its device in an
            unknown state.
    """

    def __init__(
        self,
        workload: Workload,
        target: Machine,
        sketches: Mapping[str, AnySketch],
        step: Callable[[str], None],
        passing: Passing | None = None,
    ) -> None:
        """A workbench without inputs and expected outputs; `take` brings them.

        Args:
            workload: The function that candidates compute.
            target: The machine that they are built for.
            sketches: The sketches that may be applied, by name.
            step: Is called with the name of each phase before it begins.
            passing: What passes through the caches between two executions, as in a model with other kernels.
        """
        self.workload = workload
        self.target = target
        self.sketches = sketches
        self.spoiled = False
        self._step = step
        self._tvm_target = target.tvm()
        self._inputs: list[Array] = []
        self._expected: list[Array] = []
        self._ties: list[Array | None] = []  # what is right instead of what is expected
        self._tolerance = 0.0
        self._tensors: list[Any] = []
        self._passing = passing
        # Of each large input and output, the inputs first, more copies, which executions take in turns.
        self._further: dict[int, list[Any]] = {}
        self._reals: Reals | None = None
        self._built: OrderedDict[Key, _Built] = OrderedDict()
        # Arguments of the kernels that race. Laying constants out takes seconds, and the cache may not hold them all.
        self._racing: dict[Key, list[list[Any]]] = {}
        self._device = device_of(target)
        self._constants = PreparedConstants(0 if passing is None else passing.constants, self._device.tensor)
        self._real_constants = PreparedConstants(0, self._device.tensor)
        self._outputs, self._views = self._device.outputs([(spec.shape, spec.dtype) for spec in workload.outputs])

    def take(self, data: Data | Reals) -> None:
        """Receives the inputs, the expected outputs, or the real numbers."""
        if isinstance(data, Reals):
            self._reals = data
            return
        if data.inputs:
            self._inputs = list(data.inputs)
            self._tensors = [self._device.tensor(array) for array in self._inputs]
            self._further.clear()
        if data.outputs:
            self._expected, self._tolerance = list(data.outputs), data.tolerance
            self._ties = list(data.ties) or [None] * len(data.outputs)

    def build(self, job: Build) -> Built | Failed:
        """Applies the sketch, compiles the kernel, and prepares the constants that it takes."""
        start = time.perf_counter()
        self._step("schedule")
        try:
            sketch = self.sketches[job.sketch]
            variant = sketch.apply(self.workload, self.target, job.config)
            self._check_parameters(variant.main, variant.transforms)
        except Exception as error:  # noqa: BLE001  whatever a sketch raises is this candidate's failure
            return Failed(Status.INSTANTIATION, one_line(error), Phases(schedule=time.perf_counter() - start))
        scheduled = time.perf_counter()
        self._step("build")
        sending = False
        try:
            if not self.target.runner:
                check_host(variant.main)
            module = build_module(variant.main, self._tvm_target)
            sending = bool(self.target.runner)
            kernel = self._device.load(module)
            built = _Built(kernel, variant.transforms, sketch.max_error)
            self._prepared_constants(built.transforms)
        except Exception as error:  # noqa: BLE001  the compiler's message is the record of why this candidate failed
            phases = Phases(schedule=scheduled - start, build=time.perf_counter() - scheduled)
            if sending or isinstance(error, DeviceLost):  # the runner may be gone: another process connects anew
                return self._broken_off(error, phases)
            status = Status.COMPILE_HOST if self.target.device == CPU else Status.COMPILE_DEVICE
            return Failed(status, one_line(error), phases)
        self._built[job.key] = built
        dropped = []
        while len(self._built) > KERNELS:
            dropped.append(self._built.popitem(last=False)[0])
        return Built(Phases(schedule=scheduled - start, build=time.perf_counter() - scheduled), tuple(dropped))

    def run(self, job: Run) -> Ran | Failed:
        """Executes a built kernel once, compares its output, takes the samples, and compares the last output."""
        start = time.perf_counter()
        checking = 0.0
        self._step("run")
        try:
            call = self._call(job.key)
            first = None
            if job.check:
                first = self._execute_into_sentinels(call)
                begin = time.perf_counter()
                wrong = self._check(job.key)
                checking = time.perf_counter() - begin
                if wrong:
                    phases = Phases(run=time.perf_counter() - start - checking, check=checking)
                    return Failed(Status.WRONG_ANSWER, wrong, phases)
            self._step("run")
            before = read_counters()
            samples = sample(call, job.plan, first, self._device.time_calls, self._device.fewest_executions)
            load = self._load_since(before)
            begin = time.perf_counter()
            wrong = self._check_again(job.key)
            checking += time.perf_counter() - begin
        except Exception as error:  # noqa: BLE001  whatever the kernel raises is this candidate's failure
            return self._broken_off(error, Phases(run=time.perf_counter() - start - checking, check=checking))
        if wrong:
            phases = Phases(run=time.perf_counter() - start - checking, check=checking)
            return Failed(Status.WRONG_ANSWER, f"after {len(samples)} samples: {wrong}", phases)
        return Ran(tuple(samples), load, Phases(run=time.perf_counter() - start - checking, check=checking))

    def verify(self, job: Verify) -> Verified | Failed:
        """Executes a built kernel once on real numbers, and compares its output."""
        assert self._reals is not None
        start = time.perf_counter()
        built = self._built[job.key]
        self._step("run")
        try:
            tensors = [self._device.tensor(array) for array in self._reals.inputs]
            for index, transform in built.transforms.items():
                (tensors[index],) = self._real_constants.get(transform, index, self._reals.inputs[index])
            self._execute_into_sentinels(self._device.call(built.kernel, [[*tensors, *self._outputs]]))
        except Exception as error:  # noqa: BLE001  whatever the kernel raises is this candidate's failure
            return self._broken_off(error, Phases(run=time.perf_counter() - start))
        begin = time.perf_counter()
        self._step("check")
        wrong = self._excess(built.max_error)
        phases = Phases(run=begin - start, check=time.perf_counter() - begin)
        if wrong:
            self._real_constants.clear()  # the kernel may have written to them
            return Failed(Status.WRONG_ANSWER, f"for real numbers: {wrong}", phases)
        return Verified(phases)

    def race(self, job: Race) -> Raced | Failed:
        """Takes samples of several built kernels in turns, and compares the output of each once more."""
        start = time.perf_counter()
        self._step("run")
        try:
            self._racing = {key: self._arguments(key) for key in dict.fromkeys(job.keys)}
            calls = [self._call(key) for key in job.keys]
            before = read_counters()
            samples = interleaved(
                calls, job.rounds, job.sample_seconds, self._device.time_calls, self._device.fewest_executions
            )
            load = self._load_since(before)
            del calls  # they hold arguments, which take much memory if they are large
            self._device.trespass()  # nobody knows which kernel did it: each is executed once more below
            wrong = {}
            for key in dict.fromkeys(job.keys):
                self._execute_into_sentinels(self._call(key))
                wrong[key] = self._check(key)
        except Exception as error:  # noqa: BLE001  reported as the failure of the race
            return self._broken_off(error, Phases(run=time.perf_counter() - start))
        finally:
            self._racing = {}
        late = {key: f"after a race: {line}" for key, line in wrong.items() if line}
        return Raced(tuple(tuple(of_kernel) for of_kernel in samples), load, time.perf_counter() - start, late)

    def _broken_off(self, error: Exception, phases: Phases) -> Failed:
        """The answer to a job that a kernel, or the loss of the device, broke off."""
        if isinstance(error, DeviceLost):  # another process connects anew and does the job again
            self.spoiled = True
            return Failed(Status.RUNTIME, f"the device is lost: {error}", phases, transient=True)
        self.spoiled = not self._device.in_process
        if self._device.in_process:
            self._restore()
            self._device.trespass()
        return Failed(Status.RUNTIME, one_line(error), phases)

    def _load_since(self, before: Counters) -> Counters:
        """The differences of the load counters since an earlier reading."""
        spent = read_counters() - before
        if self._device.on_cores:
            return spent
        # Other work on this machine's cores does not slow down another device.
        return Counters(spent.wall, slowed=self._device.slowed(), clock=self._device.clock())

    def _call(self, key: Key) -> Call:
        """A call of a built kernel. Its executions take equal inputs, but in turns from different memory.

        The first one writes to the outputs that are checked. The others may write to copies of these.
        """
        self._built.move_to_end(key)
        return self._device.call(self._built[key].kernel, self._racing.get(key) or self._arguments(key))

    def _arguments(self, key: Key) -> list[list[Any]]:
        """The arguments of the executions of a built kernel, which take them in turns."""
        built = self._built[key]
        arguments = (*self._tensors, *self._outputs)
        copies = [[tensor, *further] for tensor, further in zip(arguments, self._further_copies(), strict=True)]
        for index, tensors in self._prepared_constants(built.transforms):
            copies[index] = tensors
        return [
            [tensors[turn % len(tensors)] for tensors in copies] for turn in range(max(map(len, copies), default=1))
        ]

    def _further_copies(self) -> list[list[Any]]:
        """More copies of each input and output, so that no execution finds one in the caches of the cores.

        In a model other kernels have used their memory, on all cores. A small array has none: its time does not show.
        There are none on another machine, because only the first arguments are used there.
        """
        arrays = (*self._inputs, *self._views)
        if self._passing is not None and self._device.in_process and not self._further:
            count = copies_of(sum(array.nbytes for array in arrays), self._passing.arguments) - 1
            for index, array in enumerate(arrays):
                if index not in self.workload.constants and is_large(array.nbytes):
                    self._further[index] = [self._device.tensor(array) for _ in range(count)]
        return [self._further.get(index, []) for index in range(len(arrays))]

    def _prepared_constants(self, transforms: Mapping[int, PrimFunc]) -> list[tuple[int, list[Any]]]:
        """The constants that are transformed or have several copies: the position of each, and its copies."""
        return [
            (index, self._constants.get(transforms.get(index), index, self._inputs[index]))
            for index in self.workload.constants
            if index in transforms or self._passing is not None
        ]

    def _check_parameters(self, main: PrimFunc, transforms: Mapping[int, PrimFunc]) -> None:
        """Raises an error if the scheduled function does not take the workload's arguments."""
        specs = [(spec.shape, spec.dtype) for spec in (*self.workload.inputs, *self.workload.outputs)]
        for index, transform in transforms.items():
            if index not in self.workload.constants:
                raise ValueError(f"input {index} is transformed, but it is no constant")
            packed = transform.params[1]
            specs[index] = (shape_of(packed), str(packed.dtype))
        check_arguments(main, specs)

    def _execute_into_sentinels(self, call: Call) -> float:
        """Executes a kernel once, so that elements which it does not write are noticed. Returns the seconds."""
        for view in self._views:
            fill(view)
        self._device.push(self._outputs, self._views)
        self._step("run")
        seconds = self._device.time_calls(call, 1)
        self._device.pull(self._outputs, self._views)
        return seconds

    def _check(self, key: Key) -> str:
        """One line that says what is wrong with the output; empty if it is right.

        A wrong output may come from an earlier candidate that wrote to the inputs. In this case the kernel is executed
        again with the right inputs.
        """
        self._step("check")
        tolerance = self._tolerance_of(key)
        wrong = self._difference(tolerance)
        if wrong and self._restore():
            self._execute_into_sentinels(self._call(key))
            wrong = self._difference(tolerance)
            if wrong:
                self._restore()
        outside = self._device.trespass()  # always, because it also mends the memory around the outputs
        return wrong or outside

    def _check_again(self, key: Key) -> str:
        """One line about what is wrong after the last execution of a kernel, or with what it has done to the inputs.

        Inputs were intact before, because this is called after every run.
        """
        self._step("check")
        self._device.pull(self._outputs, self._views)
        outside = self._device.trespass()
        wrong = self._difference(self._tolerance_of(key)) or outside
        # Elsewhere than in this process the inputs would have to be copied back each time.
        if self._device.in_process and self._restore_inputs():
            wrong = "the kernel writes to its inputs"
        if wrong:
            self._restore()  # it may have written to the inputs and to the constants
        return wrong

    def _tolerance_of(self, key: Key) -> float:
        return self.workload.tolerance_of(self._built[key].max_error, self._tolerance)

    def _restore(self) -> bool:
        """Corrects inputs that a candidate wrote to, and drops the prepared constants.

        Returns:
            Whether anything may have been wrong. False if all inputs were intact and no constant was prepared.
        """
        self._racing = {}
        held = self._constants.clear()
        self._further.clear()
        return self._restore_inputs() or held

    def _restore_inputs(self) -> bool:
        """Corrects inputs that a candidate wrote to. Returns whether there were any."""
        damaged = False
        for tensor, array in zip(self._tensors, self._inputs, strict=True):
            if not same_bytes(self._device.view(tensor), array):
                tensor.copyfrom(array)
                damaged = True
        return damaged

    def _difference(self, tolerance: float) -> str:
        """One line about the first output that is wrong; empty if all are right."""
        lines = [
            difference(spec.name, view, expected, tolerance, tie)
            for spec, view, expected, tie in zip(
                self.workload.outputs, self._views, self._expected, self._ties, strict=True
            )
        ]
        return next(filter(None, lines), "")

    def _excess(self, max_error: float) -> str:
        """The same for real numbers. A sketch that computes in another way may also differ by its own bound."""
        assert self._reals is not None
        outside = self._device.trespass()
        for spec, view, expected, allowed in zip(
            self.workload.outputs, self._views, self._reals.outputs, self._reals.allowed, strict=True
        ):
            if max_error:
                allowed = np.maximum(allowed, max_error * float(np.abs(expected).max(initial=0.0)))
            if line := excess(spec.name, view, expected, allowed):
                return line
        return outside
