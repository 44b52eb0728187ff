"""`tune`: the fastest schedule of one kernel."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..machine import threads
from ..machine.cpu import keeping_denormals
from ..records import Store, open_store
from ..report.traces.announcement import announced
from . import session
from .options import DEFAULT_SEARCH, DEFAULT_SECONDS, TuneOptions
from .request import Reuse
from .result import Progress, TuneResult

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from ..ir.workload import Workload
    from ..machine.contract import Machine
    from ..measure.contract import Measurer, Site
    from ..measure.fleet.fleet import Fleet
    from ..measure.pool.pool import WorkerPool
    from ..sketches.contract import AnySketch


def tune(
    workload: Workload | PrimFunc,
    *,
    target: Machine | None = None,
    search: str = DEFAULT_SEARCH,
    options: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time: float | str | None = None,
    seed: int = 0,
    store: Store | None = None,
    resume: bool = False,
    fresh: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    sketches: Sequence[AnySketch] | str | None = None,
    max_error: float | None = None,
    features: str = "knobs",
    transfer: bool = True,
    measurer: Measurer | None = None,
    pool: WorkerPool | None = None,
    started: float | None = None,
    keep_denormals: bool = False,
    fleet: Fleet | str | None = None,
) -> TuneResult:
    """Searches the schedules of one function and returns the fastest, measured beside the default schedule.

    A finished record of the same problem is the answer if it converged, or if it had at least this budget. The result
    of an insufficient one takes part in the last race. The search begins where those of similar kernels on this
    machine have ended, and where records of this kernel on other machines, and of other shapes of the operator, say.
    Ctrl-C ends the search and returns the best so far with `interrupted` set; everything that was measured is kept.

    Args:
        workload: An operator (`stormdrop.operators`) or any TensorIR function with static shapes.
        target: The machine to tune for; this machine by default.
        search: The name of the search.
        options: Options of the search, by name.
        trials: The most distinct candidates to measure.
        time: The most wall time with everything in it, in seconds or as "3m". Without `trials` and `time` the search
            runs until it converges, 60 seconds at most.
        seed: The seed of everything that is random.
        store: Where records are kept; the user's own database by default.
        resume: Continue the latest unfinished session of the same problem and setting, if there is one.
        fresh: Ignore all records.
        on_progress: Is called with a `Progress` after every batch.
        sketches: Sketches in place of the built-in ones; or "rules" for those that rules derive, or "meta_schedule"
            for TVM's own.
        max_error: How far results may be from the reference because a schedule computes in another way, as Winograd's
            convolutions do: max|difference| / max|reference|, 1e-4 by default. With 0 there are no such schedules.
        features: What cost models see of a schedule: "knobs"; "analytic" features (on a GPU the seven of the AF-DS
            paper: with them `gradient` is Ansor-AF-DS and `evolutionary` Ansor-AF); "both"; or Ansor's 164 per
            statement ("statements").
        transfer: Let records of other machines and shapes say where the search begins (`stormdrop.tuning.transfer`).
        measurer: Measures in place of this machine's workers.
        pool: Worker processes to measure with; they stay open.
        started: When the time began, a reading of `time.perf_counter`; now by default.
        keep_denormals: Compute with numbers below 1.2e-38 (in float32) as IEEE 754 says. By default they count as
            zero, because an operation on one takes some 100 cycles.
        fleet: Machines to measure on in place of this one: a `Fleet`, or the address of a cluster of Ray ("auto",
            "ray://HOST:PORT"), whose machines are leased until the end. The target is then what they are.

    Returns:
        The result. `result.best.kernel` is the compiled kernel.

    Raises:
        InputError: A setting is bad.
        UnsupportedFunction: No sketch takes the function.
        MeasureError: Nothing can be measured.

    Example:
        >>> import stormdrop as sd
        >>> result = sd.tune(sd.operators.matmul(32, 32, 32), trials=4, fresh=True)
        >>> result.trials
        4
    """
    threads.configure()  # before TVM is loaded
    tune_options = TuneOptions.of(
        search=search,
        options=options,
        trials=trials,
        time=time,
        seed=seed,
        resume=resume,
        fresh=fresh,
        max_error=max_error,
        sketches=sketches,
        features=features,
        transfer=transfer,
    )
    if fleet is not None and (target, measurer, pool) != (None, None, None):
        raise InputError("fleet measures in place of this machine: leave target, measurer and pool out")
    from ..measure.fleet.fleet import fleet_for

    name = getattr(workload, "name", "a function")
    with announced(name, tune_options.budget(DEFAULT_SECONDS), trials), fleet_for(fleet) as leased:
        machine = target if leased is None else leased.target
        return tune_with(
            workload,
            keeping_denormals(machine) if keep_denormals else machine,
            tune_options,
            store=store,
            on_progress=on_progress,
            site=_site(leased, measurer, pool),
            started=started,
        )


def tune_with(
    workload: Workload | PrimFunc,
    target: Machine | None,
    options: TuneOptions,
    *,
    store: Store | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    site: Site | None = None,
    started: float | None = None,
) -> TuneResult:
    """`tune` with its options as one value, and with the site where the kernel is measured."""
    begin = clock.perf_counter() if started is None else started
    threads.configure()  # before TVM is loaded
    from .kernel import KernelTask

    task = KernelTask.create(workload, target, options, site=site)
    use_records = not options.fresh
    reuse = Reuse(
        resume=options.resume,
        answer=use_records,
        starts=use_records,
        rival=use_records,
        transfer=use_records and options.transfer,
    )
    seconds = options.budget(DEFAULT_SECONDS)
    request = task.request(seconds, begin, reuse, on_progress, options.trials)

    def make_measurer(fastest: float | None) -> AbstractContextManager[Measurer]:
        task.site.prepare(task.target, seconds)
        return task.measurer(fastest)

    with open_store(None) if store is None else nullcontext(store) as opened:
        return task.result(session.run(request, make_measurer, opened))


def _site(fleet: Fleet | None, measurer: Measurer | None, pool: WorkerPool | None) -> Site | None:
    """The site that the arguments of `tune` name; None if the target says where its kernels are measured."""
    from ..measure.sites import Given, ThisMachine

    if measurer is not None:
        return Given(measurer)
    return fleet if pool is None else ThisMachine(pool)
