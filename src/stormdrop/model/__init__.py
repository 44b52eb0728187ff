"""ONNX in, tuned model out: graph, tasks, the compiled model and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine import threads

if TYPE_CHECKING:
    from .artifact import CompiledModel
    from .result import ModelResult
    from .tune import tune_model

__all__ = ["CompiledModel", "ModelResult", "load", "tune_model"]


def load(folder: str | Path, digest: str | None = None) -> CompiledModel:
    """Load a saved model, to run on all usable cores.

    This runs code of the folder: load only what you trust, or give the digest that the model must have. Nothing of the
    folder runs if it has another one.

    Args:
        folder: What `CompiledModel.save` or `stormdrop tune --out` wrote.
        digest: 64 hexadecimal digits that cover all files of the model: `CompiledModel.digest`, or what
            `stormdrop tune` printed. Keep them where nobody who can write the folder can change them.

    Raises:
        ArtifactError: The folder holds no model or one with another digest, or its model does not run on this machine
            or with this TVM.

    Example:
        ```python
        import stormdrop as sd

        model = sd.load("resnet50.sd")
        y = model(x)
        ```
    """
    threads.configure()
    from .artifact import CompiledModel

    return CompiledModel.load(folder, digest)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    threads.configure()
    from . import artifact
    from . import tune as tuning

    return getattr(artifact if name == "CompiledModel" else tuning, name)
