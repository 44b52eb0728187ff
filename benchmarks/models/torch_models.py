"""Which models of torchvision and transformers can be compiled, and by which way.

    python benchmarks/models/torch_models.py                      # compiles all: default schedules, nothing measured
    python benchmarks/models/torch_models.py --time 60s           # tunes each for 60 s
    python benchmarks/models/torch_models.py --models resnet50,bert --ways compile

The ways are

- `compile`: `torch.compile(module, backend="stormdrop")`, then a call under `torch.no_grad()`
- `module`: `sd.compile_model(module, example_inputs=...)`, or `sd.tune_model`
- `onnx`: `torch.onnx.export(module, ..., dynamo=True)`, and the ONNX model

Each model is made with seeded weights, and batch norms with the statistics of an image, in a process of its own. The
models of transformers have fewer layers than the published ones, so that all fit into the memory of a small machine;
their layers are the real ones. What is done is kept in `benchmarks/recorded/torch_models.jsonl`, and a second run goes
on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

OUT = Path(__file__).parents[1] / "recorded" / "torch_models.jsonl"
WAYS = ("compile", "module", "onnx")
LIMIT = 600.0  # seconds that one model may take besides its tuning
WRONG = 1e-2  # a larger error than this, relative to the largest output, is no rounding, if a peer has a smaller one
SIZES = {"inception_v3": 299}  # of images, if not 224

TORCHVISION = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "squeezenet1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vgg11_bn",
    "vit_b_32",
    "wide_resnet50_2",
    "densenet169",
    "efficientnet_b3",
    "mnasnet0_5",
    "shufflenet_v2_x0_5",
)
"""One model of each of torchvision's families of classification networks, and of their main variants."""


def _image(size: int = 224) -> Any:
    import torch

    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


def _tokens(length: int, words: int) -> Any:
    import torch

    return torch.randint(1, words, (1, length), generator=torch.Generator().manual_seed(1))


def _text(kind: str, length: int = 64, **settings: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    module = getattr(transformers, f"{kind}Model")(config)
    tokens = _tokens(length, config.vocab_size)
    return module, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _t5() -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.T5Config(num_layers=3)
    return transformers.T5EncoderModel(config), {"input_ids": _tokens(64, config.vocab_size)}


def _whisper() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(encoder_layers=2, d_model=384, encoder_attention_heads=6, encoder_ffn_dim=1536)
    sound = torch.randn(1, config.num_mel_bins, 3000, generator=torch.Generator().manual_seed(1))
    return WhisperEncoder(config), {"input_features": sound}


def _vision(kind: str, size: int = 224, **settings: Any) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    return getattr(transformers, f"{kind}Model")(config), {"pixel_values": _image(size)}


def _clip() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = transformers.CLIPConfig(
        text_config={"num_hidden_layers": 2}, vision_config={"num_hidden_layers": 2, "patch_size": 32}
    )
    tokens = _tokens(16, 1000)
    inputs = {"input_ids": tokens, "pixel_values": _image(), "attention_mask": torch.ones_like(tokens)}
    return transformers.CLIPModel(config), inputs


TRANSFORMERS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": lambda: _text("Bert", num_hidden_layers=2),
    "distilbert": lambda: _text("DistilBert", n_layers=2),
    "roberta": lambda: _text("Roberta", num_hidden_layers=2),
    "gpt2": lambda: _text("GPT2", n_layer=2, use_cache=False),
    "t5_encoder": _t5,
    "whisper_encoder": _whisper,
    "vit": lambda: _vision("ViT", num_hidden_layers=2),
    "deit": lambda: _vision("DeiT", num_hidden_layers=2),
    "convnext": lambda: _vision("ConvNext", depths=[1, 1, 2, 1]),
    "swin": lambda: _vision("Swin", depths=[1, 1, 2, 1]),
    "mobilevit": lambda: _vision("MobileViT", 256),
    "clip": _clip,
}

NAMES = (*TORCHVISION, *TRANSFORMERS)


