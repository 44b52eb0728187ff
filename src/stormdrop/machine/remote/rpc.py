"""A runner: another machine that runs kernels which are built here, through TVM's own RPC server.

    python -m tvm.exec.rpc_server --host 127.0.0.1 --port 9090                       on the runner
    ssh -N -L 9090:127.0.0.1:9090 runner                                             on this machine
    stormdrop tune-op matmul ... --target cuda/h200 --runner 127.0.0.1:9090          on this machine

The server links the kernels that it receives, so it needs a C compiler. It executes what anybody sends who can connect.
So it listens to its own machine only, and ssh brings the connection there. It serves one connection at a time. A kernel
that crashes ends the server, which must then be started again.

A runner that hangs costs no more than the time limits: that of `connect`, and those of the jobs of the worker process
that holds the connection, which is killed then.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from ...errors import TargetError, one_line
from . import tracker

ANSWER_SECONDS = 8.0
"""A runner that does not answer within this time hangs, or serves somebody else."""

_NOBODYS_KEY = b"client:is-anybody-there"


def connect(address: str) -> Any:
    """TVM's RPC session with a runner.

    Args:
        address: HOST:PORT of the runner, or the address of a rack of boards (`tracker.py`), of which a free one is
            taken.

    Raises:
        TargetError: The address is not HOST:PORT, no RPC server answers there, or none answers in time.
    """
    from tvm import rpc

    if tracker.is_rack(address):
        return tracker.connect(address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise TargetError(f"runner {address!r}: write HOST:PORT, such as 127.0.0.1:9090")
    try:
        _greet(host, int(port))
        return rpc.connect(host, int(port))
    except TimeoutError as error:
        raise TargetError(
            f"runner {address}: no answer within {ANSWER_SECONDS:g} s: it hangs, cannot be reached, or serves another"
            " connection; it has one at a time"
        ) from error
    except Exception as error:
        # The socket raises OSError. If something else than TVM answers, TVM raises errors of its own.
        raise TargetError(f"runner {address}: no TVM RPC server answers: {one_line(error)}") from error


def check(address: str) -> None:
    """Checks that a runner answers, or that a tracker does and knows the boards.

    Args:
        address: HOST:PORT of the runner, or the address of a rack of boards.

    Raises:
        TargetError: As in `connect` and `tracker.boards`.
    """
    if tracker.is_rack(address):
        tracker.boards(address)
    else:
        connect(address)


def cores(address: str) -> int:
    """The cores that a kernel uses on a runner: the threads that the runner's TVM has.

    Args:
        address: HOST:PORT of the runner.

    Raises:
        TargetError: As in `connect`.
    """
    return int(connect(address).get_function("runtime.NumThreads")())


def _greet(host: str, port: int) -> None:
    """Waits until the runner is ready to serve, because TVM's own connecting waits without end.

    The greeting has a key that the server does not know. The server refuses it as soon as it serves nobody else, and
    goes on listening.

    Raises:
        TimeoutError: It does not answer within `ANSWER_SECONDS`.
        OSError: Nothing listens there, or something else than a TVM RPC server.
    """
    from tvm.rpc import base

    with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as connection:
        connection.sendall(struct.pack("<ii", base.RPC_MAGIC, len(_NOBODYS_KEY)) + _NOBODYS_KEY)
        code = base.recvall(connection, 4)
        if struct.unpack("<i", code)[0] not in (base.RPC_CODE_MISMATCH, base.RPC_CODE_SUCCESS):
            raise ConnectionError("what answers is something else")
