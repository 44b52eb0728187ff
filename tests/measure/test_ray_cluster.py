"""What is wrong with a cluster, in one line each: most of it needs no cluster."""

from __future__ import annotations

import importlib.util
import re
import socket
import threading

import pytest

from stormdrop.errors import TargetError
from stormdrop.measure.fleet import ray_cluster


@pytest.mark.parametrize("address", ["nonsense", "ray://head", "head:port", ":1", "ray://:1", "http://head:1", "a b:1"])
def test_an_address_has_one_of_three_forms(address: str) -> None:
    with pytest.raises(TargetError, match=re.escape(f"fleet {address!r}: write auto, HOST:PORT or ray://HOST:PORT")):
        ray_cluster.check_address(address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"a fleet needs ray, which is not installed: pip install 'stormdrop\[ray\]'"):
        ray_cluster.connect("ray://head:10001")


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_nothing_or_something_else_at_the_address(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'stormdrop[ray]'")
    address = form.format("127.0.0.1:1")
    with pytest.raises(TargetError, match=f"^fleet {address}: no cluster of Ray is there: ConnectionRefusedError"):
        ray_cluster.connect(address)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = form.format(f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        thread.start()
        with pytest.raises(TargetError, match="no cluster of Ray is there: ConnectionError: what answers is something"):
            ray_cluster.connect(address)
        thread.join()
        monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 0.2)
        with pytest.raises(TargetError, match=r"no answer within 0.2 s"):
            ray_cluster.connect(address)


def test_another_version_of_ray_or_python() -> None:
    utils = pytest.importorskip("ray._private.utils", reason="Ray is not installed: pip install 'stormdrop[ray]'")
    with pytest.raises(RuntimeError) as refused:  # what Ray itself says
        utils.check_version_info({"ray_version": "2.1.0", "python_version": "3.8.1"}, "127.0.0.1")
    line = ray_cluster._reason(refused.value)
    assert line.startswith("it runs Ray 2.1.0 on Python 3.8.1, and this process Ray ")
    assert line.endswith(": all machines need the same versions")
