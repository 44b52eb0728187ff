"""stormdrop: near-peak tensor kernels in seconds.

    tune           search the schedules of one operator or TensorIR function, measure, return the best
    tune_model     the same for every kernel of a model: ONNX, torch or Relax; returns a compiled model
    compile_model  a model with recorded or default schedules, in seconds: nothing is measured
    minimize       the same for any Python callable, over a Space of Ordinal, Categorical, Tile and Split knobs
    autotune       a decorator that finds the block sizes and flags of a Python function
    load           a saved compiled model
    Decoder        a language model with its cache: tokens in, tokens out
    bench          an operator or a model beside its peers, interleaved, with intervals
    operators      the operators that can be tuned: `operators.matmul(512, 512, 512)`
    parse_machine  the machine that is tuned for, by its name: a `Cpu`, or a GPU
    peak           the machine's measured limits
    open_store     the database of everything that was ever measured
    template       makes a sketch of a function of yours that schedules a kernel and declares knobs as it goes
    rules          sketches derived by rules, and how to add your own (docs/how-to/write-a-schedule.md)

Names are loaded when they are first used: TVM settles its number of threads when it is loaded, and that number
must be set before (see `threads`). `import stormdrop` alone loads nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import InputError, StormdropError

if TYPE_CHECKING:
    from . import operators
    from .bench.bench import bench
    from .machine.cpu import Cpu, Target, parse_machine
    from .machine.limits.peak import peak
    from .model import compile_model, load, tune_model
    from .model.decoder import Decoder
    from .model.inputs.size_range import Range
    from .records import open_store
    from .runtime.decoding import Sampling
    from .sketches import rules
    from .sketches.template import template
    from .space import Categorical, Constraint, Ordinal, Space, Split, Tile
    from .tuning.functions.autotune import autotune
    from .tuning.minimize import minimize
    from .tuning.result import Progress
    from .tuning.tune import tune

__all__ = [
    "Categorical",
    "Constraint",
    "Cpu",
    "Decoder",
    "InputError",
    "Ordinal",
    "Progress",
    "Range",
    "Sampling",
    "Space",
    "Split",
    "StormdropError",
    "Target",
    "Tile",
    "__version__",
    "autotune",
    "bench",
    "compile_model",
    "load",
    "minimize",
    "open_store",
    "operators",
    "parse_machine",
    "peak",
    "rules",
    "template",
    "tune",
    "tune_model",
]

_HOME = {
    "Categorical": ".space:Categorical",
    "Constraint": ".space:Constraint",
    "Cpu": ".machine.cpu:Cpu",
    "Decoder": ".model.decoder:Decoder",
    "Ordinal": ".space:Ordinal",
    "Progress": ".tuning.result:Progress",
    "Range": ".model.inputs.size_range:Range",
    "Sampling": ".runtime.decoding:Sampling",
    "Space": ".space:Space",
    "Split": ".space:Split",
    "Target": ".machine.cpu:Target",
    "Tile": ".space:Tile",
    "autotune": ".tuning.functions.autotune:autotune",
    "bench": ".bench.bench:bench",
    "compile_model": ".model:compile_model",
    "load": ".model:load",
    "minimize": ".tuning.minimize:minimize",
    "open_store": ".records:open_store",
    "operators": ".operators:",
    "parse_machine": ".machine.cpu:parse_machine",
    "peak": ".machine.limits.peak:peak",
    "rules": ".sketches.rules:",
    "template": ".sketches.template:template",
    "tune": ".tuning.tune:tune",
    "tune_model": ".model:tune_model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .machine import threads

    threads.configure()
    module, _, attribute = _HOME[name].partition(":")
    home = importlib.import_module(module, __name__)
    value = getattr(home, attribute) if attribute else home
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """This package, whose functions `tune`, `minimize` and `bench` are called like the modules that they live in.

    Importing a submodule binds it as an attribute of its package; for a public name that would hide the
    function behind the module, depending on what was imported first.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by its name, as other modules are by cloudpickle: sketches of a user's script may name it."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
