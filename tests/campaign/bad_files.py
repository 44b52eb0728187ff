"""Damages files by the thousand and reads them: ONNX models, space files and records.

    python tests/campaign/bad_files.py --out FOLDER --count 5000 [--kind onnx] [--seed 0]

Each file must either be read, or be refused with one line of a `StormdropError`. Anything else is a finding: another
exception, a message of several lines, the end of this process. The import of an ONNX model runs in a child with bounds.
Its crash, and a bound that it passes, is one line by contract; these are counted apart, as "bounded".

Results are written as JSON lines, one for each file, as they come. A campaign that was interrupted goes on where it
was, because file number n depends on the seed and on n alone. The file of each finding is kept beside the results.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from mutations import mutate_bytes, mutate_json, mutate_message
from onnx import helper

from stormdrop.errors import StormdropError
from stormdrop.machine.process.child_process import ChildProcess
from stormdrop.machine.process.memory import limit_memory
from stormdrop.model.importer.isolated import Importer
from stormdrop.model.random_weights import seed_weights
from stormdrop.records import Problem, Setting, State, StoredSession, StoredTrial, write_lines
from stormdrop.space import Categorical, Ordinal, Space, Split, Tile
from stormdrop.trial import Measurement, Phases, Status

KINDS = ("onnx", "space", "records")
SECONDS = 60.0
"""A file that is not read by then is a finding (or bounded, if a child reads it)."""
MEMORY = 6 << 30

_MODEL_TESTS = Path(__file__).parents[1] / "model"
_SLOW = {"deep_chain", "doubling"}
_BOUNDED = ("crashed", "takes more than", "needs more than")


# What is damaged


def attention_model() -> onnx.ModelProto:
    """Computations on shapes, products of matrices, a softmax, a gather, an If: what transformers are made of."""
    from tiny_models import make_model

    branch = [
        helper.make_graph(
            [helper.make_node(operator, ["s"], [f"r_{operator}"])],
            operator,
            [],
            [helper.make_tensor_value_info(f"r_{operator}", onnx.TensorProto.FLOAT, (1, 6, 6))],
        )
        for operator in ("Relu", "Neg")
    ]
    integers = {"perm": [1, -1], "zero": [0], "last": 5, "two": [2], "six": [1, 6, 6]}
    extra = [onnx.numpy_helper.from_array(np.array(value, np.int64), name) for name, value in integers.items()]
    extra.append(onnx.numpy_helper.from_array(np.array(True), "truth"))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["k"], "keys"),
        helper.make_node("Transpose", ["k"], ["t"], "turned", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["s"], "softmax", axis=-1),
        helper.make_node("If", ["truth"], ["i"], "if", then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Shape", ["i"], ["shape"], "shape"),
        helper.make_node("Slice", ["shape", "zero", "two"], ["rows"], "rows"),
        helper.make_node("Concat", ["rows", "two", "zero"], ["unused"], "joined", axis=0),
        helper.make_node("Reshape", ["i", "six"], ["j"], "reshaped"),
        helper.make_node("Gather", ["j", "last"], ["g"], "picked", axis=1),
        helper.make_node("Pow", ["g", "exponent"], ["p"], "power"),
        helper.make_node("ReduceMean", ["p"], ["y"], "mean", axes=[-1], keepdims=1),
    ]
    extra.append(onnx.numpy_helper.from_array(np.array(2.0, np.float32), "exponent"))
    return make_model(nodes, {"w": (4, 4)}, {"x": (1, 6, 4)}, {"y": (1, 1)}, extra=extra)


@cache
def _models() -> tuple[onnx.ModelProto, ...]:
    """The models that are damaged: proper ones more often than those that are hostile before."""
    for folder in (_MODEL_TESTS, _MODEL_TESTS / "importer"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    from hostile_models import MODELS
    from tiny_models import residual_model

    hostile = [make() for name, make in sorted(MODELS.items()) if name not in _SLOW]
    proper = [seed_weights(residual_model()), seed_weights(attention_model())]
    return (*(proper * 10), *hostile)


def _space_file() -> dict[str, Any]:
    cache = {
        f"{x},{mode}": {"x": x, "mode": mode, "time": x + 0.5, "times": [x + 0.25, x + 0.75], "compile_time": 100.0}
        for x in (1, 2, 4)
        for mode in ("a", "b")
    }
    cache["4,b"] = {"x": 4, "mode": "b", "time": "RuntimeFailedConfig"}
    return {
        "kernel_name": "k",
        "tune_params_keys": ["x", "mode"],
        "tune_params": {"x": [1, 2, 4], "mode": ["a", "b"]},
        "cache": cache,
    }


def _records() -> list[Any]:
    """The lines of a file of records as JSON documents."""
    knobs = [
        Tile("tile", 24, 2),
        Split("split", 17, [[1, 2, 4]]),
        Categorical("order", ["ij", "ji"]),
        Ordinal("n", [1, 4]),
    ]
    space = Space("s", knobs)
    points = list(space.points())[:12]
    setting = Setting("grid", 0, {"s": "1"}, method={"spaces": {"s": space.describe()}})
    problem = Problem("ab" * 32, "def main", "matmul m=8", "llvm", "a CPU, 2 cores")
    session = StoredSession(
        str(uuid.UUID(int=1)), problem, setting, "2025-01-01T00:00:00.000000+00:00", State.INTERRUPTED
    )
    trials = [
        StoredTrial(
            0, position, "s", "1", space.config(point), Measurement(Status.OK, (1.0 + position,), phases=Phases(0.1))
        )
        for position, point in enumerate(points)
    ]
    out = io.BytesIO()
    write_lines([(session, trials)], out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def damaged(kind: str, seed: int, number: int) -> tuple[bytes, str, str]:
    """File `number` of a campaign: its content, the suffix of its name, and how it was damaged."""
    rng = np.random.default_rng([seed, KINDS.index(kind), number])
    times = int(rng.integers(1, 5))
    if kind == "onnx":
        models = _models()
        model = onnx.ModelProto()
        model.CopyFrom(models[rng.integers(len(models))])
        how = [mutate_message(model, rng) for _ in range(times)] if rng.random() < 0.85 else []
        content = model.SerializeToString()
        return (content, ".onnx", ", ".join(how)) if how else (mutate_bytes(content, rng), ".onnx", "bytes")
    document: Any = _space_file() if kind == "space" else _records()
    if rng.random() < 0.2:
        content, how = mutate_bytes(_text(kind, document), rng), ["bytes"]
    else:
        for _ in range(times):
            document = mutate_json(document, rng)
        content, how = _text(kind, document), ["values"]
    suffix = ".json" if kind == "space" else ".jsonl"
    if rng.random() < 0.1:
        content, suffix, how = gzip.compress(content), f"{suffix}.gz", [*how, "gzip"]
        content = mutate_bytes(content, rng) if rng.random() < 0.5 else content
    return content, suffix, ", ".join(how)


def _text(kind: str, document: Any) -> bytes:
    lines = document if kind == "records" and isinstance(document, list) else [document]
    return b"\n".join(json.dumps(line).encode() for line in lines)


# How it is read


class Reader:
    """Reads damaged files, each kind in its child process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._importer = Importer(MEMORY, seconds)
        self._seconds = seconds
        self._child: ChildProcess | None = None

    def read(self, file: Path) -> dict[str, Any]:
        """What became of a file: `outcome` is "read", "refused", "bounded" or "finding"."""
        begin = time.perf_counter()
        outcome, error, message = self._imported(file) if file.suffix == ".onnx" else self._loaded(file)
        if outcome == "refused" and not (message.isprintable() and 0 < len(message) < 2000):
            outcome = "finding"
        return {
            "outcome": outcome,
            "error": error,
            "message": message[:500],
            "seconds": round(time.perf_counter() - begin, 3),
        }

    def close(self) -> None:
        """Ends the children."""
        self._importer.close()
        if self._child is not None:
            self._child.close()

    def _imported(self, file: Path) -> tuple[str, str, str]:
        outcome, error, message = attempt(self._importer.load, file)
        bounded = outcome == "refused" and any(words in message for words in _BOUNDED)
        return "bounded" if bounded else outcome, error, message

    def _loaded(self, file: Path) -> tuple[str, str, str]:
        if self._child is None:
            self._child = ChildProcess("bad_files:serve_recordings", (MEMORY,))
        self._child.send(str(file))
        try:
            answer: tuple[str, str, str] | None = self._child.answer(self._seconds)
        except TimeoutError:
            self._child, answer = None, ("finding", "hang", f"takes more than {self._seconds:g} s")
        if answer is None:
            assert self._child is not None
            answer = ("finding", "crash", f"{self._child.wait()}: {self._child.last_line()}")
            self._child.close()
            self._child = None
        return answer


