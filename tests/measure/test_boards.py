"""A rack of boards behind TVM's RPC tracker: three servers on this machine, of which one crashes and one hangs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import psutil
import pytest

from stand_ins.rack import Rack, missing, processes_of
from stormdrop import operators
from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.remote import tracker
from stormdrop.measure import boards as module
from stormdrop.measure.boards import BoardsMeasurer
from stormdrop.measure.contract import KernelSetup, Measurer
from stormdrop.measure.local import Limits, LocalMeasurer
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Measurement, Request, Status
from stormdrop.tuning.kernel import KernelTask
from stormdrop.tuning.options import TuneOptions
from stormdrop.tuning.request import BATCH, Reuse

# Without TVM: the decisions


class Board(Measurer):
    """A place whose answers are given: a status by candidate, or the error of a board that is gone."""

    def __init__(self, answers: dict[int, Status] | None = None, gone_after: int = 10**6, seconds: float = 0.0) -> None:
        self.answers, self.left, self.seconds = answers or {}, gone_after, seconds
        self.asked: list[int] = []

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for request in requests:
            (point,) = request.candidate.point
            if self.left == 0:
                raise MeasureError("the workers die before they run a kernel")
            self.left -= 1
            self.asked.append(point)
            time.sleep(self.seconds)
            status = self.answers.get(point, Status.OK)
            yield Measurement(status, (1.0 + point,) if status is Status.OK else (), "" if status is Status.OK else "?")

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        return [next(self.measure([Request(candidate, rounds)])) for candidate in candidates]

    def close(self) -> None: ...


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many boards the tracker has free, as its only element."""
    count = [3]
    monkeypatch.setattr(module, "boards", lambda rack: tracker.Boards(3, count[0]))
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.3)
    return count


def rack_of(*places: Board) -> BoardsMeasurer:
    return BoardsMeasurer("key@host:1", places, threading.Event())


def requests(count: int) -> list[Request]:
    return [Request(Candidate("sketch", (point,)), 1) for point in range(count)]


def test_all_boards_work_and_answers_come_in_order(free: list[int]) -> None:
    places = [Board(seconds=0.01), Board(seconds=0.01), Board(seconds=0.05)]
    with rack_of(*places) as measurer:
        found = [measurement.seconds for measurement in measurer.measure(requests(20))]
    assert found == [(1.0 + point,) for point in range(20)]
    assert sorted(point for place in places for point in place.asked) == list(range(20)), "each is measured once"
    assert all(place.asked for place in places)
    assert len(places[2].asked) < len(places[0].asked), "nobody waits for the slow one"


