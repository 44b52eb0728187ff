"""What all runs share, made once: a model, what it computes, an older artifact of it, and the machine's rates."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from contract import Outcome
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sandbox import LAUNCHER, Sandbox, check_end, sandbox

from stormdrop.machine.sharing.lock import MachineLock

TRIALS = 8
"""Trials of a tuning: two for each of the model's kernels."""

_SHAPE = (1, 3, 32, 32)


@dataclass(frozen=True)
class Material:
    """What all runs share.

    Attributes:
        folder: Holds the rest.
        seconds: How long an undisturbed tuning takes.
        digest: The digest of the older artifact.
    """

    folder: Path
    seconds: float
    digest: str

    @property
    def model(self) -> Path:
        """An ONNX file with four kernels."""
        return self.folder / "model.onnx"

    @property
    def expected(self) -> Path:
        """Inputs of three seeds, with extreme values, and the outputs of another runtime."""
        return self.folder / "expected.npz"

    @property
    def older(self) -> Path:
        """An artifact of the same model."""
        return self.folder / "older.sd"

    @property
    def records(self) -> Path:
        """The records of the older artifact, as lines of JSON."""
        return self.folder / "records.jsonl"

    @property
    def machine(self) -> Path:
        """What was measured of this machine."""
        return self.folder / "machine"

    def tune(self, home: Sandbox, *words: str | int) -> list[str]:
        """The words of a command that tunes the model in a sandbox."""
        options = ["--search", "random", "--trials", TRIALS, "--db", home.database, "--out", home.artifact, "--json"]
        return ["tune", str(self.model), *map(str, options), *map(str, words)]


@functools.cache
def shared() -> Material:
    """The material, made when it is first needed and removed at the end. All processes of a test run share it."""
    if "STORMDROP_TEST_FOLDER" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="stormdrop-campaign-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return prepare(folder)
    folder = Path(os.environ["STORMDROP_TEST_FOLDER"]) / "campaign"
    made = folder / "material.json"
    with contextlib.closing(MachineLock(folder.with_suffix(".lock"))) as lock, lock.exclusive():
        if not made.exists():
            material = prepare(folder)
            made.write_text(json.dumps([material.seconds, material.digest]))
    return Material(folder, *json.loads(made.read_text()))


def prepare(folder: Path) -> Material:
    """Makes the material in an empty folder.

    Raises:
        RuntimeError: An undisturbed tuning fails, so that there is nothing to disturb.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft = Material(folder, 0.0, "")
    _save_model(draft.model)
    _save_expected(draft.model, draft.expected)
    _measure_machine(draft.machine)
    with sandbox(folder / "undisturbed", draft.machine) as home:
        process = home.start([LAUNCHER, *draft.tune(home, "--seed", 99)])
        end, outcome = process.wait(), Outcome("undisturbed")
        check_end(outcome, end, [0])
        if outcome.findings:
            raise RuntimeError(f"an undisturbed tuning fails: {outcome.findings}")
        shutil.copytree(home.artifact, draft.older)
        home.start([LAUNCHER, "db", "export", draft.records, "--db", home.database]).wait()
        times = [line["time"] for line in process.log]
        return Material(folder, times[-1] - times[0], _digest(draft.older))


def _save_model(path: Path) -> None:
    """A convolution with an activation, a mean, a transposition and a dense layer."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "v": (10, 8), "b": (10,)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, _SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(rng.normal(size=shape).astype("float32"), name) for name, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _save_expected(model: Path, path: Path) -> None:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    arrays: dict[str, Any] = {}
    for seed in range(3):
        arrays[f"in{seed}"] = _extreme(seed)
        (arrays[f"out{seed}"],) = session.run(None, {"x": arrays[f"in{seed}"]})
    np.savez(path, **arrays)


def _extreme(seed: int) -> NDArray[np.float32]:
    """Normal values; the same with some very large, very small and subnormal ones; and pixels of 0 to 255."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=_SHAPE)
    if seed == 1:
        values *= 10.0 ** rng.choice([-42, -30, -3, 0, 0, 0, 4], size=_SHAPE)
    if seed == 2:
        values = np.floor(rng.uniform(0, 256, size=_SHAPE))
    return values.astype("float32")


def _measure_machine(folder: Path) -> None:
    """The measurements of this machine that a tuning of a model makes, in the form in which they are kept."""
    from stormdrop.machine.cpu import Cpu
    from stormdrop.machine.limits.kept_measurements import kept_file
    from stormdrop.machine.limits.memory_rates import measure_caches_within
    from stormdrop.machine.limits.peak import peak

    peak(Cpu.detect())
    measure_caches_within(Cpu.detect(), math.inf)
    for kind in ("peak", "caches"):
        if (kept := kept_file(kind, []).parent).is_dir():
            shutil.copytree(kept, folder / kind)


def _digest(artifact: Path) -> str:
    from stormdrop.model.artifact.metadata import Metadata

    return Metadata.from_json((artifact / "metadata.json").read_bytes())[2]
