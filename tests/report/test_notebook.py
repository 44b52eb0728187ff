"""What Jupyter shows of a result: a table and a plot, with every text escaped."""

from __future__ import annotations

from typing import Any

from report_documents import HOSTILE, bench, searched, tuning
from test_model_page import Elements

from stormdrop.report.notebook import bench_html, kernel_html, model_html


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
    assert "1.50 (1.40 to 1.60) times as fast" in text


def test_two_plots_of_a_notebook_have_names_of_their_own() -> None:
    shown(kernel_html(kernel_document()) + kernel_html(kernel_document()))


def test_a_model() -> None:
    document = tuning()
    for task, seconds in zip(document["tasks"], (1e-4, 6e-4, None), strict=True):
        task.update(seconds=seconds, sketch=None)
    text = shown(model_html(document)).text
    assert "900 µs to 1.1 ms" in text
    assert text.index("large") < text.index("small")


def test_a_bench() -> None:
    assert "1.43 to 1.57" in shown(bench_html(bench())).text
