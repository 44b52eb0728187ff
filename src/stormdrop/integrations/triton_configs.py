"""The configurations of a kernel with Triton's own `autotune`, as those that `sd.autotune` takes.

@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4), ...], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr): ...

configs_of(kernel)   [{"BLOCK": 64, "num_warps": 4, "num_stages": 3}, ...]
untuned(kernel)      the kernel itself, which is launched with a configuration: untuned(kernel)[grid](x, n, **config)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Options of a launch that a `triton.Config` holds besides the kernel's parameters."""


def configs_of(kernel: Any) -> list[dict[str, Any]]:
    """The configurations of a kernel with Triton's `autotune`, or of a list of `triton.Config`.

    An option that no configuration sets, or that is the same default in all of them for every launch (one CTA), is left
    out.

    Args:
        kernel: What `triton.autotune` returned, or a sequence of `triton.Config`.

    Raises:
        InputError: It is neither, or a configuration runs a function before the kernel (`pre_hook`), which
            `sd.autotune` would not.
    """
    configs = list(getattr(kernel, "configs", kernel) if _is_tuned(kernel) or isinstance(kernel, Sequence) else [])
    if not configs or not all(hasattr(config, "kwargs") and hasattr(config, "num_warps") for config in configs):
        raise InputError(f"configs_of takes a kernel with triton.autotune or configurations, not {_type(kernel)}")
    if any(getattr(config, "pre_hook", None) is not None for config in configs):
        raise InputError("configs_of: a configuration with a pre_hook is not supported; give sd.autotune restore=...")
    found = [
        {**config.kwargs, **{name: getattr(config, name) for name in _OPTIONS if _is_set(config, name)}}
        for config in configs
    ]
    names = dict.fromkeys(name for config in found for name in config)
    for config in found:
        missing = [name for name in names if name not in config]
        if missing:
            raise InputError(f"configs_of: {missing[0]!r} is set in some configurations only: {config}")
    return found


def untuned(kernel: Any) -> Any:
    """The kernel inside Triton's `autotune`, which is launched with a configuration of the caller's.

    Raises:
        InputError: The kernel has no `autotune`.
    """
    if not _is_tuned(kernel):
        raise InputError(f"untuned takes a kernel with triton.autotune, not {_type(kernel)}")
    return kernel.fn


def _is_tuned(kernel: Any) -> bool:
    return hasattr(kernel, "configs") and hasattr(kernel, "fn")


def _is_set(config: Any, name: str) -> bool:
    value = getattr(config, name, None)
    return value is not None and not (name == "num_ctas" and value == 1)


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
