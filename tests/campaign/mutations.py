"""Damages files on purpose: fields of protocol buffers, values of JSON documents, and bytes."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Rng = np.random.Generator

_INTEGERS = [0, 1, -1, 2, 3, 7, 16, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]
_FLOATS = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-45, 3e38]
_TEXTS = ["", " ", "x", "\n", "\x1b[2J", "../..", "/etc/passwd", "a.b/c:0", "0", "-1", "w" * 100_000, "é\u202e"]
_VALUES: list[Any]
_VALUES = [None, True, False, "", "x", [], {}, [[]], -1, 0, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e-320, 1e308]
_VALUES += [math.nan, math.inf, -math.inf, 1 << 61, 1 << 32]


def mutate_bytes(content: bytes, rng: Rng) -> bytes:
    """Changes, removes, repeats or inserts a few bytes, or cuts the end off."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data) + 1))
        length = int(rng.integers(1, 1 + min(64, max(1, len(data) // 4))))
        match rng.integers(5):
            case 0 if at < len(data):
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length] * int(rng.integers(1, 50))
            case 3:
                data[at:at] = rng.bytes(length)
            case _:
                del data[at:]
    return bytes(data)


def mutate_message(message: Message, rng: Rng) -> str:
    """Changes one field anywhere in a message. Returns what was changed."""
    messages = _within(message)
    chosen = messages[rng.integers(len(messages))]
    # Fields that are set, mostly: others are rarely read.
    fields = [field for field, _ in chosen.ListFields()]
    if not fields or rng.random() < 0.2:
        fields = list(chosen.DESCRIPTOR.fields)
    field = fields[rng.integers(len(fields))]
    if field.is_repeated:
        _mutate_repeated(getattr(chosen, field.name), field, messages, rng)
    elif field.message_type is not None:
        donors = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if donors and rng.random() < 0.6:
            getattr(chosen, field.name).CopyFrom(_copy(donors[rng.integers(len(donors))]))
        else:
            chosen.ClearField(field.name)
    elif rng.random() < 0.2:
        chosen.ClearField(field.name)
    else:
        _set(chosen, field.name, _scalar(field, getattr(chosen, field.name), messages, rng))
    return f"{chosen.DESCRIPTOR.name}.{field.name}"


def mutate_json(document: Any, rng: Rng) -> Any:
    """Replaces, removes, repeats or nests a value anywhere in a JSON document."""
    places = list(_places(document))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(_VALUES[rng.integers(len(_VALUES))])
    owner, key = places[rng.integers(len(places))]
    match rng.integers(6):
        case 0:
            del owner[key]
        case 1:
            other, other_key = places[rng.integers(len(places))]
            owner[key] = json.loads(json.dumps(other[other_key])) if _reaches(other, other_key) else None
        case 2 if isinstance(owner, list):
            owner.extend(json.loads(json.dumps(owner[key])) for _ in range(3))
        case 3 if isinstance(owner, dict):
            owner[_TEXTS[rng.integers(len(_TEXTS))]] = owner.pop(key)
        case 4:
            value: Any = owner[key]
            for _ in range(int(rng.integers(1, 50))):
                value = [value]
            owner[key] = value
        case _:
            # A copy: a list that several places share comes to hold itself, and carries changes from file to file.
            owner[key] = copy.deepcopy([*_VALUES, *_TEXTS][rng.integers(len(_VALUES) + len(_TEXTS))])
    return document


def _within(message: Message) -> list[Message]:
    found, pending = [], [message]
    while pending:
        current = pending.pop()
        found.append(current)
        for field, value in current.ListFields():
            if field.message_type is not None:
                pending.extend(value if field.is_repeated else [value])
    return found


def _mutate_repeated(values: Any, field: FieldDescriptor, messages: list[Message], rng: Rng) -> None:
    position = int(rng.integers(len(values))) if len(values) else 0
    action = rng.integers(4)
    if field.message_type is not None:
        donors = [other for other in messages if other.DESCRIPTOR is field.message_type]
        if action == 0 and len(values):
            del values[position]
        elif action == 1 and len(values) > 1:
            other = int(rng.integers(len(values)))
            first, second = _copy(values[position]), _copy(values[other])
            values[position].CopyFrom(second)
            values[other].CopyFrom(first)
        elif donors:
            values.add().CopyFrom(_copy(donors[rng.integers(len(donors))]))
        return
    if action == 0 and len(values):
        del values[position]
    elif action == 1:
        values.extend(list(values)[: 1 << 16])
    else:
        old = values[position] if len(values) else field.default_value
        new = _scalar(field, old if len(values) else None, messages, rng)
        try:
            if len(values):
                values[position] = new
            else:
                values.append(new)
        except (ValueError, TypeError):
            values.extend(list(values)[:1])


def _scalar(field: FieldDescriptor, old: Any, messages: list[Message], rng: Rng) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return int(rng.integers(0, 30))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return _FLOATS[rng.integers(len(_FLOATS))]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(old or b"", rng)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        texts = [text for message in messages for text in _names(message)]
        return texts[rng.integers(len(texts))] if texts and rng.random() < 0.7 else _TEXTS[rng.integers(len(_TEXTS))]
    near = [] if old is None else [old - 1, old + 1, -old, 2 * old]
    return [*_INTEGERS, *near][rng.integers(len(_INTEGERS) + len(near))]


def _names(message: Message) -> list[str]:
    names: list[str] = []
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            names.extend(value if field.is_repeated else [value])
    return names


def _set(message: Message, name: str, value: Any) -> None:
    try:
        setattr(message, name, value)
    except (ValueError, TypeError):  # the integer is too large for this field, or the enum is closed
        message.ClearField(name)


def _copy(message: Message) -> Message:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every value of a JSON document as the object or list that holds it, and its key there."""
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        owner = pending.pop()
        keys = list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ()
        for key in keys:
            found.append((owner, key))
            pending.append(owner[key])
    return found


def _reaches(owner: Any, key: Any) -> bool:
    return key in owner if isinstance(owner, dict) else key < len(owner)
