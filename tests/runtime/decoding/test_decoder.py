"""Decoders: the tokens that a cache that grows would give, whatever the sizes; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import stormdrop as sd
from stormdrop import runtime
from stormdrop.errors import ArtifactError, InputError
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.decoder import Decoder
from stormdrop.records import open_store
from tiny_decoders import PLACES, WORDS, greedy, logits_of, shapes_of, tiny_decoder

pytestmark = pytest.mark.compiles

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def compiled(
    origin: onnx.ModelProto,
    capacities: Any = (8, 32),
    chunks: Any = (1, 4),
    past: str = "past_key_values.{}",
    **how: Any,
) -> CompiledModel:
    with open_store("sqlite://") as store:
        shapes = how.pop("shapes", None) or shapes_of(capacities, chunks, past)
        return sd.compile_model(origin, shapes=shapes, store=store, **how)


@pytest.fixture(scope="module")
def origin() -> onnx.ModelProto:
    return tiny_decoder()


@pytest.fixture(scope="module")
def folder(origin: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "tiny.sd"
    compiled(origin, out=path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> CompiledModel:
    return sd.load(folder)


def assert_close(logits: NDArray[Any], right: NDArray[Any]) -> None:
    np.testing.assert_allclose(logits, right, rtol=0, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 9, 11, 32])
def test_prompts_of_any_length(model: CompiledModel, origin: onnx.ModelProto, length: int) -> None:
    decoder = Decoder(model)
    prompt = (PROMPT * 3)[:length]
    logits = decoder.feed(prompt)
    assert (decoder.length, logits.shape) == (length, (WORDS,))
    assert_close(logits, logits_of(origin, prompt)[-1])


def test_each_step_while_the_cache_grows(model: CompiledModel, origin: onnx.ModelProto) -> None:
    decoder, tokens = Decoder(model), (PROMPT * 3)[:32]
    right = logits_of(origin, tokens)
    for position, token in enumerate(tokens):
        assert_close(decoder.feed([token]), right[position])


def test_generates_what_a_growing_cache_gives(folder: Path, origin: onnx.ModelProto) -> None:
    decoder, seen = sd.Decoder(folder), list[int]()
    tokens = decoder.generate(PROMPT, 20, on_token=seen.append)
    assert tokens == seen == greedy(origin, PROMPT, 20)
    assert decoder.length == len(PROMPT) + 19
    decoder.reset()
    assert decoder.length == 0
    other = [7, 7, 30]
    assert decoder.generate(np.array([other]), 8) == greedy(origin, other, 8)  # beside what the first one has left


def test_a_generation_is_continued(model: CompiledModel, origin: onnx.ModelProto) -> None:
    decoder = Decoder(model)
    first = decoder.generate(PROMPT, 3)
    assert decoder.generate([], 4) == greedy(origin, PROMPT, 7)[3:]
    tokens = [*PROMPT, *greedy(origin, PROMPT, 7), 8]
    assert first == tokens[len(PROMPT) : len(PROMPT) + 3]
    assert decoder.generate([8], 2) == greedy(origin, tokens, 2)


def test_what_ends_a_generation(model: CompiledModel, origin: onnx.ModelProto) -> None:
    right = greedy(origin, PROMPT, 22)
    last = right.index(right[5]) + 1
    assert Decoder(model).generate(PROMPT, stop={right[5]}) == right[:last]
    assert Decoder(model).generate(PROMPT, stop=lambda made: len(made) == 4) == right[:4]
    assert Decoder(model).generate(PROMPT) == right  # until the cache is full


def test_two_decoders_share_a_model(model: CompiledModel, origin: onnx.ModelProto) -> None:
    one, two = Decoder(model), Decoder(model)
    for position in range(6):
        assert_close(one.feed([PROMPT[position]]), logits_of(origin, PROMPT[: position + 1])[-1])
        assert_close(two.feed([PROMPT[-1 - position]]), logits_of(origin, PROMPT[: -position - 2 : -1])[-1])


def test_drawn_tokens(model: CompiledModel, origin: onnx.ModelProto) -> None:
    hot = [Decoder(model).generate(PROMPT, 20, sampling=sd.Sampling(temperature=3, seed=seed)) for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    assert Decoder(model).generate(PROMPT, 20, sampling=sd.Sampling(top_k=1)) == greedy(origin, PROMPT, 20)


def test_a_failing_callback_leaves_the_sequence_whole(model: CompiledModel, origin: onnx.ModelProto) -> None:
    decoder = Decoder(model)

    def fail(_: int) -> None:
        raise KeyError("full disk")

    with pytest.raises(KeyError, match="full disk"):
        decoder.generate(PROMPT, 5, on_token=fail)
    assert decoder.generate([], 4) == greedy(origin, PROMPT, 5)[1:]


def test_a_native_model_needs_neither_tvm_nor_copies(origin: onnx.ModelProto, tmp_path: Path) -> None:
    compiled(origin, out=tmp_path / "native.sd", native=True)
    for decoder in (sd.Decoder(tmp_path / "native.sd"), runtime.Decoder(runtime.load(tmp_path / "native.sd"))):
        assert decoder.in_place
        assert decoder.generate(PROMPT, 20) == greedy(origin, PROMPT, 20)


@pytest.mark.parametrize("native", [False, True])
def test_states_of_other_names(tmp_path: Path, native: bool) -> None:
    other = tiny_decoder(past="cache_in/{}", present="cache_out/{}", layers=1)
    path = tmp_path / "other.sd"
    model = compiled(other, (8,), (1, 4), "cache_in/{}", out=path, native=native)
    with pytest.raises(InputError, match=r"no output is the next step's input by its name.*declare the states"):
        Decoder(model)
    declared = {"cache_out/*": "cache_in/*"}
    decoder = Decoder(path, state=declared)
    assert not decoder.in_place  # it was compiled without knowing its states
    assert decoder.generate(PROMPT[:5], 4) == greedy(other, PROMPT[:5], 4)
    with pytest.raises(InputError, match=r"no output is called 'out/\*'; its outputs are logits, cache_out/0.key"):
        Decoder(model, state={"out/*": "cache_in/*"})
    with pytest.raises(
        InputError, match=r"should go to input 'past/0.key', which is not there; its inputs are input_ids"
    ):
        Decoder(model, state={"cache_out/*": "past/*"})
    with pytest.raises(InputError, match=r"needs one \* on each side, or none"):
        Decoder(model, state={"cache_out/*": "cache_in/0.key"})
    with pytest.raises(InputError, match=r"'cache_in/0.key' is declared to be that of 2 outputs"):
        Decoder(model, state={"cache_out/0.key": "cache_in/0.key", "cache_out/0.value": "cache_in/0.key"})
    with pytest.raises(InputError, match=r"logits float32\[.*cannot become .*: they have different"):
        Decoder(model, state={"logits": "cache_in/0.key"})


@pytest.mark.parametrize("native", [False, True])
def test_states_that_the_model_was_compiled_with(tmp_path: Path, native: bool) -> None:
    other = tiny_decoder(past="cache_in/{}", present="cache_out/{}", layers=1)
    declared = {"cache_out/*": "cache_in/*"}
    compiled(other, (8,), (1, 4), "cache_in/{}", state=declared, out=tmp_path / "other.sd", native=native)
    decoders: list[runtime.Decoder] = [Decoder(tmp_path / "other.sd"), Decoder(tmp_path / "other.sd", state=declared)]
    if native:
        decoders.append(runtime.Decoder(runtime.load(tmp_path / "other.sd")))
    for decoder in decoders:
        assert decoder.in_place
        assert decoder.generate(PROMPT[:5], 4) == greedy(other, PROMPT[:5], 4)
    with pytest.raises(InputError, match=r"no output is called 'present\.\*'"):
        compiled(other, (8,), (1,), "cache_in/{}", state={"present.*": "past.*"})


def test_a_model_without_places_finds_them_by_its_mask() -> None:
    by_mask = tiny_decoder("mask")
    assert Decoder(compiled(by_mask)).generate(PROMPT, 12) == greedy(by_mask, PROMPT, 12)


def test_a_model_that_takes_slots_for_places_is_refused() -> None:
    by_slots = tiny_decoder("slots")
    with pytest.raises(InputError, match=r"differ by .* or it counts slots as places: export it with position_ids"):
        Decoder(compiled(by_slots))
    with pytest.raises(InputError, match="takes no position_ids, and has one size"):
        Decoder(compiled(by_slots, (8,), (1,)))


def test_a_model_whose_tokens_see_later_ones_is_refused() -> None:
    origin = tiny_decoder()
    (causal,) = (node for node in origin.graph.node if node.op_type == "LessOrEqual")
    causal.input[1] = "all"  # each token sees all that are kept
    with pytest.raises(
        InputError, match=r"between a cache of 8 and chunks of 1, and a cache of 32 and chunks of 4: .*ones$"
    ):
        Decoder(compiled(origin))


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(InputError, match=r"a decoder takes attention_mask .* nothing hides the slots of the cache"):
        Decoder(compiled(tiny_decoder(masked=False)))
    batches = {name: (2, *shape[1:]) for name, shape in shapes_of((8,), (1,)).items()}
    with pytest.raises(InputError, match=r"decodes one sequence at a time, .* its batches are 2;"):
        Decoder(compiled(tiny_decoder(), shapes=batches))


def test_what_does_not_fit_is_refused(model: CompiledModel) -> None:
    decoder = Decoder(model)
    assert decoder.capacity == 32 < PLACES
    with pytest.raises(InputError, match="the prompt has 33 tokens, and the model takes 32"):
        decoder.generate([1] * 33, 1)
    with pytest.raises(InputError, match="32 slots, so that 22 tokens can follow, not 23: give max_new_tokens=22"):
        decoder.generate(PROMPT, 23)
    decoder.feed([1] * 30)
    with pytest.raises(
        InputError, match=r"the cache is full: it holds 30 tokens of 32, and 3 more do not fit; .*reset"
    ):
        decoder.feed([1, 2, 3])
    assert decoder.length == 30
    wrong: list[tuple[Any, str]] = [
        ([], "no tokens"),
        ([WORDS], f"{WORDS} is no"),
        ([-1], "-1 is no"),
        ([1.5], "whole"),
    ]
    for ids, what in wrong:
        with pytest.raises(InputError, match=what):
            decoder.feed(ids)
    with pytest.raises(InputError, match="whole numbers"):
        decoder.feed(np.ones((2, 3), int))
    with pytest.raises(InputError, match="max_new_tokens=0: must be a whole number from 1 on"):
        decoder.generate([1], 0)
    with pytest.raises(ArtifactError, match="no such folder"):
        Decoder("nowhere.sd")