def test_a_board_that_dies_is_given_up_and_loses_no_candidate(
    free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with rack_of(Board(gone_after=2, seconds=0.01), Board(seconds=0.01)) as measurer:
        found = list(measurer.measure(requests(12)))
        assert all(measurement.ok for measurement in found)
        assert measurer.conditions() == {"boards": 2, "boards_lost": 1}
        assert [each.ok for each in measurer.race([Candidate("sketch", (1,))], 2)] == [True]
    assert [record.message for record in caplog.records] == [
        "board 1 of key@host:1 is given up: MeasureError: the workers die before they run a kernel"
    ]


def test_only_what_fails_on_two_boards_has_failed(free: list[int]) -> None:
    bad = {5: Status.RUN_TIMEOUT}
    flaky = Board({**bad, 3: Status.RUNTIME, 4: Status.WRONG_ANSWER}, seconds=0.01)
    with rack_of(flaky, Board(bad, seconds=0.01)) as measurer:
        found = [measurement.status for measurement in measurer.measure(requests(8))]
    expected = [Status.OK] * 8
    expected[5] = Status.RUN_TIMEOUT
    if 4 in flaky.asked:  # an answer is no matter of the board
        expected[4] = Status.WRONG_ANSWER
    assert found == expected


def test_a_board_that_fails_what_works_elsewhere_is_given_up(free: list[int]) -> None:
    broken = Board(dict.fromkeys(range(40), Status.RUNTIME))
    with rack_of(broken, Board(seconds=0.01)) as measurer:
        assert all(measurement.ok for measurement in measurer.measure(requests(40)))
        assert measurer.conditions()["boards_lost"] == 1
    assert len(broken.asked) < 10


def test_a_place_without_a_board_is_given_up_and_no_rack_is_left_in_the_end(free: list[int]) -> None:
    free[0] = 0
    with rack_of(Board({0: Status.RUNTIME, 1: Status.RUNTIME})) as measurer:
        assert [measurement.status for measurement in measurer.measure(requests(1))] == [Status.RUNTIME]
        with pytest.raises(MeasureError, match="no board of key@host:1 is left: its board does not come back"):
            list(measurer.measure(requests(2)))
        with pytest.raises(MeasureError, match="no board of key@host:1 is left"):
            measurer.race([Candidate("sketch", (0,))], 1)


def test_measuring_may_be_stopped_before_the_end(free: list[int]) -> None:
    places = [Board(seconds=0.02), Board(seconds=0.02)]
    with rack_of(*places) as measurer:
        measurements = measurer.measure(requests(500))
        assert next(measurements).ok
        measurements.close()  # type: ignore[attr-defined]
        assert sum(len(place.asked) for place in places) < 100
        assert next(iter(measurer.measure(requests(1)))).ok


def test_a_board_that_one_kernel_gave_up_is_not_tried_by_the_next(free: list[int]) -> None:
    lost: dict[int, str] = {}
    for gone in (Board(gone_after=0), Board()):
        with BoardsMeasurer("key@host:1", [gone, Board(seconds=0.01)], threading.Event(), lost) as measurer:
            assert all(measurement.ok for measurement in measurer.measure(requests(4)))
            assert measurer.conditions() == {"boards": 2, "boards_lost": 1}
        assert gone.asked == []
    assert lost == {0: "MeasureError: the workers die before they run a kernel"}


def test_addresses() -> None:
    rack = tracker.address("10.0.0.1:9190", "rasp4")
    assert tracker.is_rack(rack)
    assert not tracker.is_rack("10.0.0.1:9190")
    assert Cpu.detect().with_runner(rack).machine.endswith(f"at {rack}, {Cpu.detect().cores} cores")
    for place, key in (("9190", "rasp4"), ("host:x", "rasp4"), ("host:1", ""), ("host:1", "a@b")):
        with pytest.raises(TargetError):
            tracker.address(place, key)


def test_a_tracker_that_is_gone_or_no_tracker_is_one_line() -> None:
    with pytest.raises(TargetError, match=r"tracker 127.0.0.1:1: no TVM RPC tracker answers: ConnectionRefusedError"):
        tracker.boards("rasp4@127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        thread.start()
        with pytest.raises(TargetError, match="what answers is no tracker"):
            tracker.boards(f"rasp4@127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_a_batch_has_a_candidate_for_each_board_of_a_wide_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "boards", lambda rack: tracker.Boards(known=20, free=20))
    target = Cpu.detect().with_runner("rasp4@127.0.0.1:9190")
    options = TuneOptions(search="random")
    task = KernelTask.create(operators.matmul(64, 96, 64), target, options, runner_asked=True)
    request = task.request(None, 0.0, Reuse())
    assert (request.batch, request.ahead) == (20, True)
    monkeypatch.setattr(tracker, "boards", lambda rack: tracker.Boards(known=3, free=1))
    assert task.request(None, 0.0, Reuse()).batch == BATCH


# With TVM's tracker and three servers


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    if reason := missing():
        pytest.skip(f"no rack can be started: {reason}")
    with Rack(3) as started:
        yield started


@pytest.mark.compiles
@pytest.mark.timeout(600)  # most of it waits for what does not come back
def test_one_of_three_boards_crashes_and_one_hangs(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 3.0)
    with pytest.raises(TargetError, match="has no board of the key 'bord'; did you mean 'board'"):
        tracker.boards(tracker.address(rack.tracker, "bord"))
    assert tracker.wait_for_boards(rack.address) == 3
    target = Cpu.detect().with_runner(rack.address)
    workload, rng = operators.matmul(64, 96, 64), np.random.default_rng(0)
    ((sketch, space),) = sketches_for(workload, target)
    points = list(dict.fromkeys(space.sample(rng) for _ in range(18)))
    stop = threading.Event()

    def place() -> LocalMeasurer:
        return LocalMeasurer(
            KernelSetup(workload, target, [(sketch, space)]),
            workers=1,
            stop=stop,
            elsewhere=True,
            limits=Limits(run_seconds=4.0),
        )

    crashing, hanging, _ = rack.servers
    with BoardsMeasurer(rack.address, [place() for _ in range(3)], stop) as measurer:
        measurements = measurer.measure([Request(Candidate(space.name, point), 1) for point in points])
        found = [next(measurements) for _ in range(3)]
        assert tracker.boards(rack.address).free < 3
        for process in processes_of(hanging):
            with suppress(psutil.NoSuchProcess):  # what serves one connection ends with it
                process.suspend()
        for process in processes_of(crashing):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        found += measurements
        assert [measurement.error for measurement in found if not measurement.ok] == []
        assert len(found) == len(points)
        assert measurer.conditions() == {"boards": 3, "boards_lost": 2}
        assert all(each.ok for each in measurer.race([Candidate(space.name, point) for point in points[:2]], 2))
    assert sum("is given up" in record.message for record in caplog.records) == 2
    with caplog.at_level(logging.WARNING):
        rack.wait_until(lambda: rack.free == 1)  # the lent one came back
        held = tracker.connect(rack.address)
        with pytest.raises(TargetError, match=r"no board of .* became free within 1 s: all 2 are in use"):
            tracker.wait_for_boards(rack.address, seconds=1)
        del held
    assert "waiting for a board: all 2 of" in caplog.text
