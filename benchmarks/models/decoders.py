"""Decoders of transformers with seeded weights, as ONNX models with caches in the form that Optimum exports.

    python benchmarks/models/decoders.py gpt2 /tmp/gpt2.onnx          # GPT-2 small, 124 M parameters
    python benchmarks/models/decoders.py llama /tmp/llama.onnx        # like Llama: 0.5 B parameters, 24 layers
    python benchmarks/models/decoders.py tiny_llama /tmp/tiny.onnx    # two layers, 64 wide

Inputs are input_ids [B, S], attention_mask [B, P + S], position_ids [B, S] and past_key_values.I.key and .value
[B, H, P, D]; outputs are logits [B, S, V] and present.I.key and .value [B, H, P + S, D]. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "llama": (
        "Llama",
        {
            "vocab_size": 32000,
            "hidden_size": 1152,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 18,
            "num_key_value_heads": 6,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        },
    ),
    "tiny_gpt2": ("GPT2", {"vocab_size": 300, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "tiny_llama": (
        "Llama",
        {
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
        },
    ),
}
"""The kind and the configuration of each, as transformers has them."""

_LARGER = 5


def decoder(name: str) -> Any:
    """A module of transformers with seeded weights.

    Args:
        name: One of `DECODERS`.
    """
    import torch
    import transformers

    kind, settings = DECODERS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(attn_implementation="eager", **settings)
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    words = module.get_input_embeddings().weight
    with torch.no_grad():  # as they are drawn, all words are nearly as likely, or the last one follows itself
        for parameter in module.parameters():
            if parameter.ndim == 2 and parameter is not words:
                parameter.mul_(_LARGER)
    return module


def export(module: Any, path: Path) -> None:
    """Writes a decoder as an ONNX model.

    Args:
        module: What `decoder` made.
        path: The file. Weights of more than 2 GB lie beside it.
    """
    import torch
    from transformers.cache_utils import DynamicCache

    config = module.config
    layers = config.num_hidden_layers
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    width = config.hidden_size // config.num_attention_heads

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            made = self.module(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            states = [state for layer in made.past_key_values.layers for state in (layer.keys, layer.values)]
            return (made.logits, *states)

    pasts = [f"past_key_values.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    presents = [name.replace("past_key_values", "present") for name in pasts]
    rows, length = 3, 5
    ids = torch.ones(1, rows, dtype=torch.int64)
    mask = torch.ones(1, length + rows, dtype=torch.int64)
    positions = torch.arange(length, length + rows)[None]
    axes = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "past + sequence"},
        "position_ids": {0: "batch", 1: "sequence"},
        "logits": {0: "batch", 1: "sequence"},
        **{name: {0: "batch", 2: "past"} for name in pasts},
        **{name: {0: "batch", 2: "past + sequence"} for name in presents},
    }
    torch.onnx.export(
        Flat(),
        (ids, mask, positions, *(torch.zeros(1, heads, length, width) for _ in pasts)),
        str(path),
        input_names=["input_ids", "attention_mask", "position_ids", *pasts],
        output_names=["logits", *presents],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decoder", choices=DECODERS)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    export(decoder(arguments.decoder), arguments.file)


if __name__ == "__main__":
    main()