def attempt(read: Callable[[Any], object], file: object) -> tuple[str, str, str]:
    """Reads a file: the outcome, the type of the error, and its message."""
    try:
        read(file)
    except StormdropError as error:
        return "refused", type(error).__name__, str(error)
    except Exception as error:  # noqa: BLE001  to find these is what this is for
        return "finding", type(error).__name__, str(error)
    return "read", "", ""


def serve_recordings(connection: Connection, memory: int) -> None:
    """Reads space files and records in a child process."""
    from stormdrop.compare import recordings

    def read(file: Any) -> None:
        recording = recordings.load(file)
        assert recording.optimum_seconds > 0
        for space in recording.spaces:
            assert space.contains(space.origin)

    limit_memory(memory)
    while True:
        connection.send(attempt(read, connection.recv()))


# The campaign


def run(out: Path, kind: str, count: int, seed: int = 0) -> Counter[str]:
    """Reads so many damaged files of a kind, as far as `out` has no results of them. Returns the outcomes of all."""
    out.mkdir(parents=True, exist_ok=True)
    results, current = out / f"{kind}-{seed}.jsonl", out / f"{kind}-{seed}.current"
    known = {line["number"]: line["outcome"] for line in map(json.loads, _lines(results))}
    reader = Reader()
    try:
        with results.open("a") as lines:

            def note(number: int, result: dict[str, Any], how: str) -> None:
                known[number] = result["outcome"]
                lines.write(json.dumps({"number": number, "how": how, **result}) + "\n")
                lines.flush()

            begun = int(current.read_text()) if current.exists() else None
            if begun is not None and begun not in known:
                message = "the process that read it ended"
                note(begun, {"outcome": "finding", "error": "end", "message": message, "seconds": 0.0}, "")
            for number in range(count):
                if number in known:
                    continue
                content, suffix, how = damaged(kind, seed, number)
                file = out / f"{kind}-{seed}-{number}{suffix}"
                file.write_bytes(content)
                current.write_text(str(number))
                result = reader.read(file)
                note(number, result, how)
                if result["outcome"] in ("read", "refused"):
                    file.unlink()
    except KeyboardInterrupt:
        current.unlink(missing_ok=True)  # whoever ended this found nothing
        raise
    finally:
        reader.close()
    current.unlink(missing_ok=True)
    return Counter(known.values())


def _lines(results: Path) -> list[str]:
    """The whole lines of a file of results; an interruption may have left half of one at its end."""
    text = results.read_text() if results.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        results.write_text(whole)
    return whole.splitlines()


def main() -> int:
    """Runs a campaign; the exit code is 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000, help="files of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    findings = 0
    for kind in given.kind or KINDS:
        outcomes = run(given.out, kind, given.count, given.seed)
        findings += outcomes["finding"]
        print(json.dumps({"kind": kind, "seed": given.seed, **outcomes}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
