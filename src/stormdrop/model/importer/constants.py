"""Takes the constants out of a module, so that its code and its weights can be stored apart, and stores them.

The file of the constants holds their bytes, each from a multiple of a page on: whoever reads it maps them.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ..passes.rewriting import ALIGNMENT, array_of, tensor_of
from .weights import mapped

_SMALL = 1 << 12  # bytes of a constant that does not begin a page


def without_constants(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, Any]]:
    """The module whose `main` takes its constants as further parameters, and the constants by the parameters' names.

    `Function.bind_params` puts them back.

    Example:
        main(x): conv2d(x, <weights>)   ->   main(x, constant_0): conv2d(x, constant_0), {"constant_0": <weights>}
    """
    main = mod["main"]
    names = {parameter.name for parameter in main.params}
    lifted = _Lift(names)
    body = lifted.visit_expr(main.body)
    function = relax.Function([*main.params, *lifted.variables], body, main.ret_ty, main.is_pure, main.attrs, main.span)
    result = tvm.IRModule(dict(mod.functions.items()))
    result["main"] = function
    return result, lifted.values


class ConstantsWriter:
    """Writes constants to a file.

    Args:
        file: The file, which is made.
        several: Constants of several modules will be written: of equal ones, one.
    """

    def __init__(self, file: Path, several: bool) -> None:
        self._out = file.open("wb")
        self._several = several
        self._known: dict[object, int] = {}

    def write(self, constants: Iterable[Any]) -> tuple[int, ...]:
        """Writes TVM's tensors. Returns where each one begins in the file.

        Raises:
            OSError: The file cannot be written.
        """
        offsets = tuple(map(self._written, constants))
        self._out.flush()
        return offsets

    def _written(self, constant: Any) -> int:
        value = array_of(constant)
        if not value.size:
            return 0  # the type says all of it
        data = value.reshape(-1).view(np.uint8).data
        # To find out which constants are equal takes time, and is in vain for one module.
        key = (hashlib.blake2b(data).digest(), str(value.dtype), value.shape) if self._several else object()
        if key not in self._known:
            self._out.write(bytes(-self._out.tell() % (ALIGNMENT if len(data) < _SMALL else mmap.PAGESIZE)))
            self._known[key] = self._out.tell()
            self._out.write(data)
        return self._known[key]

    def __enter__(self) -> ConstantsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()


class ConstantsReader:
    """Reads constants from a file. They are mapped, and stay valid if the file is removed.

    Args:
        file: What a `ConstantsWriter` has written.
    """

    def __init__(self, file: Path) -> None:
        self._bytes = mapped(file, np.uint8, 0, (size,)) if (size := file.stat().st_size) else np.zeros(0, np.uint8)
        self._known: dict[int, Any] = {}

    def read(self, offset: int, kind: relax.TensorType) -> Any:
        """The tensor of a type at a place in the file: the same one for each call."""
        shape, dtype = [int(extent) for extent in kind.shape], str(kind.dtype)
        size = math.prod(shape) * tvm.DataType(dtype).itemsize
        if not size:
            return tvm.runtime.empty(shape, dtype)
        if offset not in self._known:
            data = tensor_of(self._bytes[offset : offset + size])
            self._known[offset] = data._create_view(shape, dtype)
        return self._known[offset]


@relax.expr_functor.mutator
class _Lift(relax.PyExprMutator):
    def __init__(self, taken: set[str]) -> None:
        super().__init__()
        self.variables: list[relax.Var] = []
        self.values: dict[str, Any] = {}
        self._taken = taken
        self._known: dict[GenericConst, relax.Var] = {}

    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        if op in self._known:
            return self._known[op]
        name = f"constant_{len(self.variables)}"
        while name in self._taken:
            name += "_"
        variable = relax.Var(name, op.ty)
        self.variables.append(variable)
        self.values[name] = op.value
        self._known[op] = variable
        return variable
