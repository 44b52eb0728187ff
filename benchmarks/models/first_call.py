"""How long the first call of `torch.compile` takes: in a fresh process, and in the next one, which finds what was kept.

    python benchmarks/models/first_call.py                        # both networks and GPT-2, stormdrop and inductor
    python benchmarks/models/first_call.py --names resnet18 --backends stormdrop

Each backend begins with an empty cache. The first process compiles, the second one does the same work again. Counted is
the call of the compiled module, with all that is loaded for it; not the import of torch, and not the making of the
module. GPT-2 (4 layers, seeded weights) makes 24 words with a static cache; its words are compared with those of eager
torch. Beside other work the seconds of the clock are many, and those of the processors (CPU) say more. What is done is
kept in `benchmarks/recorded/first_call.jsonl`, and a second run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import RECORDED, Campaign, campaign_parser, chosen, versions
from _torch_modules import made

from stormdrop import Cpu

NETWORKS = ("mobilenet_v3_small", "resnet18")
GPT2 = "gpt2"
BACKENDS = ("stormdrop", "inductor")
LIMIT = 600.0  # seconds of a process
LATER = 20  # calls after the first, of which the median counts
PROMPT, WORDS = 8, 24


def network(name: str, backend: str) -> dict[str, Any]:
    """The first call of a network, the median of later ones, and the error of its outputs."""
    import torch

    module, arguments, named = made(name)
    right = module(*arguments, **named)
    fast = torch.compile(module, backend=backend)
    used = _cpu()
    first, ours = _timed(lambda: fast(*arguments, **named))
    used = _cpu() - used
    later = [_timed(lambda: fast(*arguments, **named))[0] for _ in range(LATER)]
    error = float((ours - right).abs().max() / right.abs().max())
    return {"first": first, "cpu": used, "later": statistics.median(later), "error": error}


def gpt2(backend: str) -> dict[str, Any]:
    """The first and a later generation of GPT-2 with a static cache, and whether the words are those of eager torch."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, bos_token_id=None, eos_token_id=None)
    module = transformers.GPT2LMHeadModel(config).eval()
    prompt = torch.randint(1, config.vocab_size, (1, PROMPT))
    settings = {"max_new_tokens": WORDS, "do_sample": False, "cache_implementation": "static", "pad_token_id": 0}
    mask = torch.ones_like(prompt)
    eager, right = _timed(lambda: module.generate(prompt, attention_mask=mask, **settings))
    module.forward = torch.compile(module.forward, backend=backend)
    used = _cpu()
    first, ours = _timed(lambda: module.generate(prompt, attention_mask=mask, **settings))
    used = _cpu() - used
    later, again = _timed(lambda: module.generate(prompt, attention_mask=mask, **settings))
    equal = bool(torch.equal(ours, right) and torch.equal(again, right))
    return {"first": first, "cpu": used, "later": later, "eager": eager, "equal": equal}


def _cpu() -> float:
    """The seconds of processors that this process and those that it started have used: load hardly changes them."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def one(name: str, backend: str) -> dict[str, Any]:
    """What one process measures."""
    import torch

    torch.set_grad_enabled(False)
    if backend == "stormdrop":
        import stormdrop.integrations.torch_compile

        torch._dynamo.register_backend(stormdrop.integrations.torch_compile.stormdrop, name="stormdrop")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entry = gpt2(backend) if name == GPT2 else network(name, backend)
    return {**entry, "eager graphs": [str(each.message) for each in caught if "runs eagerly" in str(each.message)]}


def pair(name: str, backend: str) -> dict[str, Any]:
    """Two processes one after the other, which share a cache that was empty."""
    with tempfile.TemporaryDirectory() as folder:
        places = {
            "XDG_CACHE_HOME": f"{folder}/cache",
            "XDG_DATA_HOME": f"{folder}/data",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        }
        entry: dict[str, Any] = {}
        for process in ("fresh", "second"):
            entry[process] = _process(name, backend, {**os.environ, **places})
        return entry


def _process(name: str, backend: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, backend]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"takes more than {LIMIT:.0f} s"}
    try:
        return dict(json.loads(run.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return {"failed": f"ends with {run.returncode}: {last}"}


def _row(entry: dict[str, Any]) -> list[str]:
    fresh, second = entry["fresh"], entry["second"]
    failed = fresh.get("failed") or second.get("failed")
    if failed:
        return [entry["name"], entry["backend"], failed[:60], "", "", ""]
    exact = ("equal" if fresh["equal"] and second["equal"] else "DIFFERENT") if "equal" in fresh else ""
    what = exact or f"{max(fresh['error'], second['error']):.1e}"
    return [
        entry["name"],
        entry["backend"],
        f"{fresh['first']:.1f} s ({fresh['cpu']:.1f} s)",
        f"{second['first']:.1f} s ({second['cpu']:.1f} s)",
        f"{1e3 * second['later']:.1f} ms",
        what,
    ]


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--names", default=",".join((*NETWORKS, GPT2)))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--one", nargs=2, metavar=("NAME", "BACKEND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*given.one)))
        return
    target = Cpu.detect()
    host = {"cpu": target.cpu, "cores": target.cores, "versions": versions()}
    campaign = Campaign(given.file or RECORDED / "first_call.jsonl", host, given, several=True)
    rows = []
    for name in chosen(given.names, (*NETWORKS, GPT2), "model"):
        for backend in chosen(given.backends, BACKENDS, "backend"):
            key = {"name": name, "backend": backend}
            entry = campaign.latest(key) if given.show else campaign.once(key, partial(pair, name, backend))
            if entry is not None:
                rows.append(_row(entry))
                print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    campaign.table(
        ["model", "backend", "first process (CPU)", "second process (CPU)", "later calls", "error or words"], rows
    )


if __name__ == "__main__":
    main()
