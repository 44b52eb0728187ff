"""Tune SqueezeNet on this machine and show what was gained: `make demo`.

The `onnx` package contains the graph. Each of its weights is a single constant, which would hide a wrong kernel, so the
weights are replaced by random ones. Everything that is written lies in ./out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx

import stormdrop as sd
from stormdrop.model.random_weights import seed_weights

GRAPH = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
OUT = Path("out")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    source = OUT / "squeezenet.onnx"
    onnx.save(seed_weights(onnx.load(GRAPH), seed=0), source)

    print("tuning SqueezeNet on this machine's CPU ...", flush=True)
    with sd.open_store(str(OUT / "demo.db")) as store:
        tuned = sd.tune_model(
            source, time=90, out=OUT / "squeezenet.sd", store=store, fresh=True, on_progress=show
        ).to_json()
        print("timing it beside onnxruntime ...", flush=True)
        bench = sd.bench(OUT / "squeezenet.sd", ["onnxruntime"], store=store).to_json()
    print_latencies(tuned, bench)
    print_tuning(tuned)


def print_latencies(tuned: dict[str, Any], bench: dict[str, Any]) -> None:
    """The untuned and the tuned model beside onnxruntime."""
    print(f"\n{'SqueezeNet, float32, batch 1':<40}{'latency':>10}{'95% interval':>20}{'over ours':>12}")
    # The untuned and the tuned model were timed in turns, and so were the tuned one and onnxruntime: each ratio is of
    # such a pair.
    untuned = tuned["untuned"]
    if untuned:
        row("untuned", untuned, untuned["seconds"] / tuned["latency"]["seconds"])
    else:
        print("untuned: no time was left for it")
    row("tuned", tuned["latency"], 1.0)
    for contender in bench["contenders"]:
        name = "tuned" if contender["name"] == "stormdrop" else contender["name"]
        row(f"{name}, in a process of its own", contender, contender["ratio"])
    for name, reason in bench["skipped"].items():
        print(f"{name}: skipped: {reason}")
    if untuned and untuned["interval"][0] <= tuned["latency"]["interval"][1]:
        print("untuned and tuned: no significant difference")
    if bench["disturbed"] or tuned["suspect"] > tuned["trials"] / 4:
        print(
            "something else used the machine meanwhile: do not trust these figures; run the demo again when it is idle"
        )


def print_tuning(tuned: dict[str, Any]) -> None:
    """The error of the tuned model, and where the time of its tuning went."""
    verified = tuned["verified"]
    print(f"\nerror against {verified['against']}: {verified['max_error']:.1e}")
    print(f"{tuned['trials']} trials ({tuned['failed']} failed) on {len(tuned['tasks'])} kernels")
    print(f"{tuned['seconds']:.1f} s of tuning, of which")
    for phase, seconds in sorted(tuned["phases"].items(), key=lambda part: -part[1]):
        print(f"  {phase:<12}{seconds:>6.1f} s{100 * seconds / tuned['seconds']:>6.0f}%")
    command = f"{Path(sys.prefix).name}/bin/stormdrop run {OUT / 'squeezenet.sd'}"
    print(f"\nthe tuned model is in {OUT / 'squeezenet.sd'}; {command} runs it")


def row(name: str, timing: dict[str, Any], ratio: float) -> None:
    """A line of the table of latencies."""
    low, high = (1e3 * bound for bound in timing["interval"])
    print(f"{name:<40}{1e3 * timing['seconds']:>7.2f} ms{f'{low:.2f} to {high:.2f}':>20}{ratio:>12.2f}")


_shown = [0.0]


def show(progress: sd.Progress) -> None:
    """Prints a line every few seconds while the model is tuned."""
    if progress.elapsed - _shown[0] >= 5:
        _shown[0] = progress.elapsed
        print(f"  {progress.elapsed:.0f} s: {progress.trials} trials {progress.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
