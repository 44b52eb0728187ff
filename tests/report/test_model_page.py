"""The page of a tuned model says which kernel costs most, why, how sure the speed-up is, and how to repeat it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_documents import HOSTILE, METADATA, NO_KERNEL, bench, kernel, searched, served, session, tuning

from stormdrop.errors import InputError
from stormdrop.report.diagnosis import why_not_faster
from stormdrop.report.documents import Bench, Tuning, checked
from stormdrop.report.kernels import kernel_views, layers_views
from stormdrop.report.pages.bench_page import bench_page
from stormdrop.report.pages.model_page import model_page
from stormdrop.report.pages.records_page import records_page
from stormdrop.report.pages.session_page import session_page


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(bench_document: dict[str, Any] | None = None, **changes: Any) -> str:
    document = checked(tuning(**changes), Tuning, "it")
    against = None if bench_document is None else checked(bench_document, Bench, "it")
    return model_page(document, METADATA, "cd" * 32, "my model.sd", against)


def assert_shows_only_text(page: str) -> None:
    """No script, no image, no handler, nothing that is loaded, although all texts of the documents try."""
    elements = Elements(page)
    assert not {"script", "img", "iframe", "link", "object"} & {tag for tag, _ in elements.found}
    attributes = [(name, value) for _, each in elements.found for name, value in each.items()]
    assert not [name for name, _ in attributes if name.startswith("on")]
    links = [value for name, value in attributes if name in ("src", "href", "xlink:href")]
    assert all(str(value).startswith("#") for value in links)
    names = [value for name, value in attributes if name == "id"]
    assert len(set(names)) == len(names)
    assert HOSTILE in elements.text  # as text
    assert "49" not in re.findall(r"\$x\$ (\S+)", elements.text)  # it is not evaluated
    policies = [str(each.get("content")) for tag, each in elements.found if tag == "meta" and "http-equiv" in each]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]


def test_it_answers_the_questions() -> None:
    elements = Elements(page_of())
    text = " ".join(elements.text.split())
    assert "large" in text.split("Which kernel costs most?")[1][:20]
    assert "60% of an execution" in text
    assert "tried 40 candidates of 540 and ended because its budget was spent" in text
    assert "1.80 to 2.20 times as fast" in text
    assert "stormdrop tune" in text
    assert "stormdrop bench 'my model.sd'" in text


@pytest.mark.parametrize("page", ["model", "bench"])
def test_percentiles_are_shown_where_they_were_measured(page: str) -> None:
    def text_of(document: dict[str, Any]) -> str:
        written = page_of(document) if page == "model" else bench_page(checked(document, Bench, "it"), "bench")
        return " ".join(Elements(written).text.split())

    measured, not_measured = text_of(served()), text_of(bench())
    assert "7 ms" in measured and "1234" in measured and "25% of the turns" in measured
    assert "stormdrop18120.501 ms2 ms7 ms400" in measured.replace(HOSTILE, "")
    assert "stormdrop212340.501 ms2 ms–400" in measured.replace(HOSTILE, "")
    assert "99%" not in not_measured
    assert ("stormdrop bench 'my model.sd' --for 30s --json" in not_measured) == (page == "model")


def test_the_sketch_in_the_table_leads_to_the_schedule() -> None:
    elements = Elements(page_of())
    names = {each.get("id") for _, each in elements.found}
    leading = [str(each["href"]) for tag, each in elements.found if tag == "a"]
    schedules = [link for link in leading if link.endswith("-schedule")]
    assert len(schedules) == 3
    assert {link.removeprefix("#") for link in leading} <= names


def test_layers_lead_to_kernels_and_kernels_are_called_after_layers() -> None:
    page = page_of()
    rows = [" ".join(Elements(row).text.split()) for row in page.split("<tr>")]
    assert any(row.startswith("2. net: conv, relu") for row in rows)
    assert any(row.startswith("net.conv, net.relu") and row.endswith("small") for row in rows)
    text = Elements(page).text
    assert "1 layer that no kernel computes" in text and f"net.flat {HOSTILE} (Flatten)" in text
    assert "small computes net.conv, net.relu." in text


def test_a_tuning_of_an_earlier_version_has_no_layers() -> None:
    document = tuning()
    del document["layers"], document["profile"]["layers"]
    for task in document["tasks"]:
        task.pop("layers", None)
    checked_document = checked(document, Tuning, "it")
    assert layers_views(checked_document, kernel_views(checked_document)) == []
    text = Elements(model_page(checked_document, METADATA, "cd" * 32, "m.sd", None)).text
    assert "that no kernel computes" not in text and "small" in text


def test_layers_without_times_are_in_the_order_of_the_model() -> None:
    document = checked(tuning(profile=None), Tuning, "it")
    found = layers_views(document, kernel_views(document))
    assert [view.layers[0].split()[0] for view in found][:2] == ["net.conv", "net.relu"]
    assert len(found) == 3 and all(view.seconds is None and len(view.kernels) == 1 for view in found)


def test_every_text_is_shown_as_text() -> None:
    assert_shows_only_text(page_of(bench()))
    assert_shows_only_text(page_of(served()))
    assert_shows_only_text(session_page(session(), NO_KERNEL, None, "stormdrop report 0123"))
    line = {"id": HOSTILE, "workload_name": HOSTILE, "search": HOSTILE, "machine": HOSTILE, "state": "finished"}
    numbers = {"trials": 3, "failed": 1, "best_seconds": 1e-3, "baseline_seconds": None}
    assert_shows_only_text(records_page([{**line, **numbers, "created": "2026-01-02T03:04:05"}], "stormdrop report"))


def test_a_session_without_a_result_has_a_page() -> None:
    page = session_page({**session(), "outcome": None, "state": "running"}, NO_KERNEL, None, "stormdrop report 0123")
    assert "The session has no result yet; 12 candidates were tried." in page
    assert "No candidate has worked" not in page  # three of four have


@pytest.mark.parametrize(
    ("state", "outcome", "expected"),
    [
        ("finished", {}, "tried 12 candidates and converged"),
        ("finished", {"converged": False, "extra": {"end": "finished"}}, "and ended at a limit of its own"),
        ("finished", {"converged": False, "extra": {"end": "budget"}}, "and ended because its budget was spent"),
        ("finished", {"converged": False, "extra": {"exhausted": True}}, "because every candidate was measured"),
        ("interrupted", {"converged": False, "extra": {"end": "budget"}}, "was interrupted after 12 candidates"),
    ],
)
def test_a_page_of_a_session_says_why_its_search_ended(state: str, outcome: dict[str, Any], expected: str) -> None:
    document = {**session(), "state": state, "outcome": {**session()["outcome"], **outcome}}
    text = Elements(session_page(document, NO_KERNEL, None, "stormdrop report 0123")).text
    assert expected in " ".join(text.split())


def test_what_was_not_measured_is_not_claimed() -> None:
    unknown = {"seconds": None, "interval": [None, None], "disturbed": True}
    page = page_of(untuned=None, speedup=None, latency=unknown, profile=None, limits=None, curve=[])
    text = " ".join(Elements(page).text.split())
    assert "The speed-up over the default schedules is not known" in text
    assert "default schedules was not timed" in text and "was not timed, because" not in text
    said = page_of(untuned=None, speedup=None, not_compared="no time was left")
    assert "default schedules was not timed, because no time was left" in " ".join(Elements(said).text.split())
    assert "The kernels were not timed inside the model" in text
    assert "figures are not reliable" in text


def test_an_interval_around_one_is_no_difference() -> None:
    text = " ".join(Elements(page_of(speedup=[1.05, 0.98, 1.1])).text.split())
    assert "So no difference is significant." in text
    assert "So it is significantly faster." in " ".join(Elements(page_of()).text.split())


def test_kernels_are_in_the_order_of_their_cost() -> None:
    views = kernel_views(checked(tuning(), Tuning, "it"))
    assert [view.calls for view in views] == [1, 1, 2]
    assert [round(view.share or 0, 3) for view in views] == [0.6, 0.1, 0.05]
    place = views[0].roofline
    assert place is not None
    assert place.fraction == pytest.approx(2e7 / 2e11 / 6e-4)
    assert place.bound == "arithmetic"
    assert views[2].roofline is not None
    assert views[2].roofline.bound == "memory"


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (searched(converged=True), "tried 40 candidates of 540 and converged: nothing"),
        (searched(converged=False), "ended because its budget was spent: more time may help"),
        (searched(converged=False) | {"end": "finished"}, "ended at a limit of its own: another seed"),
        (searched(converged=False) | {"end": "exhausted"}, "ended because every candidate was measured: none is"),
        (searched(interrupted=True), "interrupted"),
        (searched(failed=30, error="out of registers"), "out of registers"),
        (searched(suspect=39), "Something else used the machine during 39"),
        (searched(1e-6), "Inside the model a call takes"),
        (None, "plain schedule"),
    ],
)
def test_why_a_kernel_is_not_faster(search: dict[str, Any] | None, expected: str) -> None:
    one = tuning(
        tasks=[{"name": "k", "weight": 1, "reason": None}],
        kernels=[kernel(1e6, 1e4, search)],
        profile={
            "seconds": 1e-3,
            "outside": 0.0,
            "kernels": [{"name": "k", "calls": 1, "seconds": 2e-5, "flops": 1e6, "bytes": 1e4, "task": 0}],
        },
    )
    [view] = kernel_views(checked(one, Tuning, "it"))
    assert expected in " ".join(why_not_faster(view))


def test_a_large_model_stays_light() -> None:
    many = 120
    program = "def main(x):\n" + "    x[1, 2] = T.float32(3.0) + x[2, 3]\n" * 600
    kernels = [{**kernel(1e6, 1e4, searched()), "tir": program} for _ in range(many)]
    profile = {
        "seconds": 1.0,
        "outside": 0.0,
        "kernels": [
            {"name": f"k{index}", "calls": 1, "seconds": 1e-3, "flops": 1e6, "bytes": 1e4, "task": index}
            for index in range(many)
        ],
    }
    tasks = [{"name": f"k{index}", "weight": 1, "reason": None} for index in range(many)]
    page = page_of(tasks=tasks, kernels=kernels, profile=profile)
    assert len(page.encode()) < 2_000_000
    assert "more lines" in page
    assert "is left out" in page


def test_a_document_that_is_none_is_one_line() -> None:
    with pytest.raises(InputError, match=r"it: .*kernels") as raised:
        checked({**tuning(), "kernels": [{}]}, Tuning, "it")
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="contenders"):
        checked({"what": "x", "runs": 1, "disturbed": 0, "skipped": {}}, Bench, "it")


def test_equal_documents_give_equal_pages() -> None:
    assert page_of(bench()) == page_of(bench())


def test_kernels_that_were_never_tuned_are_listed() -> None:
    document = tuning(interrupted=True)
    for number, (task, seconds) in enumerate(zip(document["tasks"], (1e-4, 6e-4, None), strict=True)):
        task |= {"untuned": seconds, "seconds": None if number < 2 else 1e-4}
        task["reason"] = "interrupted before its turn: default schedule" if number < 2 else None
    page = model_page(checked(document, Tuning, "it"), METADATA, "cd" * 32, "my.sd")
    text = " ".join(Elements(page).text.split())
    assert f"The interruption left 2 of 3 kernels untuned: large {HOSTILE} (86% of the untuned time), " in text
    assert "net: conv, relu (14%). They have their default schedules; another tuning goes on with them" in text
    assert '<li><a href="#kernel-2">net: conv, relu</a>, 100 µs of the untuned model</li>' in page
    assert "of the untuned time" not in Elements(page_of()).text


def test_a_schedule_that_was_replaced_is_that_of_layers() -> None:
    entry = {"task": "small", "error": 1e-3, "before": "winograd", "after": "tiled"}
    text = Elements(page_of(replaced=[{**entry, "layers": ["net.conv", "net.relu"]}, entry])).text
    assert "winograd of net: conv, relu, by tiled." in text and "winograd of small, by tiled." in text


def test_a_session_of_a_model_is_called_after_its_layers() -> None:
    document = {**session(), "layers": ["net.conv", "net.relu"]}
    page = session_page(document, NO_KERNEL, None, "stormdrop report 0123")
    assert "<h1>net: conv, relu</h1>" in page
    assert f"{HOSTILE} computes net.conv, net.relu." in Elements(page).text
    line = {"id": "0123", "workload_name": "fused_conv2d", "search": "storm", "machine": "a CPU", "state": "finished"}
    numbers = {"trials": 3, "failed": 1, "best_seconds": 1e-3, "baseline_seconds": None}
    listed = {**line, **numbers, "created": "2026-01-02T03:04:05", "layers": ("net.conv", "net.relu")}
    assert "net: conv, relu" in records_page([listed], "stormdrop report")


def test_a_kernel_that_kept_its_default_schedule_is_named() -> None:
    document = tuning()
    document["kernels"][1]["default"] = True
    document["kernels"][1]["search"]["disturbed"] = True
    text = " ".join(Elements(model_page(checked(document, Tuning, "it"), METADATA, "cd" * 32, "my.sd")).text.split())
    assert "1 of 3 kernels, 60% of an execution, kept their default schedules" in text
    assert "The model has its default schedule, because its last race was disturbed" in text
    assert "kept their default schedules" not in Elements(page_of()).text
