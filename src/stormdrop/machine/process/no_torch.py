"""A process that does without torch."""

from __future__ import annotations

import sys


def hide_torch() -> None:
    """Makes `import torch` fail in this process. It must come before TVM is loaded.

    If torch is installed, tvm_ffi imports it for conversions that no child makes. That costs 2 s and much memory.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]
