"""A model in, a tuned model out. The rooms from the lowest to the highest; each imports lower ones only.

program/                    what a compiled model is: calls of kernels on planned memory, as plain data
tensors.py                  tensors and arrays that share their memory
native/                     a program as a shared library with a C interface
artifact/                   the compiled model: called, saved to a folder, loaded again
profile.py, call_record.py  where its time goes
inputs/                     the inputs of a model: sizes, fixed values, samples
onnx/                       an ONNX model as it is read, before anything is compiled
graph/                      a model as calls to a few distinct kernels, the tasks; what it was imported from
passes/                     rewrites of its Relax code
importer/                   from a user's model to a graph
verification/               whether a compiled model computes what its origin does
precision/                  a model in bfloat16: how much of it, and which values
open_sizes/                 its program and kernels at any size of a range
states/                     states of decoders that are written in place
building/                   a graph with a schedule for each task, compiled, verified and saved
tuning/                     `sd.tune_model`: the budget, the choice, the last timing
padding.py                  calls between its sizes, padded beside a mask
untuned.py                  `sd.compile_model`
decoder.py                  `sd.Decoder`: one with a cache generates tokens
kept_models.py              compiled models that later processes find by a key
quantize.py                 `stormdrop quantize`
random_weights.py           weights for a model that came without
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine.threads import configure

if TYPE_CHECKING:
    from .artifact.artifact import CompiledModel
    from .padding import PaddedModel
    from .tuning.result import ModelResult
    from .tuning.tune import tune_model
    from .untuned import compile_model

__all__ = ["CompiledModel", "ModelResult", "PaddedModel", "compile_model", "load", "tune_model"]

_HOME = {
    "CompiledModel": "artifact.artifact",
    "ModelResult": "tuning.result",
    "PaddedModel": "padding",
    "compile_model": "untuned",
    "tune_model": "tuning.tune",
}


def load(folder: str | Path, digest: str | None = None, threads: int | None = None) -> CompiledModel:
    """Loads a saved model. Several threads may call it at the same time.

    This runs code of the folder: load only what you trust, or give the digest that the model must have. Nothing of the
    folder runs if it has another one.

    Args:
        folder: What `CompiledModel.save` or `stormdrop tune --out` wrote.
        digest: 64 hexadecimal digits that cover all files of the model: `CompiledModel.digest`, or what
            `stormdrop tune` printed. Keep them where nobody who can write the folder can change them.
        threads: The most threads that one call uses, the calling thread included; all usable cores by default.

    Raises:
        ArtifactError: The folder holds no model or one with another digest, or its model does not run on this machine,
            or not with this TVM, which native models do without.
        InputError: `digest` is no digest, or `threads` is no number from 1 to the usable cores.

    Example:
        ```python
        import stormdrop as sd

        model = sd.load("resnet50.sd")
        y = model(x)
        ```
    """
    configure()
    from .artifact.artifact import CompiledModel

    return CompiledModel.load(folder, digest, threads)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    configure()
    home = importlib.import_module(f".{_HOME[name]}", __name__)
    return getattr(home, name)
