"""The headline of a tuned model or kernel: it compares, or says in the same line why it does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stormdrop.report.headline import headline, kernel_headline, kernels_left, never_tuned


def document(speedup: list[float] | None, *, disturbed: bool = False, **others: Any) -> dict[str, Any]:
    latency = {"seconds": 1.07e-3, "interval": [1.06e-3, 1.15e-3], "disturbed": disturbed}
    return {"latency": latency, "speedup": speedup, "interrupted": False, "peer": None, **others}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (document([2.9, 2.75, 3.1]), "1.07 ms, 2.90 times as fast as untuned (2.75 to 3.10)"),
        (
            document([2.4, 2.1, 2.8], disturbed=True),
            "1.07 ms, 2.10 to 2.80 times as fast as untuned, measured beside other load",
        ),
        (
            document([1.0, 0.98, 1.03]),
            "1.07 ms, not significantly faster or slower than untuned (0.98 to 1.03 times as fast)",
        ),
        (
            document([0.9, 0.85, 0.95]),
            "1.07 ms, slower than untuned (0.85 to 0.95 times as fast); more time may mend it",
        ),
        (document(None), "1.07 ms; the untuned model was not timed"),
        (
            document(None, disturbed=True, not_compared="no time was left"),
            "1.07 ms, measured beside other load; the untuned model was not timed, because no time was left",
        ),
        (
            document([math.nan] * 3, peer={"name": "onnxruntime", "seconds": 2e-3}),
            "1.07 ms; the untuned model was not timed; onnxruntime took 2 ms",
        ),
    ],
)
def test_a_headline_compares_or_says_why_not(given: dict[str, Any], said: str) -> None:
    assert headline(given) == said


def of_kernel(speedup: list[float] | None, **others: Any) -> dict[str, Any]:
    best, baseline = {"seconds": 2.34e-5, "speedup": speedup}, {"seconds": 6.8e-5, "failed": False}
    return {"best": best, "baseline": baseline, "compared": speedup, "kept_default": False, "trials": 9, **others}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (of_kernel([2.9, 2.75, 3.1]), "23.4 us, 2.90 times as fast as the default schedule (2.75 to 3.10)"),
        (
            of_kernel(None, disturbed=True, compared=[2.4, 2.1, 2.8]),
            "23.4 us, 2.10 to 2.80 times as fast as the default schedule, measured beside other load",
        ),
        (
            of_kernel(None, compared=[2.4, 0.8, 9.0]),
            "23.4 us, faster than the default schedule beyond doubt, but its rounds do not say by how much "
            "(0.80 to 9.00 times as fast)",
        ),
        (
            of_kernel(None, kept_default=True),
            "23.4 us with the default schedule: nothing that was tried is significantly faster",
        ),
        (
            of_kernel(None, kept_default=True, disturbed=True),
            "23.4 us with the default schedule: nothing that was tried is significantly faster, "
            "measured beside other load",
        ),
        (
            of_kernel(None, baseline={"seconds": None, "failed": True}),
            "23.4 us; there is nothing to compare it with, because the default schedule does not work",
        ),
        (
            of_kernel(None, baseline={"seconds": None, "failed": False}),
            "23.4 us; the default schedule was not timed beside it, because no time was left for it, or one of the two "
            "failed",
        ),
        (
            of_kernel(None, baseline={"seconds": None}, interrupted=True, kept_default=True),
            "23.4 us with the default schedule; no other schedule was timed beside it, because the search was "
            "interrupted",
        ),
        (
            of_kernel(None, baseline={"seconds": None}, disturbed=True),
            "23.4 us; the default schedule was not timed beside it, because something else had the machine",
        ),
        ({**of_kernel(None), "best": None}, "no candidate worked"),
        ({**of_kernel(None), "best": None, "trials": 0}, "nothing was measured"),
    ],
)
def test_a_kernel_is_compared_with_its_default_or_the_headline_says_why_not(given: dict[str, Any], said: str) -> None:
    assert kernel_headline(given) == said


def test_records_of_earlier_versions_do_not_say_what_was_compared() -> None:
    older = {"best": {"seconds": 2e-5, "speedup": None}, "baseline": {"seconds": 2.1e-5}, "trials": 9}
    assert kernel_headline(older) == "20 us; the default schedule took 21 us"


def test_a_latency_that_is_not_known_is_not_invented() -> None:
    for unknown in (None, math.nan):
        nothing = {**document(None), "latency": {"seconds": unknown, "interval": [unknown] * 2}}
        assert headline(nothing) == "the latency is not known, because its timing was interrupted"


def test_the_costliest_kernels_that_were_left_are_named_first() -> None:
    reason = "no trials left: default schedule"
    kernels = [(f"conv{number}", number * 1e-4, reason) for number in range(1, 6)]
    tasks = [{"name": name, "untuned": seconds, "reason": why} for name, seconds, why in kernels]
    tasks += [{"name": "dense", "untuned": 5e-4, "reason": None}, {"name": "pad", "untuned": None, "reason": reason}]
    assert never_tuned({"tasks": tasks}) == (
        "no trials were left for 6 of 7 kernels: conv5 (25% of the untuned time), conv4 (20%), conv3 (15%), and 3 more"
    )
    assert never_tuned({"tasks": [{**tasks[0], "reason": "no sketch takes it"}]}) is None
    assert never_tuned({"tasks": [{**tasks[0], "seconds": 1e-5}]}) is None  # an earlier run has tuned it


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["interrupted before its turn"], "the interruption left 1 of 2 kernels untuned"),
        (
            ["no time left", "interrupted before a candidate was measured"],
            "the interruption left 2 of 3 kernels untuned",
        ),
        (["no time left", "no trials left"], "no trials were left for 2 of 3 kernels"),
        (["the machine (lock file x) was not free in time: y"], "nothing was measured of 1 of 2 kernels"),
    ],
)
def test_kernels_that_were_never_tuned_are_named_whatever_the_reason(reasons: list[str], said: str) -> None:
    left = [{"name": f"k{number}", "reason": f"{why}: default schedule"} for number, why in enumerate(reasons)]
    document = {"tasks": [{"name": "tuned", "seconds": 1e-4, "reason": None}, *left]}
    assert [task["name"] for task in kernels_left(document)] == [task["name"] for task in left]
    assert never_tuned(document) == f"{said}: {', '.join(str(task['name']) for task in left)}"


def test_kernels_are_named_by_their_layers() -> None:
    task = {"name": "fused_conv2d", "untuned": None, "reason": "no time left: default schedule"}
    tasks = [{**task, "layers": ["features.4.conv", "features.4.relu"]}, {**task, "layers": []}]
    assert never_tuned({"tasks": tasks}) == "no time was left for 2 of 2 kernels: features.4: conv, relu, fused_conv2d"
