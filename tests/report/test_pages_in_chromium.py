"""Pages in a real browser: no error in its console, nothing wider than the screen, nothing that is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from looking import look
from report_documents import METADATA, NO_KERNEL, bench, session, tuning

from stormdrop.cli import run
from stormdrop.report.documents import Bench, Tuning, checked
from stormdrop.report.pages.bench_page import bench_page
from stormdrop.report.pages.model_page import model_page
from stormdrop.report.pages.session_page import session_page

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    against = checked(bench(), Bench, "it")
    texts = {
        "model": model_page(checked(tuning(), Tuning, "it"), METADATA, "cd" * 32, "my.sd", against),
        "bench": bench_page(against, "stormdrop bench"),
        "session": session_page(session(), NO_KERNEL, None, "stormdrop report"),
    }
    paths = {name: folder / f"{name}.html" for name in (*texts, "comparison", "landscape")}
    for name, text in texts.items():
        paths[name].write_text(text)
    short = ["--seeds", "2", "--trials", "20", "--search", "droplet,random"]
    assert run(["compare", "analytic:lrw", *short, "--report", str(paths["comparison"]), "--json"]) == 0
    plane = ["--knobs", "h,w", "--out", str(folder / "plane.png")]
    assert run(["landscape", "analytic:lrw", *plane, "--report", str(paths["landscape"])]) == 0
    return paths


@pytest.mark.parametrize("name", ["model", "bench", "session", "comparison", "landscape"])
def test_a_page(name: str, browser: Any, pages: dict[str, Path]) -> None:
    look(browser, pages[name].as_uri())
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_link_opens_the_kernel_at_its_schedule(browser: Any, pages: dict[str, Path]) -> None:
    opened = "return document.getElementById(arguments[0]).closest('details').open"
    browser.get(pages["model"].as_uri())
    assert not browser.execute_script(opened, "kernel-2-schedule")
    browser.find_element("css selector", "a[href='#kernel-2-schedule']").click()
    assert browser.execute_script(opened, "kernel-2-schedule")


def test_the_surface_turns(browser: Any, pages: dict[str, Path]) -> None:
    browser.get(pages["landscape"].as_uri())
    image = "return document.getElementById('surface').toDataURL()"
    before = browser.execute_script(image)
    canvas = browser.find_element("id", "surface")
    canvas.send_keys("\ue012")  # the left arrow
    turned = browser.execute_script(image)
    assert turned != before
    canvas.send_keys("\ue014")  # the right arrow
    assert browser.execute_script(image) == before
