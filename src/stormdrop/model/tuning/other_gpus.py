"""Schedules that tunings on other GPUs have found, for kernels of a GPU on which they have not been tuned.

records of the same function, those of the nearest GPU first
-> within the space of this GPU -> not hopeless by the model of time -> compiled without spilling

On recorded spaces of four NVIDIA GPUs the winner of another one beats the choice of the model of time nearly always,
though the model expects the winner to take up to 2.3 times as long (docs/explanation/gpu.md, "Records of other GPUs").
So a winner gives way to the default only if the model expects much more of it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ...codegen.cuda import cuda_source, resources_of
from ...errors import MeasureError, SpaceError, StoreError, one_line
from ...machine.contract import CUDA
from ...machine.gpu import Gpu, lacks_compiler
from ...machine.similar_gpus import unlikeness
from ...records import Filter, State, Store, StoredSession, Summary
from ...sketches.knowledge import prior
from ...trial import Candidate
from ...tuning.kernel import KernelTask
from ..building.tuned_task import Borrowed, Choice

_logger = logging.getLogger(__name__)

_TRUST = 3.0
"""A winner is taken that the model of time expects to take at most this many times as long as the default."""

_MOST = 3  # different schedules of a kernel that are tried


def borrowed_schedules(kernels: Mapping[int, KernelTask], gpu: Gpu, store: Store) -> dict[int, Borrowed]:
    """The schedules of other GPUs for kernels; none for one of which there are no records that fit.

    Args:
        kernels: The kernels, for `gpu`, by any number.
        gpu: The GPU that they are for, an NVIDIA one. Records of this very GPU count, too.
        store: The records.

    Raises:
        StoreError: The database fails.
    """
    left = {index: _offers(kernel, gpu, store) for index, kernel in kernels.items()}
    found: dict[int, Borrowed] = {}
    while left := {index: offers for index, offers in left.items() if offers and index not in found}:
        works = _work([(kernels[index], offers[0].choice) for index, offers in left.items()], gpu)
        found |= {index: offers[0] for (index, offers), good in zip(left.items(), works, strict=True) if good}
        left = {index: offers[1:] for index, offers in left.items()}
    return found


def _offers(kernel: KernelTask, gpu: Gpu, store: Store) -> list[Borrowed]:
    """What the records have for a kernel, that of the nearest GPU first, and of one GPU the newest."""

    def distance(summary: Summary) -> tuple[bool, float]:
        return unlikeness(gpu.kind, gpu, summary.target, summary.machine)

    finished = store.sessions(Filter(workload_key=kernel.workload.key, state=State.FINISHED))
    offers: list[Borrowed] = []
    for summary in sorted((each for each in finished if each.target.startswith(CUDA)), key=distance):
        with suppress(StoreError, SpaceError):  # it was deleted since; or the schedule exceeds the limits of this GPU
            choice = _winner(store.session(summary.id), kernel)
            if choice is None:
                continue
            is_new = all(choice != offer.choice for offer in offers)
            if is_new and (distance(summary)[1] == 0 or _is_promising(kernel, gpu, choice)):
                offers.append(Borrowed(choice, summary.machine))
        if len(offers) == _MOST:
            break
    return offers


def _winner(session: StoredSession, kernel: KernelTask) -> Choice | None:
    """What a session has found, as a schedule of a kernel; None if it is of no use for it.

    It is of no use if it was measured beside other load and did not race. Nor is it if the default's sketch was no
    choice there: the winner of a GPU without tensor cores says nothing where the default uses them.

    Raises:
        SpaceError: The kernel's space has no such schedule.
    """
    outcome, spaces = session.outcome, {space.name: space for _, space in kernel.sketches}
    had_default = kernel.sketches[0][1].name in session.setting.sketches
    if session.problem.workload_text != kernel.workload.text or not had_default or outcome is None:
        return None
    if outcome.sketch not in spaces or outcome.config is None:
        return None
    if outcome.extra.get("disturbed") and outcome.baseline_seconds is None:
        return None  # something else used the machine, and no race was there to see through it
    space = spaces[outcome.sketch]
    return space.name, space.config(space.point(outcome.config))


def _is_promising(kernel: KernelTask, gpu: Gpu, choice: Choice) -> bool:
    """Whether the model of time does not speak against a schedule. It knows nothing of sketches of plug-ins."""
    expected = prior(kernel.sketches, kernel.workload, gpu)
    if expected is None:
        return True
    (name, config), spaces = choice, {space.name: space for _, space in kernel.sketches}
    default = kernel.sketches[0][1]
    winner = Candidate(name, spaces[name].point(config))
    borrowed, own = expected([winner, Candidate(default.name, default.origin)])
    return not borrowed > _TRUST * own


def _work(schedules: Sequence[tuple[KernelTask, Choice]], gpu: Gpu) -> list[bool]:
    """Whether each schedule compiles, and `ptxas` spills none of its registers. Without `nvcc` all are taken to."""
    if shutil.which("nvcc") is None or lacks_compiler(gpu.arch):
        return [True] * len(schedules)
    sources = [_source(kernel, choice, gpu) for kernel, choice in schedules]
    spilling = iter(_spill([source for source in sources if source is not None], gpu))
    return [source is not None and not next(spilling) for source in sources]


def _source(kernel: KernelTask, choice: Choice, gpu: Gpu) -> str | None:
    """The CUDA source of a schedule; None if TVM cannot make it."""
    name, config = choice
    sketch = next(sketch for sketch, space in kernel.sketches if space.name == name)
    try:
        return cuda_source(sketch.apply(kernel.workload, gpu, config).main, gpu)
    except Exception as error:  # noqa: BLE001  whatever TVM raises: it is a schedule that this GPU cannot have
        _logger.info("%s: its schedule of another GPU cannot be lowered: %s", kernel.workload.name, one_line(error))
        return None


def _spill(sources: Sequence[str], gpu: Gpu) -> list[bool]:
    """Whether a kernel of each source spills, or does not compile."""
    try:
        return [any(kernel.spilled for kernel in kernels) for kernels in resources_of(sources, gpu)]
    except MeasureError as error:
        if len(sources) == 1:
            _logger.info("the schedule of another GPU does not compile: %s", one_line(error))
            return [True]
        half = len(sources) // 2
        return [*_spill(sources[:half], gpu), *_spill(sources[half:], gpu)]
