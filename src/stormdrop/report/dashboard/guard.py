"""Who may ask the dashboard, and what every answer says about itself.

A page of somebody else, open in the same browser, must not read the records: neither over a name that leads here (DNS
rebinding: the Host header is checked) nor from its own origin (no answer allows that, and such requests are refused).
On another address than the loopback everybody needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""The names of this machine for itself."""

COOKIE = "stormdrop_token"

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Args:
        hosts: The names and addresses that a request may be sent to, in lower case and without ports.
        token: What a request must know; None if everybody may ask who reaches the socket.
    """

    hosts: Collection[str] = LOOPBACK
    token: str | None = None


def is_loopback(host: str) -> bool:
    """Whether an address is only reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """ASGI middleware that refuses requests which `Access` does not allow."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there are no web sockets
        refusal = self._refusal(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if _host_of(request.headers) not in self._access.hosts:
            return _refused(400, "this host name does not lead to the dashboard; use the address that it printed")
        if request.method not in ("GET", "HEAD"):
            return _refused(405, "the dashboard only reads")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            return _refused(403, "pages of other origins may not read this")
        site, mode = request.headers.get("sec-fetch-site", "none"), request.headers.get("sec-fetch-mode", "navigate")
        if site not in ("none", "same-origin") and mode != "navigate":
            return _refused(403, "pages of other origins may not read this")
        return None if self._access.token is None else self._without_token(request, self._access.token)

    def _without_token(self, request: Request, token: str) -> Response | None:
        """The answer to a request that does not know the token; None for one that does."""
        if _same(request.query_params.get("token"), token):
            # The token leaves the address, so that it is in no history and on no screenshot.
            kept = request.url.remove_query_params("token")
            path = "/" + kept.path.lstrip("/")  # with two slashes it would lead to another host
            answer = RedirectResponse(path + (f"?{kept.query}" if kept.query else ""), 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer[2] if bearer[0].lower() == "bearer" else None
        if _same(given, token) or _same(request.cookies.get(COOKIE), token):
            return None
        return _refused(401, "the dashboard needs its token: open the address that it printed")


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _host_of(headers: Headers) -> str:
    """The host that a request was sent to, without its port and the brackets of an IPv6 address."""
    try:
        return (urlsplit(f"//{headers.get('host', '')}").hostname or "").lower()
    except ValueError:
        return ""


def _refused(code: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", code)
