"""Dimensions whose name is a sum of others, as of a decoder with a cache: their sizes follow."""

from __future__ import annotations

import pytest

from stormdrop.errors import ModelError
from stormdrop.model.inputs.inputs import fill_shapes
from tiny_decoders import tiny_decoder


def mask_of(shapes: dict[str, tuple[int, ...]], summed: str = "past + chunk") -> list[int]:
    model = tiny_decoder()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = summed
    fill_shapes(model, shapes, "m")
    return [dim.dim_value for dim in model.graph.input[1].type.tensor_type.shape.dim]


PAST = {"input_ids": (1, 4), "past_key_values.0.key": (1, 2, 8, 8)}


@pytest.mark.parametrize(
    ("summed", "size"), [("past + chunk", 12), ("past+1", 9), ("chunk + past + chunk", 16), ("past + 0", 8)]
)
def test_a_sum_follows_from_its_terms(summed: str, size: int) -> None:
    assert mask_of(PAST, summed) == [1, size]
    assert mask_of({**PAST, "attention_mask": (1, size)}, summed) == [1, size]


def test_a_sum_that_is_given_must_be_right() -> None:
    with pytest.raises(
        ModelError,
        match=r"^m: dimension 1 of input .attention_mask. is .past \+ chunk., so it must be 12, not 13; it may be left",
    ):
        mask_of({**PAST, "attention_mask": (1, 13)})


@pytest.mark.parametrize("summed", ["past + other", "past - chunk", "past +", "2 * past"])
def test_what_is_no_sum_of_known_sizes_is_asked_for(summed: str) -> None:
    with pytest.raises(ModelError, match=r"dimension 1 of input 'attention_mask' .* has no size; give the shape"):
        mask_of(PAST, summed)
