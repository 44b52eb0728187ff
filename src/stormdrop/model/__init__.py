"""ONNX in, tuned model out: graph, tasks, the compiled model and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine import threads

if TYPE_CHECKING:
    from .artifact import CompiledModel
    from .tune import ModelResult, tune_model

__all__ = ["DEFAULT_SECONDS", "CompiledModel", "ModelResult", "load", "tune_model"]

DEFAULT_SECONDS = 600.0
"""Wall time of a model's tuning that is given neither trials nor time."""


def load(folder: str | Path) -> CompiledModel:
    """A saved model, on all usable cores. Raises `ArtifactError` where it cannot be loaded here."""
    threads.configure()
    from .artifact import CompiledModel

    return CompiledModel.load(folder)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    threads.configure()
    from . import artifact
    from . import tune as tuning

    return getattr(artifact if name == "CompiledModel" else tuning, name)
