"""States of a model that is tuned: as they are declared, by name otherwise, and checked before the tuning."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import stormdrop as sd
from stormdrop.errors import InputError
from stormdrop.model.artifact.kept_tuning import read_tuning
from stormdrop.records import open_store
from tiny_decoders import greedy, shapes_of, tiny_decoder

pytestmark = pytest.mark.compiles


def test_a_tuned_decoder_writes_declared_states_in_place(tmp_path: Path) -> None:
    origin = tiny_decoder(past="in/{}", present="out/{}", layers=1)
    onnx.save(origin, tmp_path / "tiny.onnx")
    shapes = shapes_of((8, 16), (1, 4), "in/{}")
    with open_store("sqlite://") as store:
        with pytest.raises(InputError, match=r"should go to input 'past/0\.key', which is not there"):
            sd.tune_model(tmp_path / "tiny.onnx", shapes=shapes, state={"out/*": "past/*"}, store=store, trials=1)
        out, state = tmp_path / "tiny.sd", {"out/*": "in/*"}
        sd.tune_model(tmp_path / "tiny.onnx", shapes=shapes, state=state, store=store, trials=20, time="20s", out=out)
    decoder = sd.Decoder(out)
    assert decoder.in_place
    assert decoder.generate([3, 1, 4, 1, 5], 8) == greedy(origin, [3, 1, 4, 1, 5], 8)
    _, _, document = read_tuning(out)
    assert document is not None
    assert "--state 'out/*=in/*'" in document["command"]


def test_declared_states_of_a_model_with_others_names_are_those_only() -> None:
    origin = tiny_decoder(layers=1)
    with open_store("sqlite://") as store:
        declared = {"present.0.key": "past_key_values.0.key"}
        model = sd.compile_model(origin, shapes=shapes_of((8,), (1,)), state=declared, store=store)
    assert model.program.in_place is not None
    assert [(state.input, state.output) for state in model.program.in_place.states] == [(3, 1)]
    with pytest.raises(InputError, match=r"takes 'past_key_values\.0\.value'; a decoder takes input_ids"):
        sd.Decoder(model)
