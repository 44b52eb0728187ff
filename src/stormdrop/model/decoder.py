"""`sd.Decoder`: the decoder of `runtime`, which also loads a model of any kind from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..runtime import decoding
from ..runtime.calling import CallableModel
from . import load


class Decoder(decoding.Decoder):
    """A language model with the keys and values of the tokens so far; see `runtime.decoding.Decoder`.

    Args:
        model: A model that was compiled or tuned, or its folder.
        state: As there: which output is which input of the next step, where the names do not say it.

    Raises:
        InputError: As there.
        ArtifactError: The folder holds no model, or one that cannot run here; see `stormdrop.load`.

    Example:
        ```text
        decoder = sd.Decoder("gpt2.sd")
        print(tokenizer.decode(decoder.generate(tokenizer.encode("Once upon a time"), 100)))
        ```
    """

    def __init__(self, model: CallableModel | str | Path, state: Mapping[str, str] | None = None) -> None:
        super().__init__(load(model) if isinstance(model, str | Path) else model, state)
