"""Statements of TensorIR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.tirx import For, ForKind, SeqStmt

from .expressions import Expr
from .stages import variable


def loop(extent: int, body: Callable[[Expr], Any], kind: Any = ForKind.SERIAL) -> Any:
    """A loop over a statement that is made of the loop's index."""
    index = variable("i")
    return For(index, 0, extent, kind, body(index))


def sequence(statements: Sequence[Any]) -> Any:
    """One statement of several."""
    return statements[0] if len(statements) == 1 else SeqStmt(list(statements))
