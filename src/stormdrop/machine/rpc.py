"""A runner: another machine that runs kernels which are built here, through TVM's own RPC server.

    python -m tvm.exec.rpc_server --host 0.0.0.0 --port 9090                         on the runner
    stormdrop tune-op matmul ... --target cuda/h200 --runner host:9090               on this machine

The server links the kernels that it receives, so it needs a C compiler. It trusts whoever connects, so it belongs
behind a firewall. It serves one connection at a time. A kernel that crashes ends the server, which must then be started
again.
"""

from __future__ import annotations

from typing import Any

from ..errors import TargetError, one_line


def connect(address: str) -> Any:
    """TVM's RPC session with a runner.

    Args:
        address: HOST:PORT of the runner.

    Raises:
        TargetError: The address is not HOST:PORT, or no RPC server answers there.
    """
    from tvm import rpc

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"runner {address!r}: write HOST:PORT, such as gpu-box:9090")
    try:
        return rpc.connect(host, int(port))
    except Exception as error:
        # The socket raises OSError. If something else than TVM answers, TVM raises errors of its own.
        raise TargetError(f"runner {address}: no TVM RPC server answers: {one_line(error)}") from error
