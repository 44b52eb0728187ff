"""Our results in a database of MetaSchedule, which MetaSchedule itself finds and applies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

import stormdrop as sd
from stormdrop.integrations.meta_schedule_database import export_records
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.contract import Measurer
from stormdrop.trial import Candidate, Measurement, Request, Status

TUNED, OTHER = sd.operators.matmul(24, 16, 32), sd.operators.matmul(24, 16, 40)


class MadeUp(Measurer):
    """Times that are made up, so that nothing is compiled."""

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            yield Measurement(Status.OK, (1e-3 / (1 + sum(request.candidate.point)),) * request.repeats)

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return list(self.measure([Request(candidate, rounds) for candidate in candidates]))

    def close(self) -> None:
        pass


def test_meta_schedule_finds_and_applies_what_was_exported() -> None:
    mod = tvm.IRModule({"multiply": TUNED.function, "other": OTHER.function})
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    database = ms.database.MemoryDatabase()
    with sd.open_store("sqlite://") as store:
        assert export_records(mod, store, database) == []  # nothing was tuned yet
        # Grid search: its first point is an origin, which MetaSchedule itself has drawn, so it can be scheduled.
        result = sd.tune(
            TUNED,
            trials=2,
            search="grid",
            sketches="meta_schedule",
            store=store,
            measurer=MadeUp(),
            target=Cpu.detect(),
        )
        assert result.best is not None
        assert export_records(mod, store, database, tvm_target=target) == ["multiply"]
    assert len(database) == 1
    main = tvm.IRModule({"main": TUNED.function.with_attr("global_symbol", "main")})
    schedule = database.query_schedule(main, target, "main")
    assert schedule is not None
    record = database.query_tuning_record(main, target, "main")
    assert float(record.run_secs[0]) == result.best.seconds
    assert schedule.mod["main"].script() != main["main"].script()
    other = tvm.IRModule({"main": OTHER.function.with_attr("global_symbol", "main")})
    assert database.query_schedule(other, target, "main") is None


def test_a_function_that_was_brought_into_normal_form_is_left_out() -> None:
    a, b = te.placeholder((24, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), name="k")
    twice = te.compute((24, 16), lambda i, j: a[i, j] * 2.0, name="twice")
    product = te.compute((24, 32), lambda i, j: te.sum(twice[i, k] * b[k, j], axis=k), name="product")
    function = te.create_prim_func([a, b, product])
    database = ms.database.MemoryDatabase()
    with sd.open_store("sqlite://") as store:
        sd.tune(function, trials=2, search="grid", sketches="meta_schedule", store=store, measurer=MadeUp())
        assert export_records(tvm.IRModule({"product": function}), store, database) == []
    assert len(database) == 0
