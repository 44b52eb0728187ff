"""What an exception leaves of a Relax function that was being built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tvm


@contextmanager
def ended_blocks(builder: Any) -> Iterator[None]:
    """A context that ends the blocks of a builder if an exception leaves it; see `end_blocks`.

    Args:
        builder: A `relax.BlockBuilder` that nothing uses after the exception.
    """
    try:
        yield
    except BaseException:
        end_blocks(builder)
        raise


def end_blocks(builder: Any) -> None:
    """Ends the blocks that a builder has begun.

    TVM does not end them if an exception ends the building, and then prints "BlockBuilder destroyed with remaining
    blocks!" when the builder is removed.

    Args:
        builder: A `relax.BlockBuilder`; None if there is none.
    """
    with suppress(tvm.error.InternalError):  # which says that no block is left
        while builder is not None:
            builder._end_block()
