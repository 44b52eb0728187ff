"""Contenders taking turns, and what a bench says about them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from stormdrop.bench.turns import Entry, Player, Times, Turn, Unavailable, compete
from stormdrop.errors import InputError, MeasureError
from stormdrop.machine.threads import usable_cores

play = importlib.import_module("stormdrop.bench.bench")  # the package's attribute is the function

HERE = Path(__file__).parent
SHORT = Turn(repeats=3, sample_seconds=1e-3)


class Sleeper:
    """A contender that takes a known time."""

    versions: Mapping[str, str] = {"sleeper": "1"}

    def __init__(self, threads: int, seconds: float = 1e-3, value: float = 1.0) -> None:
        self.settings = {"threads": threads}
        self._seconds, self._value = seconds, value

    def run(self) -> None:
        time.sleep(self._seconds)

    def outputs(self) -> list[Any]:
        print("what a library prints must not disturb us")
        os.write(1, b"nor what it writes in C\n")
        return [np.full((2, 3), self._value, "float32")]


class Spinner(Sleeper):
    """A contender whose thread pool never rests."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self) -> None:
        while True:
            pass


class Burner(Sleeper):
    """A contender that keeps a core busy."""

    def run(self) -> None:
        end = time.perf_counter() + 5e-3
        while time.perf_counter() < end:
            pass


class Absent(Sleeper):
    """A contender that cannot take part."""

    def __init__(self, threads: int) -> None:
        raise Unavailable("it has no form for this")


class NeedsPackage(Sleeper):
    """A contender whose library is missing."""

    def __init__(self, threads: int) -> None:
        import a_package_that_nobody_has  # noqa: F401


class DyingEarly(Sleeper):
    """A contender whose library ends the process while it is prepared."""

    def __init__(self, threads: int) -> None:
        print("illegal instruction", file=sys.stderr, flush=True)
        os._exit(4)


class DyingAtOutputs(Sleeper):
    """A contender that runs, and dies when it is asked for its outputs."""

    def outputs(self) -> list[Any]:
        os._exit(5)


class Dying(Sleeper):
    """A contender that does not survive its third execution."""

    def run(self) -> None:
        self._runs = getattr(self, "_runs", 0) + 1
        if self._runs > 2:
            print("no more", file=sys.stderr, flush=True)
            os._exit(3)


@pytest.fixture(autouse=True)
def _contenders_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))


def entry(kind: type[Sleeper], name: str = "", **arguments: Any) -> Entry:
    return Entry(name or kind.__name__, f"test_bench:{kind.__name__}", arguments)


def test_a_player_times_and_answers() -> None:
    with Player(entry(Sleeper, seconds=5e-3), 2) as player:
        assert player.settings == {"threads": 2}
        assert player.versions == {"sleeper": "1"}
        (output,) = player.outputs()
        samples, _ = player.take_turn(SHORT)
    assert output.shape == (2, 3)
    assert len(samples) == 3
    assert min(samples) >= 5e-3


def test_a_waiting_contender_uses_no_cpu() -> None:
    with Player(entry(Spinner), 1) as player:
        player.take_turn(SHORT)
        time.sleep(0.1)  # the last of its own time is being accounted for
        before = player.cpu_seconds
        time.sleep(0.3)
        assert player.cpu_seconds - before < 0.1  # it would have taken 0.3 s; what it used before may be counted late
        before = player.cpu_seconds
        player.take_turn(SHORT)
        assert player.cpu_seconds > before


def test_why_a_contender_cannot_take_part() -> None:
    with pytest.raises(Unavailable, match="no form for this"):
        Player(entry(Absent), 1)
    with pytest.raises(Unavailable, match="a_package_that_nobody_has is not installed"):
        Player(entry(NeedsPackage), 1)


def test_a_contender_that_dies_is_an_error_and_not_a_wait() -> None:
    with (
        Player(entry(Dying), 1) as player,
        pytest.raises(MeasureError, match=r"Dying: its process ended \(exit code 3\): no more"),
    ):
        player.take_turn(SHORT)


def test_a_contender_that_hangs_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(MeasureError, match="its process ended"):
        Player(entry(Sleeper, seconds=60.0), 1, patience=2.0)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("order", [(2e-3, 6e-3), (6e-3, 2e-3)])
