"""States that are written in place: the same results as of calls that copy them, in memory that stays where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import stormdrop as sd
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.call_inputs import aligned
from stormdrop.model.program.check import check_program
from stormdrop.model.program.document import from_json, to_json
from stormdrop.records import open_store
from stormdrop.runtime.inputs import Given, Wanted
from stormdrop.runtime.program import InPlace, State
from tiny_decoders import HEADS, WIDTH, WORDS, shapes_of, tiny_decoder

pytestmark = pytest.mark.compiles

CAPACITIES, CHUNKS = (8, 32), (1, 4)


def compiled(origin: onnx.ModelProto, **how: Any) -> CompiledModel:
    with open_store("sqlite://") as store:
        return sd.compile_model(origin, shapes=shapes_of(CAPACITIES, CHUNKS), store=store, **how)


@pytest.fixture(scope="module", params=["modules", "native"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    path = tmp_path_factory.mktemp("states") / "tiny.sd"
    compiled(tiny_decoder(), out=path, native=request.param == "native")
    return sd.load(path)


def in_place(model: CompiledModel) -> InPlace:
    found = model.program.in_place
    assert found is not None
    return found


def in_order(array: NDArray[Any], state: State) -> NDArray[Any]:
    return array.transpose(state.order or range(array.ndim))


@pytest.mark.parametrize("index", range(len(CAPACITIES) * len(CHUNKS)))
def test_a_step_in_place_is_the_call_bit_by_bit(model: CompiledModel, index: int) -> None:
    rng, size = np.random.default_rng(index), model.sizes[index]
    feeds: dict[str, Any] = {}
    for info in size.inputs:
        drawn = rng.normal(size=info.shape) if info.dtype == "float32" else rng.integers(0, 2, info.shape)
        feeds[info.name] = drawn.astype(info.dtype)
    right = list(model.run(feeds).values())
    states = in_place(model).states
    orders = ((0, 1, 3, 2), ())  # the only reader of keys turns them around
    assert states == tuple(State(input=3 + at, output=1 + at, axis=2, order=orders[at % 2]) for at in range(4))
    memory = []
    for state in states:
        past = feeds[size.inputs[state.input].name]
        whole = np.full(size.outputs[state.output].shape, np.nan, "float32")
        whole[:, :, : past.shape[2]] = past
        memory.append(aligned(in_order(whole, state)))
    given = Given(Wanted(index, size), None, [feeds[info.name] for info in size.inputs])
    (logits,) = model._calls.step(given, memory)
    np.testing.assert_array_equal(logits, right[0])
    for state, written, expected in zip(states, memory, right[1:], strict=True):
        np.testing.assert_array_equal(written, in_order(expected, state))
    for wrong in (memory[0].ravel()[1:], memory[0][:, :, 1:], memory[0].swapaxes(2, 3)):
        with pytest.raises(ValueError, match="output 1 cannot be written to the memory of"):
            model._calls.step(given, [wrong, *memory[1:]])


def test_the_cache_stays_where_it_is(model: CompiledModel) -> None:
    decoder = sd.Decoder(model)
    assert decoder.in_place
    decoder.feed([1, 2, 3])
    decoder.feed([4])
    cache = decoder._steps.cache
    tokens = [
        np.moveaxis(array, state.place, 0) for array, state in zip(cache.arrays, in_place(model).states, strict=True)
    ]
    before = [rows[:4].copy() for rows in tokens]
    decoder.feed([5])
    for array, rows, kept in zip(cache.arrays, tokens, before, strict=True):
        assert np.shares_memory(array, rows)
        np.testing.assert_array_equal(rows[:4], kept)
        assert rows[4].any() and not rows[5:8].any()


def test_memory_that_is_given_back_is_not_kept(model: CompiledModel) -> None:
    decoder = sd.Decoder(model)
    decoder.feed([1])
    arrays = decoder._steps.cache.arrays
    decoder.feed([1] * 20)
    assert arrays == [] and decoder._steps.cache.arrays


def test_no_step_reads_what_stays(model: CompiledModel) -> None:
    found = in_place(model)
    for size, whole in zip(found.sizes, model.program.sizes, strict=True):
        written = [step for step in size.steps if step.name.endswith("rows")]
        assert len(written) == len(found.states)
        assert len(size.steps) == len(whole.steps) - 2  # that turn the keys of each layer around
        assert not {state.input for state in found.states} & {
            view.index for view in size.views if view.memory == "input"
        }


def test_a_cache_that_something_else_reads_is_copied() -> None:
    origin = tiny_decoder()
    nodes = origin.graph.node
    nodes.append(helper.make_node("ReduceMax", ["past_key_values.0.key"], ["largest"], keepdims=1))
    nodes.append(helper.make_node("Reshape", ["largest", "one_one"], ["largest_of_all"]))
    nodes.append(helper.make_node("Mul", ["largest_of_all", "seen"], ["nothing"]))
    origin.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 1]), "one_one"))
    (last,) = (node for node in nodes if node.output[0] == "logits")
    last.output[0] = "logits_only"
    nodes.append(helper.make_node("Add", ["logits_only", "nothing"], ["logits"]))
    model = compiled(origin)
    assert model.program.in_place is None
    decoder, right = sd.Decoder(model), sd.Decoder(compiled(tiny_decoder()))
    assert not decoder.in_place and right.in_place
    assert decoder.generate([3, 1, 4, 1, 5], 20) == right.generate([3, 1, 4, 1, 5], 20)


def test_a_program_that_is_damaged_is_refused(model: CompiledModel) -> None:
    program = model.program
    assert from_json(to_json(program)) == program
    found = in_place(model)
    (first, *others) = found.sizes
    with pytest.raises(ValueError, match="those of other sizes"):
        check_program(replace(program, in_place=replace(found, sizes=tuple(others))))
    with pytest.raises(ValueError, match="a state is input 3 and output 9, which are not there"):
        check_program(replace(program, in_place=replace(found, states=(State(3, 9, 2),))))
    with pytest.raises(ValueError, match="are no state along axis 4"):
        check_program(replace(program, in_place=replace(found, states=(State(3, 1, 4),))))
    with pytest.raises(ValueError, match=r"axes of output 'present\.0\.key' cannot be in the order \[0, 1, 3, 3\]"):
        check_program(replace(program, in_place=replace(found, states=(State(3, 1, 2, (0, 1, 3, 3)),))))
    with pytest.raises(ValueError, match=r"a step reads input 'past_key_values\.0\.key', which is written in place"):
        check_program(replace(program, in_place=replace(found, sizes=(program.sizes[0], *others))))
    unwritten = replace(first, steps=tuple(step for step in first.steps if not step.name.endswith("rows")))
    with pytest.raises(ValueError, match=r"step \d+ reads output \d where nothing or something else was written"):
        check_program(replace(program, in_place=replace(found, sizes=(unwritten, *others))))


def test_a_model_without_states_has_none(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["past.x"], ["present.x"])
    infos = [helper.make_tensor_value_info(name, 1, (1, HEADS, WIDTH, WORDS)) for name in ("past.x", "present.x")]
    graph = helper.make_graph([node], "relu", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with open_store("sqlite://") as store:
        assert sd.compile_model(model, store=store).program.in_place is None
