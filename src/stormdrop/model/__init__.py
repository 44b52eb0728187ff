"""A model in, a tuned model out: graph, tasks, the compiled model and its verification."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine.threads import configure

if TYPE_CHECKING:
    from .artifact import CompiledModel
    from .result import ModelResult
    from .tune import tune_model
    from .untuned import compile_model

__all__ = ["CompiledModel", "ModelResult", "compile_model", "load", "tune_model"]

_HOME = {"CompiledModel": "artifact", "ModelResult": "result", "compile_model": "untuned", "tune_model": "tune"}


def load(folder: str | Path, digest: str | None = None, threads: int | None = None) -> CompiledModel:
    """Load a saved model. Several threads may call it at the same time.

    This runs code of the folder: load only what you trust, or give the digest that the model must have. Nothing of the
    folder runs if it has another one.

    Args:
        folder: What `CompiledModel.save` or `stormdrop tune --out` wrote.
        digest: 64 hexadecimal digits that cover all files of the model: `CompiledModel.digest`, or what
            `stormdrop tune` printed. Keep them where nobody who can write the folder can change them.
        threads: The most threads that one call uses, the calling thread included; all usable cores by default.

    Raises:
        ArtifactError: The folder holds no model or one with another digest, or its model does not run on this machine
            or with this TVM.
        InputError: `digest` is no digest, or `threads` is no number from 1 to the usable cores.

    Example:
        ```python
        import stormdrop as sd

        model = sd.load("resnet50.sd")
        y = model(x)
        ```
    """
    configure()
    from .artifact import CompiledModel

    return CompiledModel.load(folder, digest, threads)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    configure()
    home = importlib.import_module(f".{_HOME[name]}", __name__)
    return getattr(home, name)
