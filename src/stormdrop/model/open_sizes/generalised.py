"""One function in the place of several that differ in numbers only: what it is at any size.

    for i in range(37): y[i] = x[i, 0:111]          for i in range(n): y[i] = x[i, 0:3 * n]
    for i in range(41): y[i] = x[i, 0:123]    ->

The functions are those of a model at a few sizes, the probes: as imported, or as scheduled. Where all of them have one
number, it stays. Where they differ, it becomes terms in the parameters (`probes`). If they differ in anything else,
they are not one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.ir.prim.expr import IntImm
from tvm.tirx import For, ForKind, PrimFunc
from tvm_ffi import StructuralKey, structural_equal, structural_map, structural_walk

from ...errors import UnsupportedFunction
from ...ir.expressions import as_type
from ...runtime.open_size import Sizes, Terms
from .probes import Probes

_FIXED = (ForKind.VECTORIZED, ForKind.UNROLLED)
"""The loops that are none at run time."""


class OpenFunction:
    """A function whose numbers depend on the parameters.

    Args:
        functions: The function at each probe.
        probes: The probes.

    Attributes:
        parameters: The names of the parameters.

    Raises:
        UnsupportedFunction: The functions differ in more than numbers, or in a number that no terms give.
    """

    def __init__(self, functions: Sequence[PrimFunc], probes: Probes) -> None:
        self._first, self.parameters = functions[0], probes.parameters
        lists = [numbers_of(function) for function in functions]
        if len(set(map(len, lists))) > 1:
            raise UnsupportedFunction("it has other statements at another size")
        places = list(zip(*lists, strict=True))
        known = {numbers: probes.terms(numbers) for numbers in set(places) if len(set(numbers)) > 1}
        self._terms = [known.get(numbers) for numbers in places]
        for function, sizes in zip(functions, probes.sizes, strict=True):
            if not structural_equal(self.at(sizes), function):
                raise UnsupportedFunction("it computes something else at another size")

    def at(self, sizes: Sizes) -> PrimFunc:
        """The function at these sizes."""
        return self._changed(lambda number, terms: IntImm(str(number.ty.dtype), terms.at(sizes)))

    def with_variables(self) -> PrimFunc:
        """The function with expressions of variables, which the shapes of its arguments define.

        Raises:
            UnsupportedFunction: No argument has a parameter as an extent, or a vector would have as many elements.
        """
        dtype = str(self._first.params[0].ty.shape[0].ty.dtype)  # an extent that defines a variable has its type
        variables = {name: tvm.ir.Var(name, dtype) for name in self.parameters}
        needed = {name for terms in self._terms if terms for names, _ in terms.factors for name in names}
        function = self._changed(lambda number, terms: _expression(terms, variables, str(number.ty.dtype)))
        extents = [extent for each in function.params for extent in each.ty.shape]
        for name in needed:
            if not any(variables[name].same_as(extent) for extent in extents):
                raise UnsupportedFunction(f"none of its arguments has {name} as an extent")
        loops: list[For] = []
        structural_walk(function.body, (For, loops.append))
        if any(loop.kind in _FIXED and not isinstance(loop.extent, IntImm) for loop in loops):
            raise UnsupportedFunction("a vector or an unrolled loop of it has an open extent")
        return function

    def _changed(self, change: Callable[[IntImm, Terms], Any]) -> PrimFunc:
        places = iter(self._terms)

        def changed(number: IntImm) -> Any:
            terms = next(places)
            return number if terms is None else change(number, terms)

        result: PrimFunc = structural_map(self._first, ((IntImm, changed),))
        return result


def outline(function: PrimFunc) -> StructuralKey:
    """What a function is without its numbers."""
    return StructuralKey(structural_map(function, ((IntImm, lambda number: IntImm(str(number.ty.dtype), 0)),)))


def numbers_of(function: PrimFunc) -> list[int]:
    """All whole numbers of a function, in the order in which `structural_map` meets them."""
    found: list[int] = []

    def note(number: IntImm) -> IntImm:
        found.append(int(number))
        return number

    structural_map(function, ((IntImm, note),))
    return found


def _expression(terms: Terms, variables: dict[str, Any], dtype: str) -> Any:
    """Terms as an expression of TensorIR."""
    total: Any = IntImm(dtype, 0)
    for position, (names, factor) in enumerate(terms.factors):
        product = IntImm(dtype, factor)
        for name in names:
            variable = as_type(variables[name], dtype)
            product = variable if _is_one(product) else product * variable
        total = total + product if position else product
    if terms.divisor > 1:
        total = total // terms.divisor
    if terms.times > 1:
        total = total * terms.times
    return total


def _is_one(product: Any) -> bool:
    return isinstance(product, IntImm) and int(product) == 1
