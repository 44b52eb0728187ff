"""Pages in a real browser: no error in its console, nothing wider than the screen, nothing that is loaded.

If AXE names the file axe.min.js of
axe-core, no page may have a serious accessibility fault.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from report_documents import METADATA, NO_KERNEL, bench, session, tuning

from stormdrop.cli import run
from stormdrop.report.documents import Bench, Tuning, checked
from stormdrop.report.pages.bench_page import bench_page
from stormdrop.report.pages.model_page import model_page
from stormdrop.report.pages.session_page import session_page

pytestmark = pytest.mark.long

_AXE = os.environ.get("AXE")
_FAULTS = """
const done = arguments[arguments.length - 1];
axe.run().then((found) => done(found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => each.id + ": " + each.nodes[0].html)));
"""


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
    for width, mode in ((1100, "light"), (390, "dark")):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(pages[name].as_uri())
        assert browser.get_log("browser") == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (mode == "light")
        if _AXE:
            browser.execute_script(Path(_AXE).read_text())
            assert browser.execute_async_script(_FAULTS) == []


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
