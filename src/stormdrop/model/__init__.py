"""A model in, a tuned model out: graph, tasks, the compiled model and its verification.

tune.py, tuning_run.py                      `sd.tune_model`
untuned.py                                  `sd.compile_model`
quantize.py                                 `stormdrop quantize`
lowering.py, precision.py                   a model in bfloat16: how much of it, and which values
attention.py                                the kernels of an attention as one, where that pays
importer/                                   from a user's model to a graph of tasks
passes/                                     rewrites of a model's Relax code
scheduler.py, gain.py, budget.py            the budget of a tuning, shared out to the tasks
tuned_task.py, fallback.py                  the tasks after their tuning; a plain schedule for what no sketch takes
expressions.py                              what is asked of the expressions of its Relax code
choice.py, selection.py                     which finalist is the fastest inside the model
latency.py                                  the last timing of the model
builder.py, compile.py, kernel_library.py   a graph with the chosen schedules, compiled
verify.py, verification/                    whether it computes what its origin does
repair.py, saving.py                        exact schedules for what is wrong; saving what was verified
result.py, sized_result.py, tuning_file.py  what a tuning returns, and what it leaves in the model's folder

The compiled model:

artifact.py                            called, and saved to a folder
loading.py                             loaded from there
artifact_files.py, atomic_folder.py    the files of the folder, and how it is replaced in one step
metadata.py                            what a model says about itself
program.py, constants_file.py          what TVM executes, and its large constants in a file that is mapped
tensors.py                             tensors, arrays and parts of files that share their memory
call_inputs.py, machines.py            the inputs of a call, and the virtual machines that serve calls
casting.py                             samples and fixed values in the types of its inputs
callers.py                             the thread that a call runs in
board.py                               the same on the machine behind a runner
foreign.py                             its parts that onnxruntime runs
phases.py, profile.py, call_record.py  where its time goes, and that of its tuning
random_weights.py                      weights for a model that came without
"""

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
