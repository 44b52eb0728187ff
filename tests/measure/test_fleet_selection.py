"""Which machines are taken, without Ray: leases that answer as they are told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.cpu import Cpu
from stormdrop.measure.fleet import selection as module
from stormdrop.measure.fleet.fleet_machine import versions
from stormdrop.measure.fleet.identity import Calibration, MachineIdentity
from stormdrop.measure.fleet.ray_cluster import Node
from stormdrop.measure.fleet.selection import lease_equal_machines, machine_name

TARGET = Cpu("cpu", "A CPU", "generic", 2, 8, 16, 1 << 15, 1 << 20, 1 << 25)
HERE = MachineIdentity(TARGET, "0a1b")
LARGE = MachineIdentity(dataclasses.replace(TARGET, cpu="B CPU", cores=8), "0a1b")


class Lease:
    """What a machine says of itself, or the errors with which it does not."""

    def __init__(
        self,
        name: str,
        identity: MachineIdentity | str = HERE,
        seconds: float | str = 1.0,
        undisturbed: bool = True,
        **others: str,
    ) -> None:
        self.name, self.released = name, False
        self.identity: Any = None
        self.calibration: Any = None
        self.calibrated = 0.0
        self.width = 1
        described = (identity, 4, {**versions(), **others})
        self.answers = {
            "identify": identity if isinstance(identity, str) else described,
            "calibrate": seconds if isinstance(seconds, str) else Calibration(seconds, undisturbed),
        }

    def begin(self, method: str, *arguments: object) -> str:
        return method

    def answer(self, reference: str, *_: object) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, str):
            raise MeasureError(answer)
        return answer

    def release(self) -> None:
        self.released = True


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leases of these machines; a name without a lease is in use."""

    def taken(*leases: Lease | str, kind: str = "", like: MachineIdentity | None = None) -> Any:
        names = [lease if isinstance(lease, str) else lease.name for lease in leases]
        nodes = [Node(name, name, True, 1, 2.0) for name in names]
        by_name = {lease.name: lease for lease in leases if isinstance(lease, Lease)}
        monkeypatch.setattr(module.ray_cluster, "nodes", lambda: nodes)  # type: ignore[attr-defined]
        monkeypatch.setattr(module, "_lease", lambda node, slot, workshop: by_name.get(node.name))
        found, refused = lease_equal_machines("auto", kind, like, None, 0.0)  # type: ignore[arg-type]
        assert all(lease.released == (lease not in found) for lease in by_name.values()), "what is not taken is free"  # type: ignore[comparison-overlap]
        return [lease.name for lease in found], refused

    return taken


def test_equal_machines_are_taken_and_those_in_use_are_left_alone(take: Any) -> None:
    assert take(Lease("a"), "b", Lease("c", seconds=1.05)) == (["a", "c"], {})


def test_the_kind_is_this_machines_or_the_only_one_or_the_one_that_is_named(take: Any) -> None:
    def machines() -> list[Lease]:
        return [Lease("a"), Lease("b", LARGE), Lease("c", LARGE)]

    assert take(*machines(), like=HERE) == (
        ["a"],
        dict.fromkeys("bc", "it is of another kind: B CPU, 8 cores; asked for is A CPU, 2 cores"),
    )
    assert take(*machines(), kind="b cpu")[0] == take(*machines(), kind="c")[0] == ["b", "c"]
    assert take(Lease("b", LARGE), like=HERE)[0] == ["b"]
    with pytest.raises(TargetError, match=r"several kinds, choose one with --device: a: A CPU, 2 cores; b: B CPU"):
        take(*machines())
    with pytest.raises(
        TargetError, match=r"fleet auto: it has no machine of the kind 'C CPU'; did you mean '[AB] CPU'"
    ):
        take(*machines(), kind="C CPU")


def test_other_features_are_another_kind(take: Any) -> None:
    other = MachineIdentity(TARGET, "ffff")
    taken, refused = take(Lease("a"), Lease("b", other), like=HERE)
    assert taken == ["a"]
    assert refused["b"].endswith("A CPU, 2 cores, but with other features or caches than the one asked for")


def test_machines_that_calibrate_differently_are_refused_by_name(take: Any) -> None:
    taken, refused = take(
        Lease("a"), Lease("b", seconds=1.4, undisturbed=False), Lease("c"), Lease("d", seconds="the kernel fails")
    )
    assert taken == ["a", "c"]
    assert refused == {
        "b": "its calibration kernel takes 1.40 times as long as that of a, and something else uses it",
        "d": "the kernel fails",
    }


def test_other_versions_are_refused_by_name(take: Any) -> None:
    taken, refused = take(Lease("a"), Lease("b", Python="3.1"), Lease("c", "TVM does not load"))
    assert taken == ["a"]
    assert refused["b"] == f"versions differ: Python 3.1 there, {versions()['Python']} here"
    assert refused["c"] == "TVM does not load"


def test_if_no_machine_can_measure_the_reasons_are_told(take: Any) -> None:
    with pytest.raises(TargetError, match=r"^fleet auto: no machine of it can measure: a: gone$"):
        take(Lease("a", "gone"))
    with pytest.raises(TargetError, match=r"no machine of the kind 'A CPU, 2 cores' can measure: a: the kernel fails"):
        take(Lease("a", seconds="the kernel fails"))
    with pytest.raises(TargetError, match="no machine became free within 0 s: all are in use"):
        take("a")
    with pytest.raises(TargetError, match=r"no node of it measures: start those that do with ray start --resources='"):
        take()


def test_a_node_with_several_machines_numbers_them() -> None:
    assert machine_name(Node("id", "rack", True, 1, 2.0), 0) == "rack"
    assert [machine_name(Node("id", "rack", True, 2, 2.0), slot) for slot in range(2)] == ["rack#1", "rack#2"]
