"""Looks at a page as its readers do, in several sizes and modes, and for what keeps somebody from reading it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

AXE = os.environ.get("AXE")
"""The file axe.min.js of axe-core. With it no page may have a serious accessibility fault."""

_FAULTS = """
const done = arguments[arguments.length - 1];
axe.run().then((found) => done(found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => each.id + ": " + each.nodes[0].html)));
"""


def look(browser: Any, address: str) -> None:
    """Opens a page on a wide and on a narrow screen, light and dark. Nothing is wider, and its console is silent."""
    for width in (1280, 400):
        for mode in ("light", "dark"):
            _look(browser, address, width, mode)


def _look(browser: Any, address: str, width: int, mode: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    browser.get_log("browser")  # what an earlier page had to say
    browser.get(address)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (mode == "light")
    if AXE:
        browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
        browser.get(address)
        browser.execute_script(Path(AXE).read_text())
        assert browser.execute_async_script(_FAULTS) == []
