"""A kernel that is tuned: its workload, its machine, the sketches that apply, and how they are measured."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING

from tvm.tirx import PrimFunc

from ..codegen.compile import GENERATION
from ..errors import InputError, UnsupportedFunction, quoted
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.cpu import Cpu
from ..machine.limits.passing import Passing
from ..measure.contract import KernelSetup, Measurer, Site
from ..measure.sites import site_of
from ..records import Config, Problem, Store, StoredSession
from ..records.contract import CONDITIONS
from ..search import Knowledge, Network
from ..search.contract import ALONE
from ..sketches import knowledge, registry
from .options import TuneOptions
from .request import CODE_GENERATION, Reuse, TuningRequest
from .result import Progress, SearchResult, TuneResult
from .reuse import MODEL, Answered, answered_result, finished_here, resolve, sufficient
from .session import Session

if TYPE_CHECKING:
    from ..sketches.contract import AnySketch
    from ..space import Space


@dataclass(frozen=True)
class PartOf:
    """The model that a kernel belongs to.

    Attributes:
        name: The name of the model.
        calls: How often an execution of the model calls the kernel.
        kernels: How many kernels of the model are tuned together with this one, itself included.
        layers: The names of the layers of the model that the kernel computes.
    """

    name: str
    calls: int
    kernels: int = 1
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelTask:
    """A workload with the sketches that apply to it, and their spaces.

    Attributes:
        workload: The function to tune.
        target: The machine to tune it for.
        options: How it is tuned.
        sketches: The sketches that apply, with their spaces.
        passing: What passes through the caches between two executions, as in a model with other kernels; None if
            nothing does. Records are kept by where its constants then come from.
        site: Where it is measured.
        part_of: The model that it is a kernel of; the records keep it for people.
        network: What its search may know of the neural network that it is a kernel of.
    """

    workload: Workload
    target: Machine
    options: TuneOptions
    sketches: Sequence[tuple[AnySketch, Space]]
    site: Site
    passing: Passing | None = None
    part_of: PartOf | None = None
    network: Network = ALONE

    @classmethod
    def create(
        cls,
        workload: Workload | PrimFunc,
        target: Machine | None,
        options: TuneOptions,
        *,
        passing: Passing | None = None,
        site: Site | None = None,
        runner_asked: bool = False,
    ) -> KernelTask:
        """The task for a workload or a TensorIR function.

        Args:
            workload: The function to tune.
            target: The machine to tune it for; this one by default.
            options: How it is tuned.
            passing: See `KernelTask`.
            site: Where it is measured. By default the target says so, whose runner is then asked for its cores.
            runner_asked: Whether the runner has been asked already.

        Raises:
            InputError: The workload is none, the source of sketches is unknown, or the site measures no kernels of the
                target.
            UnsupportedFunction: No sketch applies to the function.
            TargetError: The target has a runner, and it does not answer.
        """
        if not isinstance(workload, Workload):
            if not isinstance(workload, PrimFunc):
                raise InputError(
                    f"{quoted(workload)} is no workload: give a TensorIR function, or an operator such as "
                    f"stormdrop.operators.matmul(64, 64, 64)"
                )
            workload = Workload.create("function", workload)
        machine = target or Cpu.detect()
        if site is not None:
            site.check(machine)
        elif not runner_asked and isinstance(machine, Cpu):
            machine = machine.of_runner()  # a pool's worker may hold the runner's only connection
        max_error = registry.MAX_ERROR if options.max_error is None else options.max_error
        sketches = registry.sketches_for(workload, machine, options.sketches, max_error)
        if not sketches:
            raise UnsupportedFunction(f"{workload.name}: no sketch applies to this function")
        return cls(workload, machine, options, sketches, site or site_of(machine), passing)

    def request(
        self,
        seconds: float | None,
        begin: float,
        reuse: Reuse,
        on_progress: Callable[[Progress], None] | None = None,
        trials: int | None = None,
        width: int | None = None,
    ) -> TuningRequest:
        """The request to tune it. See `TuningRequest.create` for the arguments; `width` is the site's by default."""
        workload, target, options = self.workload, self.target, self.options
        versions = {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")}
        features = knowledge.features(self.sketches, workload, target, options.features, self.network.kernels)
        return TuningRequest.create(
            self.problem,
            [space for _, space in self.sketches],
            options,
            trials=trials,
            seconds=seconds,
            begin=begin,
            versions={**versions, **target.conditions, CODE_GENERATION: str(GENERATION)},
            reuse=reuse,
            on_progress=on_progress,
            layers=() if self.part_of is None else self.part_of.layers,
            width=self.site.width if width is None else width,
            knowledge=Knowledge(
                features=features,
                prior=knowledge.prior(self.sketches, workload, target),
                favoured=knowledge.favoured(target),
                unit=knowledge.unit(target),
                network=self.network,
            ),
            method={
                **({} if features is None else {"features": options.features}),
                **({} if self.part_of is None else {MODEL: asdict(self.part_of)}),
            },
        )

    @property
    def problem(self) -> Problem:
        """What the records know it by."""
        workload, target = self.workload, self.target
        machine = f"{target.machine}{self._source_of_constants()}"
        return Problem(workload.key, workload.text, workload.name, target.kind, machine)

    def recorded(self, store: Store) -> list[StoredSession]:
        """The sessions of it that have ended on this machine, newest first, whatever they are worth."""
        return finished_here(store, self.problem)

    def answered(
        self,
        store: Store,
        trials: int | None,
        seconds: float | None,
        disturbed: bool = False,
        recorded: Sequence[StoredSession] | None = None,
    ) -> TuneResult | None:
        """The result that the records have for it as a kernel of a model; None if it has to be measured.

        Args:
            store: The records.
            trials: The candidates that it can count on; with 0 any finished session of the same spaces will do.
            seconds: The wall seconds that it can count on.
            disturbed: Whether a session whose last race was disturbed will do, if there is no other one.
            recorded: What `recorded` has given; by default the store is asked.
        """
        finished = self.recorded(store) if recorded is None else recorded
        answers = sufficient(store, finished, trials, seconds, True, disturbed)
        first = next(answers, None)
        if first is None:
            return None  # without fingerprints of its spaces, which take longest
        reuse = Reuse(resume=self.options.resume, disturbed=disturbed, shared=True, starts=False, rival=False)
        request = self.request(seconds, clock.perf_counter(), reuse, trials=trials, width=1)
        decision = resolve(request, store, chain([first], answers))
        return self.result(answered_result(request, store, decision)) if isinstance(decision, Answered) else None

    def session(
        self,
        store: Store,
        hints: Sequence[tuple[str, Config]] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Session:
        """A paused session without bounds of its own: its holder says when it searches and when it is finished.

        No record answers it (`answered` does that), but its search begins where similar ones have ended.

        Args:
            store: Keeps its trials.
            hints: Where related kernels have ended, (sketch, configuration).
            on_progress: Is called with the progress after every batch.
        """
        use_records = not self.options.fresh
        reuse = Reuse(
            resume=self.options.resume,
            answer=False,
            starts=use_records,
            rival=use_records,
            hints=hints,
            transfer=use_records and self.options.transfer,
        )
        request = self.request(math.inf, clock.perf_counter(), reuse, on_progress)
        decision = resolve(request, store)
        assert not isinstance(decision, Answered)
        session = Session(request, self.measurer, store, decision)
        session.pause()
        return session

    def _source_of_constants(self) -> str:
        """Where constants come from in every execution, as records name it; empty if they stay in caches."""
        if self.passing is None:
            return ""
        return f"{CONDITIONS}{self.passing.place}, inputs and outputs from the last cache"

    def measurer(self, fastest: float | None) -> AbstractContextManager[Measurer]:
        """A measurer for its session.

        Args:
            fastest: The lowest median so far in seconds, if a session is resumed.
        """
        setup = KernelSetup(self.workload, self.target, self.sketches, self.options.seed, self.passing, fastest)
        return self.site.measurer(setup)

    def result(self, searched: SearchResult) -> TuneResult:
        """The result of a search on its spaces as the result of a kernel."""
        sketches = {space.name: sketch for sketch, space in self.sketches}
        return TuneResult.of(searched, self.workload, self.target, sketches)
