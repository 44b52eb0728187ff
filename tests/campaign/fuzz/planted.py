"""Faults on purpose, in the import of a model: the campaign must find each, and shrink what shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from stormdrop.model.importer.frontend import _Importer

Alter = Callable[[list[Any], dict[str, Any]], None]


def wrong_padding() -> None:
    """Convolutions are padded in front as they should be behind, and the other way round."""

    def alter(_: list[Any], attributes: dict[str, Any]) -> None:
        pads = list(attributes.get("pads", ()))
        attributes["pads"] = [*pads[len(pads) // 2 :], *pads[: len(pads) // 2]]

    _alter("Conv", alter)


def dropped_bias() -> None:
    """Products have no bias."""

    def alter(inputs: list[Any], _: dict[str, Any]) -> None:
        inputs[2:] = [None] * len(inputs[2:])

    _alter("Gemm", alter)


def swapped_axis() -> None:
    """The two last axes of a transposition are swapped."""

    def alter(_: list[Any], attributes: dict[str, Any]) -> None:
        order = list(attributes.get("perm", ()))
        attributes["perm"] = [*order[:-2], *reversed(order[-2:])]

    _alter("Transpose", alter)


def _alter(operator: str, alter: Alter) -> None:
    """Changes what the importer is told of the nodes of an operator."""
    right = _Importer._convert_operator

    def wrong(self: _Importer, name: str, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
        if name == operator:
            inputs, attributes = list(inputs), dict(attributes)
            alter(inputs, attributes)
        return right(self, name, inputs, attributes, opset)

    _Importer._convert_operator = wrong  # type: ignore[assignment, method-assign]


def crash() -> None:
    """A Softmax ends the process."""
    _alter("Softmax", lambda *_: os.abort())


def hang() -> None:
    """A Softmax takes for ever."""
    _alter("Softmax", lambda *_: time.sleep(3600))
