from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from stormdrop.model.artifact.metadata import FallbackReport, Metadata, Work
from stormdrop.runtime.sizes import TensorInfo

CHECKSUMS = {"program.json": "1" * 64, "kernels.bc": "2" * 64}
METADATA = Metadata(
    name="tiny",
    inputs=(TensorInfo("x", (1, 3, 8, 8), "float32"), TensorInfo("mask", (4,), "int64")),
    outputs=(TensorInfo("y", (1, 10), "float32"),),
    target={"name": "cpu", "cores": 2},
    cpu="Some CPU",
    features=("avx2", "fma"),
    fallbacks=(FallbackReport("pool", 2, "parallel"),),
    provenance={"seed": 2**70, "source": "\udcff.onnx", "schedules": [{"config": {"tile": [4, 8]}, "error": 1e-7}]},
    kernels={"conv": Work(2e9, 1e6)},
    anywhere=("x",),
)
TEXT = METADATA.to_json(CHECKSUMS)
VALUES: list[Any] = [None, True, -1, 0, 1.5, 2**31, 10**30, 1e999, float("nan"), "", "x", [], ["x", "x"], {}, {"x": 1}]
WRONG_FILE = [
    b"", b"\xff\xfe{}", b"{", b"null", b"[]", b"1", b'"x"', b'{"format": 1}', b'{"format": 2}', b"[" * 100_000,
    b'{"format": 1, "name": ' + b"[" * 100_000, b'{"format": 1, "cpu": ' + b"9" * 5000 + b"}", TEXT.encode("utf-16"),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutants(document: Any) -> Iterator[Any]:
    """The document with one value replaced, removed or repeated, for every value and every replacement."""
    for path in places(document):
        for value in [*VALUES, "remove", "repeat"]:
            mutant = copy.deepcopy(document)
            *parents, key = path
            parent = mutant
            for step in parents:
                parent = parent[step]
            if value == "remove":
                del parent[key]
            elif value == "repeat":
                if not isinstance(parent, list):
                    continue
                parent.append(parent[key])
            else:
                parent[key] = value
            if mutant != document:
                yield mutant


def refused(data: bytes) -> bool:
    """Whether the content is refused, in one line."""
    try:
        Metadata.from_json(data)
    except ValueError as error:
        return bool(str(error)) and "\n" not in str(error)
    return False


def test_metadata_survives() -> None:
    metadata, checksums, digest = Metadata.from_json(TEXT.encode())
    assert metadata == METADATA and checksums == CHECKSUMS
    assert json.loads(TEXT)["digest"] == digest


def test_the_digest_covers_everything() -> None:
    def digest(metadata: Metadata, **checksums: str) -> str:
        return Metadata.from_json(metadata.to_json({**CHECKSUMS, **checksums}).encode())[2]

    others = [
        digest(METADATA),
        digest(METADATA, **{"program.json": "3" * 64}),
        digest(METADATA, **{"kernels.bc": "3" * 64}),
        digest(replace(METADATA, cpu="Other")),
        digest(replace(METADATA, provenance={})),
    ]
    assert len(set(others)) == 5


@pytest.mark.parametrize("data", WRONG_FILE, ids=lambda data: repr(data[:12]))
def test_another_file(data: bytes) -> None:
    assert refused(data)


def test_every_accident_is_noticed() -> None:
    """Whatever is changed in a value or a byte of the file, its digest differs."""
    document = json.loads(TEXT)
    tried = [json.dumps(mutant, indent=2).encode() + b"\n" for mutant in mutants(document) if "digest" in mutant]
    rng = random.Random(0)
    for _ in range(200):
        data = bytearray(TEXT.encode())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        tried.append(bytes(data))
    assert len(tried) > 600
    assert [data for data in tried if not refused(data)] == []


def test_metadata_without_a_digest_is_one_that_a_model_can_have() -> None:
    """Models of version 0.1 have no digest: the types and limits of all values are checked."""
    document = json.loads(TEXT)
    del document["digest"]
    taken = 0
    for mutant in mutants(document):
        data = json.dumps(mutant).encode()
        if refused(data):
            continue
        taken += 1
        metadata, checksums, _ = Metadata.from_json(data)
        again, *_ = Metadata.from_json(metadata.to_json(checksums).encode())
        assert again == metadata
        for infos in (metadata.inputs, metadata.outputs):
            assert len({info.name for info in infos}) == len(infos)
            least = 0 if infos is metadata.inputs else -1  # a dimension of an output may depend on data
            assert all(type(size) is int and least <= size < 2**31 for info in infos for size in info.shape)
    assert taken > 50


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("inputs", 0, "shape", 1), -3, "'x' has an impossible shape"),
        (("inputs", 0, "shape", 1), -1, "input 'x' has an open dimension"),
        (("inputs", 0, "shape"), [2**30, 2**30], "'x' has an impossible shape"),
        (("inputs", 0, "shape"), None, r"\$.inputs\[0\].shape"),
        (("inputs", 1, "name"), "x", "'x' is there twice"),
        (("inputs", 0, "dtype"), "object", "'x' has an unknown type: 'object'"),
        (("kernels", "conv", "flops"), float("inf"), "Infinity, which is no finite number"),
        (("features",), "avx2", r"\$.features"),
        (("tvm",), None, r"\$.tvm"),
        (("format",), 99, "it is of format 99, not 2"),
        (("checksums", "program.json"), 1, "checksums"),
    ],
)
def test_the_message_says_where(path: tuple[Any, ...], value: Any, words: str) -> None:
    document = json.loads(TEXT)
    del document["digest"]
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=words):
        Metadata.from_json(json.dumps(document).encode())


def test_metadata_holds_finite_numbers_only() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(METADATA, provenance={"error": float("nan")}).to_json({})
