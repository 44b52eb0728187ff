"""The dashboard in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import look
from records_to_show import HOSTILE, database, opened, worked

import stormdrop
from stormdrop.records import open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.records.reading.session_lines import SessionFilter
from stormdrop.report.traces.announcement import announced

pytestmark = pytest.mark.long
_PATIENCE = 15.0  # seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path / "records.db")


@pytest.fixture
def address(path: Path) -> Iterator[str]:
    """The address of a dashboard in a process of its own, as a user starts it."""
    source = str(Path(stormdrop.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "stormdrop", "dashboard", "--db", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + process.stderr.read()
        yield found.group()
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_every_page_can_be_read(address: str, browser: Any, path: Path) -> None:
    reader = RecordsReader(path)
    first, second, *_ = (line.id for line in reader.sessions(SessionFilter()))
    reader.close()
    model = "model?name=small+net&machine=a+CPU,+2+cores"
    pages = ["", "sessions", f"sessions/{first}", "models", model, "trials", "machines", "difference"]
    with announced("a model whose file has a name that is far too long for a narrow screen.onnx", 60.0, 30):
        for page in (*pages, f"difference?a={first}&b={second}"):
            look(browser, f"{address}{page}")


def test_the_best_time_falls_without_reloading(address: str, browser: Any, path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    def text(selector: str) -> str:
        """What the page shows there; read in one step, because the page replaces its parts while it is open."""
        return str(browser.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    def wait_for(selector: str, expected: str) -> None:
        WebDriverWait(browser, _PATIENCE).until(lambda _: text(selector) == expected, f"{selector} is {text(selector)}")

    with open_store(path) as store:
        session = opened(store, "softmax", model={"name": "net that is tuned", "calls": 2})
        store.append(session, 0, [worked(4e-3)])
        browser.get(f"{address}sessions/{session.id}")
        browser.execute_script("window.here = true")
        assert text("#best") == "4 ms"
        WebDriverWait(browser, _PATIENCE).until(
            lambda _: browser.find_elements(By.CSS_SELECTOR, "#light[data-state=live]"), "the page is not live"
        )
        for milliseconds in (3, 2):
            store.append(session, 1, [worked(milliseconds * 1e-3, elapsed=9.0 - milliseconds)])
            wait_for("#best", f"{milliseconds} ms")
        assert browser.execute_script("return window.here")  # the page is the same one
        browser.get(address)
        assert text(f"article:has(a[href*='{session.id}']) .best") == "2 ms"
        store.append(session, 2, [worked(1e-3)])
        wait_for(".tiles .best", "2 ms")
    browser.get(f"{address}sessions")
    browser.find_element(By.LINK_TEXT, HOSTILE).click()
    assert text("h1") == HOSTILE
    logged = browser.get_log("browser")  # the page of an earlier test may miss its server
    assert [line for line in logged if line["level"] == "SEVERE" and address in line["message"]] == []
