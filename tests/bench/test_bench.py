from __future__ import annotations

import importlib

import pytest
from contenders import Absent, DyingAtOutputs, DyingEarly, Sleeper, contender

from stormdrop import operators
from stormdrop.bench import plan
from stormdrop.bench.peers import model_peers, operator_peers
from stormdrop.errors import InputError, MeasureError

bench = importlib.import_module("stormdrop.bench.bench")  # the attribute of the package is the function


def test_names_of_peers() -> None:
    assert plan.select_peers(["torch"], operator_peers()) == (["torch", "torch-packed"], {})
    of_models = ["onnxruntime", "openvino", "torch", "torch-compiled", "litert"]
    assert plan.select_peers(None, model_peers())[0] == of_models
    assert plan.select_peers(["torch"], model_peers()) == (["torch", "torch-compiled"], {})
    both = ["tensorflow", "tensorflow-xla"]
    assert plan.select_peers(["tensorflow"], operator_peers()) == (both, {})
    assert plan.select_peers(["tensorflow"], model_peers())[1].keys() == {"tensorflow"}
    names, skipped = plan.select_peers(["onnxruntime", "torch-packed"], model_peers())
    assert names == ["onnxruntime"]
    assert skipped["torch-packed"] == "does not run ONNX models"
    with pytest.raises(InputError, match="unknown peer 'torhc'"):
        plan.select_peers(["torhc"], operator_peers())


def test_peers_that_are_not_installed_are_known_before_the_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda package: None if package == "torch" else package)
    monkeypatch.setattr(bench, "plan_operator", lambda *_: pytest.fail("something is tuned"))
    with pytest.raises(InputError, match="torch: not installed: pip install torch; torch-packed"):
        bench.bench(operators.matmul(8, 8, 8), ["torch"])
    assert plan.not_installed(["openvino", "torch-packed"], operator_peers()).keys() == {"torch-packed"}
    monkeypatch.setattr(plan, "find_spec", lambda package: None if package == "litert_torch" else package)
    missing = {"litert": "not installed: pip install litert-torch"}
    assert plan.not_installed(["litert"], model_peers()) == missing


def test_a_bench_reports_ratios_errors_and_skipped_peers() -> None:
    contenders = [
        contender(Sleeper, "stormdrop", seconds=2e-3),
        contender(Sleeper, "slow", seconds=6e-3),
        contender(Sleeper, "wrong", seconds=2e-3, value=1.5),
        contender(Absent, "absent"),
    ]
    planned = plan.Plan("a nap", contenders, None, {"other": "not for naps"}, flops=6e6)
    document = bench._run(planned, 1, 4, {}).to_json()
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
    contenders = [
        contender(Sleeper, "stormdrop"),
        contender(DyingEarly, "early"),
        contender(DyingAtOutputs, "late"),
        contender(Sleeper),
    ]
    document = bench._run(plan.Plan("a nap", contenders, None, {}), 1, 2, {}).to_json()
    assert [standing["name"] for standing in document["contenders"]] == ["stormdrop", "Sleeper"]
    assert document["skipped"].keys() == {"early", "late"}
    assert document["skipped"]["early"] == "early: its process ended (exit code 4): illegal instruction"
    assert "exit code 5" in document["skipped"]["late"]


@pytest.mark.parametrize(("kind", "reason"), [(Absent, "it has no form"), (DyingEarly, "exit code 4")])
def test_without_our_own_kernel_there_is_no_bench(kind: type[Sleeper], reason: str) -> None:
    planned = plan.Plan("a nap", [contender(kind, "stormdrop")], None, {})
    with pytest.raises(MeasureError, match=f"our own kernel cannot run: .*{reason}"):
        bench._run(planned, 1, 4, {})