def test_the_order_of_contenders_does_not_matter(order: tuple[float, float]) -> None:
    with Player(entry(Sleeper, seconds=order[0]), 1) as a, Player(entry(Sleeper, seconds=order[1]), 1) as b:
        first, second = compete([a, b], 4, SHORT).rounds
    ratio = np.median(np.array(second) / np.array(first))
    assert 0.8 < ratio / (order[1] / order[0]) < 1.25


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say who waits for a core")
def test_steady_competitors_are_noticed() -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(usable_cores())]
    try:
        while any(psutil.Process(loop.pid).cpu_times().user < 0.1 for loop in loops):
            time.sleep(0.01)  # they are still starting
        with Player(entry(Burner), usable_cores()) as player:
            disturbed = [player.take_turn(Turn(5, 20e-3))[1] for _ in range(6)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert sum(disturbed) >= 4


class Scripted:
    """Stands for a player; its first `rough` turns are disturbed. `log` gets its name at each turn."""

    def __init__(self, name: str = "", rough: int = 0, log: list[str] | None = None) -> None:
        self._name, self._rough, self._log, self.turns = name, rough, log, 0

    def take_turn(self, turn: Turn) -> tuple[list[float], bool]:
        self.turns += 1
        if self._log is not None:
            self._log.append(self._name)
        return [float(self.turns)] * turn.repeats, self.turns <= self._rough


def test_every_round_begins_with_another_contender() -> None:
    log: list[str] = []
    compete([Scripted(name, log=log) for name in "abc"], 4)  # type: ignore[misc]
    assert "".join(log) == "abcbcacababc"


def test_a_disturbed_round_is_played_again() -> None:
    player = Scripted(rough=3)
    assert compete([player], 4) == Times([[4.0, 5.0, 6.0, 7.0]], disturbed=0)  # type: ignore[list-item]


def test_a_machine_that_stays_disturbed_is_reported() -> None:
    player = Scripted(rough=1000)
    times = compete([player], 4)  # type: ignore[list-item]
    assert times.disturbed == 4
    assert player.turns == 8


# ------------------------------------------------------------------------------------------------- the bench


def test_names_of_peers() -> None:
    assert play._names(["torch"], play.OPERATOR_PEERS) == (["torch", "torch-packed"], {})
    assert play._names(None, play.MODEL_PEERS)[0] == ["onnxruntime", "openvino", "torch", "torch-compiled"]
    assert play._names(["torch"], play.MODEL_PEERS) == (["torch", "torch-compiled"], {})
    names, skipped = play._names(["onnxruntime", "torch-packed"], play.MODEL_PEERS)
    assert names == ["onnxruntime"]
    assert "torch-packed does not run ONNX models" in skipped["torch-packed"]
    with pytest.raises(InputError, match="unknown peer 'torhc'"):
        play._names(["torhc"], play.OPERATOR_PEERS)


def test_a_match_reports_ratios_errors_and_who_is_missing() -> None:
    entries = [
        entry(Sleeper, "stormdrop", seconds=2e-3),
        entry(Sleeper, "slow", seconds=6e-3),
        entry(Sleeper, "wrong", seconds=2e-3, value=1.5),
        entry(Absent, "absent"),
    ]
    match = play._Match("a nap", entries, None, {"other": "not for naps"}, flops=6e6)
    document = play._play(match, 1, 4, {}).to_json()
    ours, slow, wrong = document["contenders"]
    assert (document["what"], document["runs"]) == ("a nap", 4)
    assert document["skipped"] == {"other": "not for naps", "absent": "it has no form for this"}
    assert (ours["ratio"], ours["max_error"], ours["agrees"]) == (1.0, 0.0, True)
    assert 2.2 < slow["ratio"] < 3.8
    assert slow["ratio_interval"][0] <= slow["ratio"] <= slow["ratio_interval"][1]
    assert slow["interval"][0] <= slow["seconds"] <= slow["interval"][1]
    assert slow["gflops"] == pytest.approx(6e6 / slow["seconds"] / 1e9)
    assert (wrong["max_error"], wrong["agrees"]) == (0.5, False)


def test_a_peer_that_dies_while_it_is_prepared_is_skipped() -> None:
    entries = [entry(Sleeper, "stormdrop"), entry(DyingEarly, "early"), entry(DyingAtOutputs, "late"), entry(Sleeper)]
    document = play._play(play._Match("a nap", entries, None, {}), 1, 2, {}).to_json()
    assert [each["name"] for each in document["contenders"]] == ["stormdrop", "Sleeper"]
    assert document["skipped"].keys() == {"early", "late"}
    assert document["skipped"]["early"] == "early: its process ended (exit code 4): illegal instruction"
    assert "exit code 5" in document["skipped"]["late"]


@pytest.mark.parametrize(("kind", "said"), [(Absent, "it has no form"), (DyingEarly, "exit code 4")])
def test_without_our_own_kernel_there_is_no_bench(kind: type[Sleeper], said: str) -> None:
    match = play._Match("a nap", [entry(kind, "stormdrop")], None, {})
    with pytest.raises(MeasureError, match=f"our own kernel cannot run: .*{said}"):
        play._play(match, 1, 4, {})
