"""Two hundred random graphs, and the machinery that draws, judges and shrinks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuzz.batch import SECONDS, Judges, rng_of
from fuzz.drawing import Case
from fuzz.graphs import Tally, draw
from fuzz.judge import Judgement, Verdict
from fuzz.reference import Expected
from fuzz.shrink import shrink, size_of, values_of
from ledger import graphs, refuses_too_much
from random_graphs import Batch, described, shrunk


@pytest.mark.compiles
@pytest.mark.timeout(1800)  # a minute on an idle machine
def test_two_hundred_graphs_are_right_and_one_in_a_hundred_may_be_refused(tmp_path: Path) -> None:
    outcomes = [Batch(seed).run(tmp_path) for seed in range(4)]
    assert not [finding for outcome in outcomes for finding in outcome.findings]
    assert sum(len(outcome.notes["refused"]) for outcome in outcomes) <= 2


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("fault", "operator"), [("wrong_padding", "Conv"), ("dropped_bias", "Gemm"), ("swapped_axis", "Transpose")]
)
def test_a_fault_on_purpose_is_found_and_shrunk(fault: str, operator: str) -> None:
    with Judges(f"fuzz.planted:{fault}") as judges:
        for number in range(20):
            graph, _ = judges.draw(f"{fault}/{number}", only=operator)
            found = judges.judge(graph)
            if found is not None and found.verdict is not Verdict.RIGHT:
                break
        else:
            pytest.fail("the fault is not found")
        smaller = shrunk(judges, graph, found)
        again = judges.judge(smaller)
    assert again is not None and again.is_like(found)
    assert [node.op_type for node in smaller.model.graph.node] == [operator], described(smaller)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("fault", "verdict", "seconds"), [("crash", Verdict.CRASH, SECONDS), ("hang", Verdict.HANG, 1.0)]
)
def test_a_crash_or_a_hang_costs_one_graph(fault: str, verdict: Verdict, seconds: float) -> None:
    bad, good = drawn("Softmax"), drawn("Relu", without="Softmax")
    found = []
    with Judges(f"fuzz.planted:{fault}") as judges:
        for case, judges.seconds in ((good, SECONDS), (bad, seconds), (good, SECONDS)):
            found.append(judges.judge(case))
    assert [each and each.verdict for each in found] == [Verdict.RIGHT, verdict, Verdict.RIGHT]


def drawn(operator: str, without: str = "") -> Case:
    """A graph of one node or a few that has an operator."""
    for seed in range(100):
        case = draw(rng_of(seed), only=operator)
        names = {node.op_type for node in case.model.graph.node}
        if len(names) <= 2 and without not in names:
            return case
    raise AssertionError


def test_a_seed_decides_the_graph_and_its_inputs() -> None:
    one, other = (draw(rng_of("5/3")) for _ in range(2))
    assert one.model == other.model
    assert all(np.array_equal(one.feeds[name], other.feeds[name]) for name in one.feeds)
    assert draw(rng_of("5/4")).model != one.model


def test_graphs_are_valid_and_of_many_operators() -> None:
    tally, operators = Tally(), set[str]()
    for seed in range(60):
        case = draw(rng_of(seed), tally)
        operators |= {node.op_type for node in case.model.graph.node}
        onnx.checker.check_model(case.model)
    assert tally.refused <= 0.05 * tally.tried
    assert tally.invalid + tally.unstable <= 0.1 * tally.graphs
    assert len(operators) > 93


def test_what_is_wrong_is_told() -> None:
    case = drawn("Relu")
    expected = Expected(case.model, case.feeds)
    right = expected.outputs
    assert not expected.difference(right)
    name, value = next((name, value) for name, value in right.items() if value.dtype == np.float32)
    for wrong in (value.astype(np.float64), value[..., None], value + np.float32(0.01), np.full_like(value, np.nan)):
        assert name in expected.difference({**right, name: wrong})
    assert name in expected.difference({})


def test_a_graph_is_shrunk_to_what_fails() -> None:
    """What fails is a Softmax over more than one element."""

    def fails(case: Case) -> bool:
        made = [node for node in case.model.graph.node if node.op_type == "Softmax"]
        return any(max(value.shape, default=1) > 1 for value in case.feeds.values()) and bool(made)

    case = max((draw(rng_of(seed), only="Softmax") for seed in range(10)), key=size_of)
    assert fails(case)
    smaller = shrink(case, fails, values_of)
    assert [node.op_type for node in smaller.model.graph.node] == ["Softmax"]
    assert sum(value.size for value in smaller.feeds.values()) == 2


def test_a_hundredth_of_the_graphs_may_be_refused() -> None:
    def line(right: int, *refused: str) -> dict[str, Any]:
        verdicts = {"right": right, "refused": len(refused)}
        return {"notes": {"verdicts": verdicts, "refused": list(refused), "foreign": 2}, "seconds": 1.0}

    few, many = [line(99, "5/3: Loop is refused"), line(100)], [line(98, "5/3: Loop is refused", "5/4: Scan")]
    assert not refuses_too_much(few)
    assert refuses_too_much(many)
    assert (
        graphs(few).splitlines()[0].startswith("200 random graphs in 2 s: right 199, refused 1, unexplained 0, wrong 0")
    )
    assert "refused: 5/3: Loop is refused" in graphs(few)
    assert not graphs([{"notes": {}, "seconds": 1.0}])


def test_like_failures_differ_in_names_and_numbers_only() -> None:
    one = Judgement(Verdict.WRONG, "conv_3: an error of 1.2e-01, allowed is 1.0e-04")
    assert one.is_like(Judgement(Verdict.WRONG, "relu_12: an error of 3.0e+00, allowed is 2.0e-04"))
    assert not one.is_like(Judgement(Verdict.WRONG, "conv_3: 2.0% of int64 differ"))
    assert not one.is_like(Judgement(Verdict.CRASH, one.reason))


def test_what_cancels_is_compared_with_the_exact_value() -> None:
    """Each runtime is some 1e-4 away from x - LRN(x), and a fault is further away."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[1, 3, 1, 2] x) => (float[1, 3, 1, 2] y) '
        "{ n = LRN <size = 3> (x) y = Sub (x, n) }"
    )
    x = np.random.default_rng(0).uniform(0.5, 1, (1, 3, 1, 2)).astype(np.float32)
    expected = Expected(model, {"x": x})
    wide = np.pad(x.astype(np.float64) ** 2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    norm = 1 + 1e-4 / 3 * sum(wide[:, shift : shift + 3] for shift in range(3))
    rounded = x - (x / norm**0.75).astype(np.float32)
    expected.allowed["y"] = 1e-6
    assert not expected.difference({"y": rounded})
    assert "y: an error" in expected.difference({"y": rounded * np.float32(1.01)})
