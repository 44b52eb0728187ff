"""Another machine that runs kernels which are built here: it runs TVM's own RPC server.

    python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090        there
    stormdrop tune-op matmul ... --target cuda/h200 --runner host:9090

The server links what it is sent, so it needs a C compiler, and it trusts whoever connects: it belongs behind a
firewall. It has one connection at a time. A kernel that crashes there ends TVM's server: it must be started again.
"""

from __future__ import annotations

from typing import Any

from ..errors import TargetError


def connect(address: str) -> Any:
    """A session of TVM's with the runner at HOST:PORT. Raises `TargetError` where there is none."""
    from tvm import rpc

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"runner {address!r}: write HOST:PORT, such as gpu-box:9090")
    try:
        return rpc.connect(host, int(port))
    except Exception as error:
        # The socket's errors, and TVM's own where something else answers.
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TargetError(f"runner {address}: no TVM RPC server answers: {said[0]}") from error
