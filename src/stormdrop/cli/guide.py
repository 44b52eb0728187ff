"""What the help of a command shows besides its options: examples, and the operators in one line each.

It loads no TVM, because help and tab completion answer at once.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

EXAMPLES: dict[str, tuple[str, ...]] = {
    "tune": (
        "stormdrop tune resnet50.onnx --time 3m --out resnet50.sd",
        "stormdrop tune bert.onnx --shape input_ids=1x128,attention_mask=1x128",
        "stormdrop tune resnet50.onnx --time 3m --resume",
        "stormdrop tune resnet50.onnx --time 3m --log tune.jsonl --trace trace.json",
    ),
    "tune-op": (
        "stormdrop tune-op matmul m=512 n=512 k=512 --time 15s",
        "stormdrop tune-op conv2d n=1 h=8 w=8 ci=64 co=64 kh=3 kw=3 --show schedule",
        "stormdrop tune-op softmax m=512 n=1024 --search droplet --trials 100 --json",
        "stormdrop tune-op matmul m=512 n=512 k=512 --fleet ray://head:10001",
    ),
    "compile": ("stormdrop compile resnet50.onnx --out resnet50.sd",),
    "quantize": (
        "stormdrop quantize resnet50.onnx --data images.npz --per-channel",
        "stormdrop quantize gpt2.onnx --weights-only 4 --out gpt2.int4.onnx",
    ),
    "run": (
        "stormdrop run resnet50.sd --profile",
        "stormdrop run resnet50.sd --profile --trace trace.json",
        "stormdrop run resnet50.sd --input x.npz --output y.npz",
    ),
    "bench": (
        "stormdrop bench resnet50.sd --against onnxruntime",
        "stormdrop bench matmul m=512 n=512 k=512",
    ),
    "compare": (
        "stormdrop compare matmul m=64 n=64 k=64 --search storm,random --seeds 3",
        "stormdrop compare space.json --search droplet,droplet:preset=paper",
    ),
    "landscape": ("stormdrop landscape analytic:lrw --knobs h,w --search droplet",),
    "report": (
        "stormdrop report resnet50.sd --out resnet50.html",
        "stormdrop report --db records.db --out records.html",
    ),
    "dashboard": ("stormdrop dashboard", "stormdrop dashboard --db records.db --port 8080 --log tune.jsonl"),
    "operators": ("stormdrop operators", "stormdrop operators --json"),
    "doctor": ("stormdrop doctor", "stormdrop doctor --refresh --json"),
    "cache": ("stormdrop cache", "stormdrop cache --clear"),
    "fleet": ("stormdrop fleet", "stormdrop fleet ray://head:10001 --json"),
    "db list": ("stormdrop db list", "stormdrop db list --db records.db --json"),
    "db export": ("stormdrop db export records.jsonl",),
    "db import": ("stormdrop db import records.jsonl", "stormdrop db import --trusted mine.jsonl --db records.db"),
    "db merge": ("stormdrop db merge other.db --db records.db",),
    "db upgrade": ("stormdrop db upgrade", "stormdrop db upgrade --db postgresql://me@dbhost/records"),
}
"""Commands that work, by the command's name."""

_UNCHANGED = "\b\n"  # typer does not fill the lines of the paragraph that follows


@cache
def descriptions() -> dict[str, str]:
    """What each operator of this package computes, by name, as `@operator` says in the files of `operators`.

    These are read and not imported, because they load TVM. `operators.names()` lists those of plug-ins, too.
    """
    return {function.name: purpose for function, purpose in _operators()}


def arguments(operator: str) -> set[str]:
    """The names of the arguments of an operator of this package; empty for any other name."""
    functions = (function for function, _ in _operators() if function.name == operator)
    return {argument.arg for function in functions for argument in (*function.args.args, *function.args.kwonlyargs)}


def _operators() -> list[tuple[ast.FunctionDef, str]]:
    """The operators' functions in the order of their names, and what each computes."""
    found = []
    for file in Path(__file__).parents[1].joinpath("operators").glob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            match node:
                case ast.FunctionDef(
                    decorator_list=[ast.Call(func=ast.Name("operator"), args=[ast.Constant(str(purpose)), *_])]
                ):
                    found.append((node, purpose))
    return sorted(found, key=lambda each: each[0].name)


def epilog(command: str) -> str:
    """The end of a command's help.

    Args:
        command: The name of the command, with that of its group.
    """
    parts = [_block("Examples", EXAMPLES[command])]
    if command == "tune-op":
        width = max(map(len, descriptions()), default=0)
        lines = tuple(f"{name:<{width}}  {what}" for name, what in descriptions().items())
        parts.append(_block("Operators (their arguments: stormdrop operators)", lines))
    return "\n\n".join(parts)


def _block(title: str, lines: tuple[str, ...]) -> str:
    return "\n".join([f"{_UNCHANGED}{title}:", *(f"  {line}" for line in lines)])
