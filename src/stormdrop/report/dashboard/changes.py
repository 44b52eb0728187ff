"""Tells a browser that there is something new, as server-sent events. The browser then asks for its page again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from anyio.to_thread import run_sync

from ...errors import StormdropError

INTERVAL = 1.0
"""Seconds between two looks at the records."""

_ALIVE_EVERY = 15  # looks without news after which a line keeps the connection open


async def changes(
    stamp: Callable[[], str], is_gone: Callable[[], Awaitable[bool]], interval: float = INTERVAL
) -> AsyncIterator[str]:
    """Events in the form of text/event-stream: one at once, and one for each change.

    Args:
        stamp: Gives a text that differs if there is something new. It may take a while, and is called in a thread.
        is_gone: Says whether nobody listens any more.
        interval: Seconds between two looks.
    """
    last: str | None = None
    quiet = 0
    while not await is_gone():
        try:
            now = await run_sync(stamp)
        except StormdropError as error:
            yield f"event: failed\ndata: {' '.join(str(error).split())}\n\n"
            now = last or ""
        quiet += 1
        if now != last:
            last, quiet = now, 0
            yield "data: changed\n\n"
        elif quiet >= _ALIVE_EVERY:
            quiet = 0
            yield ": nothing new\n\n"
        await anyio.sleep(interval)
