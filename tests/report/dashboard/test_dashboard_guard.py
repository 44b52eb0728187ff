"""Who may ask the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from records_to_show import client, database
from starlette.testclient import TestClient

from stormdrop.report.dashboard.guard import Access
from stormdrop.report.dashboard.serve import Address

TOKEN = "a token of many letters"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path / "records.db")


@pytest.fixture
def dashboard(path: Path) -> TestClient:
    return client(path)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8765", "127.0.0.1:8765", "[::1]:8765"])
def test_names_of_this_machine(dashboard: TestClient, host: str) -> None:
    assert dashboard.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8765", "", "[::1", "a@b"]
)
def test_other_hosts_are_refused(dashboard: TestClient, host: str) -> None:
    assert dashboard.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_other_origins_are_refused(dashboard: TestClient, headers: dict[str, str]) -> None:
    answer = dashboard.get("/sessions.json", headers=headers)
    assert answer.status_code == 403
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_own_pages_and_links_are_answered(dashboard: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert dashboard.get("/", headers=own).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert dashboard.get("/", headers=link).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(dashboard: TestClient, method: str) -> None:
    assert dashboard.request(method, "/sessions").status_code == 405


@pytest.mark.parametrize(
    "address",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/sessions/..%2f..%2fetc%2fpasswd",
        "/sessions/%00",
    ],
)
def test_paths_lead_nowhere_else(dashboard: TestClient, address: str) -> None:
    answer = dashboard.get(address)
    assert answer.status_code == 404
    assert "root:" not in answer.text and "import" not in answer.text


def test_every_answer_allows_only_own_scripts(dashboard: TestClient) -> None:
    for address in ("/", "/static/live.js", "/sessions.csv", "/none"):
        headers = dashboard.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    page = dashboard.get("/").text
    assert "style=" not in page and "onclick" not in page and "http://" not in page  # all of it is our own


def test_a_token_is_needed_where_one_is_set(path: Path) -> None:
    dashboard = client(path, Access(token=TOKEN))
    assert dashboard.get("/").status_code == 401
    assert dashboard.get("/static/style.css").status_code == 401
    assert dashboard.get("/", headers={"authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert dashboard.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert dashboard.get("/?token=wrong").status_code == 401
    answer = dashboard.get("/sessions", params={"token": TOKEN, "name": "conv"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?name=conv")  # it is in no history
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=strict" in answer.headers["set-cookie"]
    assert dashboard.get("/sessions").status_code == 200  # the client keeps the cookie
    away = dashboard.get(f"http://127.0.0.1:8765//evil.example/?token={TOKEN}", follow_redirects=False)
    assert away.headers["location"] == "/evil.example/"


def test_where_a_token_is_needed() -> None:
    assert Address().access() == Access({"localhost", "127.0.0.1", "::1"}, None)
    assert Address("127.0.0.2").access().token is None
    first, second = Address("0.0.0.0").access(), Address("0.0.0.0", names=["Proxy.Example"]).access()
    assert first.token and second.token and first.token != second.token and len(first.token) >= 32
    assert "proxy.example" in second.hosts
    assert Address("localhost", token=TOKEN).access().token == TOKEN
