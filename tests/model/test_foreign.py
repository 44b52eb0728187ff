"""Models of which onnxruntime runs parts: compiled, verified, saved, loaded elsewhere, run by several threads."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_models import GELU, boxes_at_the_end, gelu_inside, only_a_loop, two_segments
from onnx import helper, numpy_helper
from tiny_models import make_model

from stormdrop.errors import ArtifactError, InputError, LockTimeout, ModelError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact import onnxruntime_parts
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.artifact_files import METADATA
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.converters import recurrent
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.importer.together import together
from stormdrop.model.importer.whole_part import run_by_onnxruntime
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.onnx.weights import large_tensors, move_out
from stormdrop.model.profile import part_times
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning import imported, latency
from stormdrop.model.tuning.latency import choose_parts
from stormdrop.model.tuning.tuning_run import TuningRun
from stormdrop.model.untuned import compile_model_with
from stormdrop.model.verification.verify import Reference
from stormdrop.runtime.program import FUNCTION
from stormdrop.tuning.options import TuneOptions

pytestmark = pytest.mark.compiles
onnxruntime = pytest.importorskip("onnxruntime", reason="it runs the onnxruntime parts")

MAKERS = [gelu_inside, boxes_at_the_end, only_a_loop, two_segments]


def compiled(model: onnx.ModelProto) -> CompiledModel:
    return build(load_graph(model), {}, Cpu.detect())


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_right(model: CompiledModel, source: onnx.ModelProto, seed: int) -> None:
    feeds = random_feeds(model.inputs, seed)
    outputs = model.run(feeds)
    for name, right in expected(source, feeds).items():
        assert outputs[name].dtype == right.dtype
        np.testing.assert_allclose(outputs[name], right, rtol=1e-4, atol=1e-5)


def test_compiling_names_the_parts_that_onnxruntime_runs() -> None:
    result = compile_model_with(gelu_inside(), None, TuneOptions(fresh=True))
    (part,) = result.to_json()["foreign"]
    assert part["nodes"] == sum(part["operators"].values()) >= 1 and part["reason"]
    inside = [layer["operator"] for layer in result.to_json()["layers"] if f"{FUNCTION}0" in layer["kernels"]]
    assert Counter(f"com.microsoft.{operator}" for operator in inside) == part["operators"]


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_right_verified_and_loads_in_a_fresh_process(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    source = make()
    graph = load_graph(source)
    model = build(graph, {}, Cpu.detect())
    verified = Reference.compute(graph).check(model)
    assert verified.fault is None and "onnxruntime for its own parts" in verified.against
    for seed in range(3):
        assert_right(model, source, seed)
    model.save(tmp_path / "m.sd")
    assert {path.name for path in (tmp_path / "m.sd").glob("*.onnx")} == {part.file for part in graph.foreign.reports}
    feeds = random_feeds(model.inputs, 1)
    arrays: dict[str, Any] = dict(feeds)
    np.savez(tmp_path / "in.npz", **arrays)
    code = (
        "import sys, numpy as np, stormdrop as sd; folder = sys.argv[1]; "
        "model = sd.load(folder + '/m.sd', digest=sys.argv[2]); "
        "np.savez(folder + '/out.npz', **model.run(dict(np.load(folder + '/in.npz'))))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(model.digest)], check=True, timeout=120)
    again = np.load(tmp_path / "out.npz")
    assert all(np.array_equal(again[name], value) for name, value in model.run(feeds).items())


def test_several_threads_and_models_at_once() -> None:
    sources = [gelu_inside(), two_segments()]
    models = [compiled(source) for source in sources]

    def run(seed: int) -> None:
        for model, source in zip(models, sources, strict=True):
            assert_right(model, source, seed)

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(run, range(16)):
            pass


def test_results_are_the_callers_and_inputs_may_begin_anywhere() -> None:
    model = compiled(boxes_at_the_end())
    first, second = (random_feeds(model.inputs, seed) for seed in (1, 2))
    shifted = np.empty(17, np.float32)[1:].reshape(1, 16)
    shifted[...] = first["x"]
    kept = model.run({"x": shifted})["y"]
    copy = kept.copy()
    model.run(second)
    assert np.array_equal(kept, copy) and np.array_equal(kept, model.run(first)["y"])
    assert model.outputs[0].shape == (-1, 3), "the number of boxes depends on data"


def test_large_results_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    source = two_segments()
    model = compiled(source)
    small = model.run(random_feeds(model.inputs, 2))
    monkeypatch.setattr(onnxruntime_parts, "_COPIED", 0)
    assert_right(model, source, 2)
    assert all(np.array_equal(value, small[name]) for name, value in model.run(random_feeds(model.inputs, 2)).items())


@pytest.mark.parametrize(("of_many", "of_one", "chosen"), [(2e-4, 1e-4, 1), (1e-4, 2e-4, None)])
def test_a_part_has_one_thread_if_it_is_faster_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of_many: float, of_one: float, chosen: int | None
) -> None:
    monkeypatch.setattr(onnxruntime_parts, "_in_turns", lambda sessions, inputs, seconds: [of_many, of_one])
    graph = load_graph(two_segments())
    graph.foreign.examples = {}
    Reference.compute(graph)
    assert sorted(graph.foreign.examples) == [0, 1]
    graph.foreign.choose_threads("m", 2, keep_denormals=False)
    assert [part.threads for part in graph.foreign.reports] == [chosen, chosen]
    made: list[int] = []
    options = onnxruntime_parts.session_options
    monkeypatch.setattr(
        onnxruntime_parts, "session_options", lambda threads, alone: made.append(threads) or options(threads, alone)
    )
    build(graph, {}, Cpu.detect()).save(tmp_path / "m.sd")
    loaded = CompiledModel.load(tmp_path / "m.sd", threads=2)
    assert_right(loaded, two_segments(), 1)
    assert made[-2:] == [chosen or 2] * 2


def test_arrays_of_the_verification_are_not_kept_even_if_the_machine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(two_segments())

    def taken(*_: object) -> None:
        raise LockTimeout("the machine was not free in time")

    choices: tuple[Callable[..., object], ...] = (taken, lambda *_: {})
    for choose in choices:
        graph.foreign.examples = {0: [np.zeros(3)]}
        monkeypatch.setattr(graph.foreign, "choose_threads", choose)
        choose_parts(graph, Cpu.detect(), [random_feeds(graph.inputs)], endless())
        assert graph.foreign.examples is None


def test_parts_are_timed_in_turns() -> None:
    graph = load_graph(two_segments())
    graph.foreign.examples = {}
    Reference.compute(graph)
    sessions = [graph.foreign.sessions("m", threads)[0] for threads in (1, 2)]
    times = onnxruntime_parts._in_turns(sessions, graph.foreign.examples[0], 0.1)
    assert len(times) == 2 and all(0 < seconds < 1 for seconds in times)


def test_the_times_of_the_parts() -> None:
    model = compiled(two_segments())
    times = part_times(model, random_feeds(model.inputs))
    assert [entry.part.operators for entry in times] == [
        {"com.microsoft.ScaledSiLU": 2, "Relu": 1},
        {"NonZero": 1, "Transpose": 1},
    ], "the cheap operator between two foreign ones joins them"
    assert all(0 < entry.share < 1 for entry in times)


def test_damaged_and_missing_parts(tmp_path: Path) -> None:
    compiled(gelu_inside()).save(tmp_path / "m.sd")
    file = tmp_path / "m.sd" / "foreign_0.onnx"
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    with pytest.raises(ArtifactError, match=r"foreign_0.onnx is damaged"):
        CompiledModel.load(tmp_path / "m.sd")
    file.unlink()
    with pytest.raises(ArtifactError, match=r"foreign_0.onnx is missing"):
        CompiledModel.load(tmp_path / "m.sd")
    document = json.loads((tmp_path / "m.sd" / METADATA).read_text())
    assert document["foreign"][0]["operators"] == {"com.microsoft.ScaledSiLU": 1}


def test_a_model_without_onnxruntime_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(gelu_inside()).save(tmp_path / "m.sd")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ArtifactError, match=r"com.microsoft.ScaledSiLU.*pip install 'stormdrop\[onnxruntime\]'"):
        CompiledModel.load(tmp_path / "m.sd")


def test_parts_that_jump_are_compared_by_themselves() -> None:
    """Rounding decides which of two equal scores comes first, so the exact model goes on from our own result."""
    graph = load_graph(boxes_at_the_end())
    model = build(graph, {}, Cpu.detect())
    reference = Reference.compute(graph)
    assert reference.by_parts is not None
    compared = {entry.name: entry for entry in reference.by_parts(model, reference.feeds)}
    assert list(compared) == [
        "input 0 of onnxruntime's part (NonMaxSuppression)",
        "input 1 of onnxruntime's part (NonMaxSuppression)",
        "result 0 of onnxruntime's part (NonMaxSuppression)",
        "output 'y'",
    ]
    for _, ours, right, _ in compared.values():
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5)
    jumped = [replace(one, tensors={"output 'y'": one.tensors["output 'y'"][:-1]}) for one in reference.expected]
    assert replace(reference, expected=jumped).check(model).fault is None
    without = replace(reference, expected=jumped, by_parts=None).check(model)
    assert without.fault is not None, "another number of boxes"


def test_what_each_of_two_equal_parts_reads_is_compared() -> None:
    """The exact model goes on from what a part has made of a wrong input: only that input tells."""

    def source(scale: float) -> onnx.ModelProto:
        weights = scale * np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)
        nodes = [
            helper.make_node("MatMul", ["x", "first"], ["a"]),
            helper.make_node("ScaledSiLU", ["a"], ["b"], domain=GELU),
            helper.make_node("MatMul", ["b", "second"], ["c"]),
            helper.make_node("ScaledSiLU", ["c"], ["y"], domain=GELU),
        ]
        constants = [numpy_helper.from_array(weights, "first"), numpy_helper.from_array(weights / scale, "second")]
        made = make_model(nodes, {}, {"x": (16, 64)}, {"y": (16, 64)}, 13, constants)
        made.opset_import.append(helper.make_opsetid(GELU, 1))
        return made

    graph = load_graph(source(1.0))
    reference = Reference.compute(graph)
    assert len(graph.foreign.reports) == 2 and reference.by_parts is not None
    right, wrong = (build(load_graph(source(scale)), {}, Cpu.detect()) for scale in (1.0, 1.25))
    names = [each.name for each in reference.by_parts(right, reference.expected[0].sample.feeds)]
    assert len(names) == len(set(names)) == 5
    assert reference.check(right).fault is None
    fault = reference.check(wrong).fault
    assert fault is not None and fault.tensor == "input 0 of onnxruntime's part 0 (com.microsoft.ScaledSiLU)"


def test_steps_beside_a_part_are_judged_as_steps() -> None:
    """Where a tanh saturates, rounding decides whether its floor is 0 or 1."""

    def source(step: str) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Tanh", ["x"], ["t"]),
            helper.make_node(step, ["t"], ["y"]),
            helper.make_node("ScaledSiLU", ["t"], ["z"], domain=GELU),
        ]
        made = make_model(nodes, {}, {"x": (4, 6)}, {"y": (4, 6), "z": (4, 6)})
        made.opset_import.append(helper.make_opsetid(GELU, 1))
        return made

    graph = load_graph(source("Floor"))
    model = build(graph, {}, Cpu.detect())
    assert graph.foreign.reports
    assert Reference.compute(graph).check(model).fault is None
    assert Reference.compute(load_graph(source("Ceil"))).check(model).fault is not None


def test_parts_flush_denormals_as_kernels_do() -> None:
    nodes = [helper.make_node("ScaledSiLU", ["x"], ["y"], domain=GELU)]
    source = make_model(nodes, {}, {"x": (1 << 16,)}, {"y": (1 << 16,)})
    source.opset_import.append(helper.make_opsetid(GELU, 1))
    graph, x = load_graph(source), np.full(1 << 16, 1e-40, np.float32)
    for keep in (False, True):
        model = build(graph, {}, replace(Cpu.detect(), keep_denormals=keep))
        assert bool(model(x).any()) is keep  # in the calling thread and in those of onnxruntime
        assert np.float32(1e-30) * np.float32(1e-10) > 0  # the caller's own mode


def test_all_of_a_model_runs_without_the_program_around_it() -> None:
    source = two_segments()
    whole = run_by_onnxruntime(load_graph(source), "because")
    assert whole is not None and not whole.tasks
    (part,) = whole.foreign.reports
    assert part.whole and part.operators["com.microsoft.ScaledSiLU"] == 2
    model = build(whole, {}, Cpu.detect())
    assert model.foreign.alone(model.metadata, 1) is not None
    assert Reference.compute(whole).check(model).fault is None
    assert_right(model, source, 1)
    called: list[str] = []
    model.observed(lambda step, *_: called.append(step.symbol)).run(random_feeds(model.inputs))
    assert f"{FUNCTION}0" in called, "what is observed is called by the program"
    divided = compiled(gelu_inside())
    assert divided.foreign.alone(divided.metadata, 1) is None


@pytest.fixture(scope="module")
def alone() -> CompiledModel:
    """A model with two inputs and two outputs, all of which onnxruntime runs."""
    nodes = [
        helper.make_node("ScaledSiLU", ["a"], ["first"], domain=GELU),
        helper.make_node("ScaledSiLU", ["b"], ["second"], domain=GELU),
    ]
    source = make_model(nodes, {}, {"a": (2, 3), "b": (4,)}, {"second": (4,), "first": (2, 3)})
    source.opset_import.append(helper.make_opsetid(GELU, 1))
    model = compiled(source)
    assert model.foreign.alone(model.metadata, 1) is not None
    return model


def test_a_model_that_runs_alone_takes_what_any_model_takes(alone: CompiledModel) -> None:
    feeds = random_feeds(alone.inputs, 1)
    right = alone.run(feeds)
    assert list(right) == ["second", "first"]
    in_order, by_name = alone(feeds["a"], feeds["b"]), alone(feeds["a"], b=feeds["b"])
    read_only = {name: value.copy() for name, value in feeds.items()}
    for value in read_only.values():
        value.flags.writeable = False
    for outputs in (
        alone.run(MappingProxyType(feeds)),
        alone.run(dict(reversed(feeds.items()))),
        dict(zip(right, in_order, strict=True)),
        dict(zip(right, by_name, strict=True)),
        alone.run(read_only),
        alone.run({"a": feeds["a"].astype(">f4"), "b": np.ma.masked_array(feeds["b"])}),
        alone.run({"a": np.asfortranarray(feeds["a"]), "b": np.repeat(feeds["b"], 2)[::2]}),
        alone.run({"a": feeds["a"].view(np.matrix), "b": feeds["b"]}),
    ):
        assert all(np.array_equal(outputs[name], value) for name, value in right.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": np.zeros((2, 3), ">f8")}, "'a' is float64, not float32"),
        ({"a": np.zeros((3, 2), np.float32)}, r"'a' has shape \(3, 2\), not \(2, 3\)"),
        ({"a": np.ma.masked_less(np.zeros((2, 3), np.float32), 1)}, "'a' has masked elements"),
        ({"a": [[1.0, 2.0], [3.0]]}, "'a' is no array"),
        ({"c": np.zeros(1)}, "has no input 'c'; its inputs are 'a', 'b'"),
        ({"b": None}, "'b' is an array of Python objects"),
    ],
)
def test_a_model_that_runs_alone_refuses_what_any_model_refuses(
    alone: CompiledModel, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        alone.run({**random_feeds(alone.inputs), **change})
    assert "\n" not in str(raised.value)
    faulty: tuple[Any, ...] = ({}, {"a": np.zeros((2, 3), np.float32)}, None, [1])
    for missing in faulty:
        with pytest.raises(InputError):
            alone.run(missing)


def test_an_output_of_another_shape_than_the_model_has_is_refused(alone: CompiledModel) -> None:
    outputs = (replace(alone.outputs[0], shape=(5,)), alone.outputs[1])
    call = alone.foreign.alone(replace(alone.metadata, outputs=outputs), 1)
    assert call is not None
    with pytest.raises(ModelError, match=r"makes 'second' of shape \(4,\), which should be \(5,\)"):
        call(random_feeds(alone.inputs))


def test_a_part_that_is_all_of_one_size_does_not_run_the_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "LONGEST", 1)
    weights = {"w": (1, 4, 3), "r": (1, 4, 4)}
    nodes = [helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=4)]
    source = seed_weights(make_model(nodes, weights, {"x": ("N", 1, 3)}, {"y": ("N", 1, 1, 4)}), seed=1)
    graph = together([load_graph(source, {"x": (length, 1, 3)}) for length in (1, 2)])
    assert [part.whole for part in graph.foreign.reports] == [True]
    model = build(graph, {}, Cpu.detect())
    for size in graph.sizes:
        feeds = random_feeds(size.inputs, 1)
        np.testing.assert_allclose(model.run(feeds)["y"], expected(source, feeds)["y"], rtol=1e-4, atol=1e-5)


def test_a_model_is_verified_as_its_callers_run_it() -> None:
    whole = run_by_onnxruntime(load_graph(gelu_inside()), "because")
    assert whole is not None
    model = build(whole, {}, Cpu.detect())
    model._alone = lambda feeds: [np.zeros(info.shape, info.dtype) for info in model.outputs]
    assert Reference.compute(whole).check(model).fault is not None


def test_a_model_in_a_loop_is_one_part() -> None:
    graph = load_graph(only_a_loop())
    assert [part.whole for part in graph.foreign.reports] == [True]
    model = build(graph, {}, Cpu.detect())
    feeds = random_feeds(model.inputs, 1)
    first = model.run(feeds)["y"]
    kept = first.copy()
    model.run(random_feeds(model.inputs, 2))
    assert np.array_equal(first, kept), "results are the caller's"


class _FreeMachine:
    """The lock of a machine that no other process uses."""

    def exclusive(self, until: float) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


@pytest.mark.parametrize(("of_parts", "whole"), [(6e-4, True), (4e-4, False)])
def test_onnxruntime_runs_all_of_a_model_of_which_it_runs_most(
    monkeypatch: pytest.MonkeyPatch, of_parts: float, whole: bool
) -> None:
    graph = load_graph(gelu_inside())

    def seconds(parts: onnxruntime_parts.OnnxruntimeParts, *_: object) -> dict[int, float]:
        return {0: of_parts if parts is graph.foreign else 1e-3}

    monkeypatch.setattr(onnxruntime_parts.OnnxruntimeParts, "choose_threads", seconds)
    monkeypatch.setattr(latency, "MachineLock", _FreeMachine)
    chosen = choose_parts(graph, Cpu.detect(), [random_feeds(graph.inputs)], endless())
    assert (chosen is not graph) is whole
    assert [part.whole for part in chosen.foreign.reports] == [whole]
    assert chosen.foreign.examples is None


def endless() -> TuningRun:
    return TuningRun(0.0, None, None)


def at_two_sizes() -> Graph:
    """ScaledSiLU, which onnxruntime has to run, before a product."""
    nodes = [helper.make_node("ScaledSiLU", ["x"], ["a"], domain=GELU), helper.make_node("MatMul", ["a", "w"], ["y"])]
    source = seed_weights(make_model(nodes, {"w": (8, 4)}, {"x": ("N", 8)}, {"y": ("N", 4)}), seed=1)
    source.opset_import.append(helper.make_opsetid(GELU, 1))
    graph = together([load_graph(source, {"x": (rows, 8)}) for rows in (1, 2)])
    graph.foreign.examples = {}
    for size in graph.sizes:
        Reference.compute(size)
    return graph


@pytest.mark.parametrize(("of_whole", "whole"), [(3.0, False), (1.5, True)])
def test_all_sizes_of_a_model_are_compared_with_all_of_it(
    monkeypatch: pytest.MonkeyPatch, of_whole: float, whole: bool
) -> None:
    """The parts of both sizes take 2 seconds, and one size of all of the model takes more than half of that."""
    graph, timed = at_two_sizes(), list[int]()

    def in_turns(sessions: list[onnxruntime_parts.PartSession], inputs: list[np.ndarray], _: float) -> list[float]:
        timed.append(len(inputs[0]))
        return [of_whole if sessions[0].outputs == ["y"] else 1.0] * 2

    monkeypatch.setattr(onnxruntime_parts, "_in_turns", in_turns)
    monkeypatch.setattr(latency, "MachineLock", _FreeMachine)
    feeds = [random_feeds(size.inputs) for size in graph.sizes]
    chosen = choose_parts(graph, Cpu.detect(), feeds, endless())
    assert (chosen is not graph) is whole
    assert timed == [1, 2, 1, 2]


def test_parts_are_not_timed_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(gelu_inside())
    monkeypatch.setattr(latency, "run_by_onnxruntime", None)
    monkeypatch.setattr(latency, "MachineLock", None)
    assert choose_parts(graph, Cpu.detect(), [random_feeds(graph.inputs)], TuningRun(0.0, 0.0, None)) is graph


def test_the_parts_stay_if_all_of_the_model_cannot_be_verified(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("tiny: cannot be verified")

    monkeypatch.setattr(imported, "with_references", refuse)
    assert imported._verified(load_graph(gelu_inside()), 0, None) is None
    assert "tiny: cannot be verified; onnxruntime runs the parts of the model that it has to run" in caplog.text


@pytest.mark.parametrize(
    ("alone", "version", "entries"),
    [
        (True, "1.32.0", {"session.intra_op.spin_duration_us": "400"}),
        (False, "1.32.0", {"session.intra_op.spin_duration_us": "400", "session.force_spinning_stop": "1"}),
        (True, "1.32rc1", {"session.intra_op.spin_duration_us": "400"}),
        (True, "1.20.1", {"session.force_spinning_stop": "1"}),
    ],
)
def test_threads_spin_while_onnxruntime_runs_and_sleep_soon_after(
    monkeypatch: pytest.MonkeyPatch, alone: bool, version: str, entries: dict[str, str]
) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", version)
    options, given = onnxruntime_parts.session_options(2, alone), dict[str, str]()
    for name in ("intra_op.spin_duration_us", "force_spinning_stop", "intra_op.allow_spinning"):
        with suppress(RuntimeError):  # onnxruntime raises it for an option that is not set
            given[f"session.{name}"] = options.get_session_config_entry(f"session.{name}")
    assert given == entries


def test_a_session_keeps_the_weights_that_it_reads(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = seed_weights(make_model([node], {"w": (256, 256)}, {"x": (1, 256)}, {"y": (1, 256)}), 1)
    outside = move_out(model, tmp_path / "weights.bin")
    weights = large_tensors(outside)
    read = weakref.ref(weights["w"])
    session = onnxruntime_parts.session_of(outside.SerializeToString(), onnxruntime.SessionOptions(), weights)
    del weights
    assert read() is not None
    x = np.ones((1, 256), np.float32)
    right = onnxruntime_parts.session_of(model.SerializeToString(), onnxruntime.SessionOptions())
    assert np.array_equal(session.run(None, {"x": x})[0], right.run(None, {"x": x})[0])