def made(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module of this name in inference mode, its positional and its named inputs; weights are of seed 0."""
    import torch

    torch.manual_seed(0)
    models = torchvision_models()  # transformers imports torchvision, too
    if name in TRANSFORMERS:
        module, named = TRANSFORMERS[name]()
        return module.eval(), (), named
    settings: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = models.get_model(name, weights=None, **settings)
    for part in module.modules():
        if isinstance(part, torch.nn.Linear) and not part.weight.any():  # torchvision's ViT begins with such a head
            torch.nn.init.normal_(part.weight, std=0.02)
    image = _image(SIZES.get(name, 224))
    return _with_statistics(module, torch.cat([image, image.flip(3)])), (image,), {}


def _with_statistics(module: Any, images: Any) -> Any:
    """A module in inference mode whose batch norms have the statistics of two images.

    With those of a fresh module activations vanish layer by layer, until every output is a constant. Then nothing that
    is wrong with a layer could be seen.
    """
    import torch

    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the statistics of this batch alone
    if norms:
        with torch.no_grad():
            module.train()(images)
    return module.eval()


def torchvision_models() -> Any:
    """torchvision's models, without its own operators: those for CUDA cannot be loaded beside a torch for CPUs."""
    with mock.patch("torch.library.register_fake", return_value=lambda function: function):
        import torchvision.models
    return torchvision.models


def by_compile(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `torch.compile` brings: how many graphs, which of them run eagerly, and the error against eager torch."""
    import torch
    from torch.utils._pytree import tree_leaves

    from stormdrop.integrations import torch_compile

    torch.set_grad_enabled(False)
    module, arguments, named = made(name)
    right = tree_leaves(module(*arguments, **named))
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append(torch_compile.stormdrop(graph, example_inputs, options=options))
        return graphs[-1]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = tree_leaves(torch.compile(module, backend=backend)(*arguments, **named))
    eager = [str(each.message) for each in caught if "runs eagerly" in str(each.message)]
    pairs = [(a, b) for a, b in zip(ours, right, strict=True) if isinstance(a, torch.Tensor)]
    error = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in pairs)
    compiled = [each for graph in graphs for each in graph._compiled.values() if each is not None]
    foreign = [str(part) for each in compiled for part in each._model.metadata.foreign]
    return {"graphs": len(graphs), "eager": eager, "error": error, "elsewhere": foreign}


def by_module(name: str, options: dict[str, Any]) -> dict[str, Any]:
    module, arguments, named = made(name)
    return _report(module, options, {**named} or arguments)


def by_onnx(name: str, options: dict[str, Any]) -> dict[str, Any]:
    import torch

    module, arguments, named = made(name)
    program = torch.onnx.export(module, arguments, kwargs=named, dynamo=True, verbose=False)
    return _report(program.model_proto, options, None)


def _report(model: Any, options: dict[str, Any], example_inputs: Any) -> dict[str, Any]:
    from stormdrop.model.tune import tune_model_with
    from stormdrop.model.untuned import compile_model_with
    from stormdrop.tuning.options import TuneOptions

    make = tune_model_with if options else compile_model_with
    result = make(model, None, TuneOptions.of(**options), example_inputs=example_inputs)
    document = result.to_json()
    foreign = [str(part) for part in getattr(result.model.metadata, "foreign", ())]
    return {
        "kernels": len(result.tasks),
        "error": document["verified"]["max_error"],
        "against": document["verified"]["against"],
        "plain": document["fallbacks"],
        "elsewhere": foreign,
        "phases": document["phases"],
        "latency": document.get("latency"),
    }


def one(name: str, way: str, seconds: float) -> dict[str, Any]:
    """A model by one way, in this process; what went wrong is the entry "failed"."""
    from stormdrop.errors import StormdropError

    begin = time.perf_counter()
    options = {"time": seconds} if seconds else {}
    try:
        entry = {"compile": by_compile, "module": by_module, "onnx": by_onnx}[way](name, options)
    except StormdropError as error:
        entry = {"failed": str(error)}
    except Exception as error:  # noqa: BLE001  whatever torch or transformers raise is an entry of the table
        entry = {"failed": f"TRACEBACK {type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
    return {"model": name, "way": way, "time": seconds, **entry, "seconds": time.perf_counter() - begin}


def _in_child(name: str, way: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, way, "--time", str(seconds)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT + seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "way": way, "time": seconds, "failed": f"takes more than {LIMIT + seconds:.0f} s"}
    try:
        return dict(json.loads(run.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return {"model": name, "way": way, "time": seconds, "failed": f"CRASH {run.returncode}: {last}"}


def _outcome(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return "failed"
    # On inputs of a million different sizes some of these networks have no digit that float32 keeps.
    theirs = re.search(r"\(error of .*: (.*)\)", entry.get("against", ""))
    if not entry["error"] <= max(WRONG, float(theirs[1]) if theirs else 0.0):
        return "wrong"
    return "eager" if entry.get("eager") else "ok"


def _line(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        what = f"FAILED {entry['failed'][:160]}"
    else:
        notes = [f"error {entry['error']:.1e}"]
        notes += (
            [f"{entry['graphs']} graphs, {len(entry['eager'])} eager: {entry['eager']}"] if "graphs" in entry else []
        )
        notes += [f"{entry['kernels']} kernels"] if "kernels" in entry else []
        notes += [f"plain: {', '.join(entry['plain'])}"] if entry.get("plain") else []
        notes += [f"elsewhere: {', '.join(entry['elsewhere'])}"] if entry.get("elsewhere") else []
        what = "; ".join(notes)
    return f"{entry['model']:20} {entry['way']:8} {entry.get('seconds', 0):6.1f} s  {what}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--time", default="0", help="budget of each tuning, such as 60s; 0 compiles only")
    parser.add_argument("--again", action="store_true", help="forget what is done of these models and ways")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    from stormdrop.tuning.duration import seconds_of

    seconds = 0.0 if given.time in ("0", "0.0") else float(seconds_of(given.time) or 0.0)
    if given.one:
        print(json.dumps(one(*given.one, seconds)))
        return
    OUT.parent.mkdir(exist_ok=True)
    lines = OUT.read_text().splitlines() if OUT.exists() else []
    done = {(entry["model"], entry["way"], entry["time"]): entry for entry in map(json.loads, lines)}
    outcomes: Counter[tuple[str, str]] = Counter()
    for name in given.models.split(","):
        for way in given.ways.split(","):
            entry = None if given.again else done.get((name, way, seconds))
            if entry is None:
                entry = _in_child(name, way, seconds)
                with OUT.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
            outcomes[way, _outcome(entry)] += 1
            print(_line(entry), flush=True)
    print(", ".join(f"{way} {outcome}: {count}" for (way, outcome), count in sorted(outcomes.items())))


if __name__ == "__main__":
    main()
