"""What Jupyter shows of a result: a table and a plot, with every text escaped."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from report_documents import HOSTILE, bench, searched, tuning
from test_model_page import Elements

from stormdrop.report.layer_label import layer_label
from stormdrop.report.notebook import bench_html, compiled_html, kernel_html, model_html


def shown(html: str) -> Elements:
    elements = Elements(html)
    assert not {"script", "img"} & {tag for tag, _ in elements.found}
    assert HOSTILE in elements.text
    names = [each["id"] for _, each in elements.found if "id" in each]
    assert len(set(names)) == len(names)
    return elements


def kernel_document() -> dict[str, Any]:
    return {"op": HOSTILE, "search": "storm", **searched()}


def test_a_kernel() -> None:
    text = shown(kernel_html(kernel_document())).text
    assert "18 µs to 22 µs" in text
    assert "1.50 times as fast as the default schedule (1.40 to 1.60)" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"converged": True}, "3.0 s, converged"),
        ({"end": "finished"}, "3.0 s, ended at a limit of its own"),
        ({"end": "budget"}, "3.0 s, ended because its budget was spent"),
        ({"end": "budget", "interrupted": True}, "3.0 s, interrupted"),
        ({"end": "budget", "ended_by": HOSTILE}, f"3.0 s, ended by an error: {HOSTILE}"),
    ],
)
def test_a_kernel_says_why_its_search_ended(changes: dict[str, Any], expected: str) -> None:
    assert expected in shown(kernel_html({**kernel_document(), "converged": False, **changes})).text


def test_two_plots_of_a_notebook_have_names_of_their_own() -> None:
    shown(kernel_html(kernel_document()) + kernel_html(kernel_document()))


def test_a_model() -> None:
    document = tuning()
    for task, seconds in zip(document["tasks"], (1e-4, 6e-4, None), strict=True):
        task.update(seconds=seconds, sketch=None)
    text = shown(model_html(document)).text
    assert "900 µs to 1.1 ms" in text
    assert text.index("large") < text.index("net: conv, relu") and "small" not in text
    assert "were left" not in text
    document["tasks"][2]["reason"] = "no trials left: default schedule"
    text = shown(model_html(document)).text
    assert f"no trials were left for 1 of 3 kernels: {layer_label([f'net.{HOSTILE}'], 60)}" in text


def test_a_bench() -> None:
    assert "1.43 to 1.57" in shown(bench_html(bench())).text


def compiled_document() -> dict[str, Any]:
    document = tuning()
    kept = {key: document[key] for key in ("latency", "untuned", "speedup", "verified", "profile")}
    words = {
        "machine": "a CPU",
        "precision": "bf16",
        "inputs": HOSTILE,
        "outputs": "y float32[1]",
        "sizes": ["x=1", "x=4"],
    }
    return {"name": HOSTILE, "kernels": {HOSTILE: {"flops": 2e6, "bytes": 8.0}}, **words, **kept}


def test_a_compiled_model_with_its_kernels_folded_away() -> None:
    document = compiled_document()
    document["profile"]["kernels"][0]["layers"] = ["net.conv", "net.relu"]
    elements = shown(compiled_html(document))
    assert "2.00 times as long as the tuned model" in elements.text
    assert "net: conv, relu" in elements.text and "large" in elements.text
    assert {"details", "summary"} <= {tag for tag, _ in elements.found}
    for words in ("a CPU", "bf16", "x=1; x=4", "1 ms (900 µs to 1.1 ms)", "3 kernels", "60%"):
        assert words in elements.text, words
    assert "not reliable" not in elements.text
    document["latency"]["disturbed"] = True
    assert "not reliable" in shown(compiled_html(document)).text


def test_a_compiled_model_that_was_not_tuned() -> None:
    nothing = dict.fromkeys(("latency", "untuned", "speedup", "verified", "profile"))
    text = shown(compiled_html({**compiled_document(), **nothing})).text
    assert "latency" not in text
    assert "MFLOP a call" in text and "1 kernel" in text


def test_a_result_says_what_disturbed_it() -> None:
    document = kernel_document()
    disturbed = {
        **document,
        "disturbed": True,
        "best": {**document["best"], "speedup": None},
        "compared": [2.4, 2.1, 2.8],
    }
    assert "as the default schedule, measured beside other load" in shown(kernel_html(disturbed)).text
    nothing = {**kernel_document(), "best": None, "trials": 0, "failed": 0}
    assert "nothing was measured" in shown(kernel_html(nothing)).text


def test_without_matplotlib_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for html in (kernel_html(kernel_document()), bench_html(bench())):
        assert "<table>" in html and "<svg" not in html
