"""What a worker holds for one workload: its inputs, the expected outputs, and the kernels built so far."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from ..codegen.compile import Kernel, build_module, check_arguments
from ..errors import one_line
from ..ir.reference import evaluate
from ..ir.stages import shape_of
from ..machine.contract import CPU
from ..machine.foreign_load import Counters, read_counters
from ..trial import Phases, Status
from .devices import device_of
from .jobs import KERNELS, Build, Built, Data, Failed, Key, Race, Raced, Ran, Run
from .timing import interleaved, sample

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..machine.contract import Machine
    from ..sketches.contract import AnySketch

Array = NDArray[Any]

_SENTINEL = 1.2345e30  # in float outputs before a kernel writes them
_CONSTANT_BYTES = 512 << 20  # constants that a worker keeps
_LARGE = 64 << 10  # bytes: the way from memory of a constant that is not smaller shows


@dataclass(frozen=True)
class _Built:
    kernel: Kernel
    transforms: Mapping[int, PrimFunc]
    max_error: float


class Workbench:
    """Builds and runs candidates of one workload. Lives in a worker; `step` is told each phase before it begins."""

    def __init__(
        self,
        workload: Workload,
        target: Machine,
        sketches: Mapping[str, AnySketch],
        step: Callable[[str], None],
        passing: int = 0,
    ) -> None:
        """Between two executions so many bytes of constants pass through the caches."""
        self.workload = workload
        self.target = target
        self.sketches = sketches
        self._step = step
        self._tvm_target = target.tvm()
        self._inputs: list[Array] = []
        self._expected: list[Array] = []
        self._tolerance = 0.0
        self.spoiled = False
        """Whether nothing can run here any more: a kernel failed that leaves its device in an unknown state."""
        self._tensors: list[Any] = []
        self._built: OrderedDict[Key, _Built] = OrderedDict()
        self._device = device_of(target)
        self._constants = _Constants(passing, self._device.tensor)
        self._outputs, self._views = self._device.outputs([(spec.shape, spec.dtype) for spec in workload.outputs])

    def take(self, data: Data) -> None:
        """Receives inputs or expected outputs."""
        if data.inputs:
            self._inputs = list(data.inputs)
            self._tensors = [self._device.tensor(array) for array in self._inputs]
        if data.outputs:
            self._expected, self._tolerance = list(data.outputs), data.tolerance

    def build(self, job: Build) -> Built | Failed:
        """Applies the sketch, compiles, and prepares the constants that the kernel wants transformed."""
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
        try:
            kernel = self._device.load(build_module(variant.main, self._tvm_target))
            built = _Built(kernel, variant.transforms, sketch.max_error)
            self._wanted(built.transforms)
        except Exception as error:  # noqa: BLE001  the compiler's word is the record of why this candidate failed
            phases = Phases(schedule=scheduled - start, build=time.perf_counter() - scheduled)
            status = Status.COMPILE_HOST if self.target.device == CPU else Status.COMPILE_DEVICE
            return Failed(status, one_line(error), phases)
        self._built[job.key] = built
        dropped = []
        while len(self._built) > KERNELS:
            dropped.append(self._built.popitem(last=False)[0])
        return Built(Phases(schedule=scheduled - start, build=time.perf_counter() - scheduled), tuple(dropped))

    def run(self, job: Run) -> Ran | Failed:
        """Executes a built kernel once, compares its output, and takes the samples."""
        start = time.perf_counter()
        checking = 0.0
        try:
            call = self._call(job.key)
            first = None
            if job.check:
                first = self._first(call)
                begin = time.perf_counter()
                wrong = self._check(job.key)
                checking = time.perf_counter() - begin
                if wrong:
                    phases = Phases(run=time.perf_counter() - start - checking, check=checking)
                    return Failed(Status.WRONG_ANSWER, wrong, phases)
            self._step("run")
            before = read_counters()
            samples = sample(call, job.plan, first, self._device.executions, self._device.least)
            load = self._load(before)
        except Exception as error:  # noqa: BLE001  whatever the kernel raises is this candidate's failure
            self.spoiled = not self._device.own
            return Failed(
                Status.RUNTIME, one_line(error), Phases(run=time.perf_counter() - start - checking, check=checking)
            )
        return Ran(tuple(samples), load, Phases(run=time.perf_counter() - start - checking, check=checking))

    def race(self, job: Race) -> Raced | Failed:
        """Samples of several kernels in turns."""
        start = time.perf_counter()
        try:
            calls = [self._call(key) for key in job.keys]
            self._step("run")
            before = read_counters()
            samples = interleaved(calls, job.rounds, job.sample_seconds, self._device.executions, self._device.least)
            load = self._load(before)
        except Exception as error:  # noqa: BLE001  reported as the failure of the race
            self.spoiled = not self._device.own
            return Failed(Status.RUNTIME, one_line(error), Phases(run=time.perf_counter() - start))
        return Raced(tuple(tuple(each) for each in samples), load, time.perf_counter() - start)

    def _load(self, before: Counters) -> Counters:
        spent = read_counters() - before
        # What else uses this machine's cores does not slow down what runs elsewhere.
        return spent if self._device.own else Counters(spent.wall, slowed=self._device.slowed(), clock=self._device.clock())

    def _call(self, key: Key) -> Callable[[], object]:
        self._built.move_to_end(key)
        built = self._built[key]
        alike = [[tensor] for tensor in self._tensors]
        for index, tensors in self._wanted(built.transforms):
            alike[index] = tensors
        turns = [
            [*(tensors[turn % len(tensors)] for tensors in alike), *self._outputs]
            for turn in range(max(map(len, alike), default=1))
        ]
        return self._device.call(built.kernel, turns)

    def _wanted(self, transforms: Mapping[int, PrimFunc]) -> list[tuple[int, list[Any]]]:
        """The constants that are not just an input: transformed, or many alike."""
        return [
            (index, self._constants.get(transforms.get(index), index, self._inputs[index]))
            for index in self.workload.constants
            if index in transforms or self._constants.passing
        ]

    def _check_parameters(self, main: PrimFunc, transforms: Mapping[int, PrimFunc]) -> None:
        specs = [(spec.shape, spec.dtype) for spec in (*self.workload.inputs, *self.workload.outputs)]
        for index, transform in transforms.items():
            if index not in self.workload.constants:
                raise ValueError(f"input {index} is transformed, but it is no constant")
            packed = transform.params[1]
            specs[index] = (shape_of(packed), str(packed.dtype))
        check_arguments(main, specs)

    def _first(self, call: Callable[[], object]) -> float:
        """Seconds of one execution into outputs that hold what no kernel computes: unwritten elements are noticed."""
        for view in self._views:
            fill(view)
        self._device.push(self._outputs, self._views)
        self._step("run")
        seconds = self._device.executions(call, 1)
        self._device.pull(self._outputs, self._views)
        return seconds

    def _check(self, key: Key) -> str:
        """What is wrong with the output, or nothing. No candidate is blamed for what an earlier one did to inputs."""
        self._step("check")
        tolerance = max(self._tolerance, self._built[key].max_error)
        wrong = self._difference(tolerance)
        if wrong and self._restore():
            self._first(self._call(key))
            wrong = self._difference(tolerance)
            if wrong:
                self._restore()
        return wrong

    def _restore(self) -> bool:
        """Puts inputs right that a candidate wrote to, and forgets the transformed ones. False if all were intact."""
        suspicious = self._constants.clear()
        for tensor, array in zip(self._tensors, self._inputs, strict=True):
            if not np.array_equal(tensor.numpy(), array, equal_nan=array.dtype.kind == "f"):
                tensor.copyfrom(array)
                suspicious = True
        return suspicious

    def _difference(self, tolerance: float) -> str:
        lines = [
            difference(spec.name, view, expected, tolerance)
            for spec, view, expected in zip(self.workload.outputs, self._views, self._expected, strict=True)
        ]
        return next(filter(None, lines), "")


def fill(view: Array) -> None:
    """Fills an output with what no reference of small integers holds: elements that stay unwritten are noticed.

    Finite, because NaN and infinity may be what is expected; of both signs, because a maximum or a minimum that is
    taken over what was there would hide one of them.
    """
    if view.dtype.kind != "f":
        view.fill(True if view.dtype.kind == "b" else 0x55)
        return
    sentinel = min(_SENTINEL, 0.7 * float(np.finfo(view.dtype).max))
    view.fill(sentinel)
    view.reshape(-1)[1::2] = -sentinel


def difference(name: str, actual: Array, expected: Array, tolerance: float) -> str:
    """One line about the largest difference; nothing where it is within tolerance * max|expected| (0: equal).

    The maximum is over the finite elements; where NaN or an infinity is expected, it must be there.
    """
    if _close(actual, expected, tolerance):
        return ""
    ours, theirs = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        gap = np.abs(ours - theirs)
    gap[np.isnan(gap)] = np.inf
    gap[(ours == theirs) | (np.isnan(ours) & np.isnan(theirs))] = 0.0
    allowed = tolerance * float(np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0.0))
    if not gap.size or float(gap.max()) <= allowed:
        return ""
    where = np.unravel_index(int(gap.argmax()), gap.shape)
    share = int(np.count_nonzero(gap > allowed))
    position = ", ".join(str(int(index)) for index in where)
    return (
        f"{name}[{position}] is {ours[where]:.6g}, not {theirs[where]:.6g};"
        f" {share} of {gap.size} elements differ by more than {allowed:.3g}"
    )


def _close(actual: Array, expected: Array, tolerance: float) -> bool:
    """Whether all is surely within the tolerance: what most kernels are asked, in a tenth of the time of the rest."""
    if expected.dtype.kind != "f" or not expected.size:
        return False
    with np.errstate(all="ignore"):
        gap, scale = float(np.max(np.abs(actual - expected))), float(np.max(np.abs(expected)))
    return gap <= 0.999 * tolerance * scale < np.inf


class _Constants:
    """Constants as kernels want them, by the structure of their transform: neighbours in a space share their packing.

    Of each there are as many copies as make up `passing` bytes. Taken in turns they come from memory in every
    execution, as in a model whose other weights have passed through the caches since. Small ones are only one: what
    their way from memory takes does not show.
    """

    def __init__(self, passing: int, tensor: Callable[[Array], Any]) -> None:
        self.passing = passing
        self._tensor = tensor
        self._entries: OrderedDict[tuple[int, int | None], list[tuple[PrimFunc | None, list[Any]]]] = OrderedDict()
        self._bytes = 0

    def clear(self) -> bool:
        """Forgets everything; whether there was anything."""
        held = bool(self._entries)
        self._entries.clear()
        self._bytes = 0
        return held

    def get(self, transform: PrimFunc | None, index: int, array: Array) -> list[Any]:
        """The tensors, equal ones, that `transform` makes of `array`, input `index` of the workload."""
        key = (index, None if transform is None else int(tvm_ffi.structural_hash(transform)))
        for known, tensors in self._entries.get(key, ()):
            if known is transform or tvm_ffi.structural_equal(known, transform):
                self._entries.move_to_end(key)
                return tensors
        result = array if transform is None else np.ascontiguousarray(evaluate(transform, [array])[0])
        copies = max(1, -(-self.passing // result.nbytes)) if result.nbytes >= _LARGE else 1
        tensors = [self._tensor(result) for _ in range(copies)]
        self._entries.setdefault(key, []).append((transform, tensors))
        self._entries.move_to_end(key)
        self._bytes += result.nbytes * copies
        while self._bytes > _CONSTANT_BYTES and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._bytes -= sum(len(old) * int(np.prod(old[0].shape)) * old[0].dtype.itemsize for _, old in dropped)
        return tensors
