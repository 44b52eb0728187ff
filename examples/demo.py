"""Tune SqueezeNet on this machine and show what was gained: `make demo`.

The graph ships inside the `onnx` package. Its weights are one constant each, so they are replaced by random ones,
with which a wrong kernel would be noticed. Everything that is written lies in ./out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx

import stormdrop as sd
from stormdrop.model.weights import seed_weights

GRAPH = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
OUT = Path("out")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    source = OUT / "squeezenet.onnx"
    onnx.save(seed_weights(onnx.load(GRAPH), seed=0), source)

    print("tuning SqueezeNet on this machine's CPU ...", flush=True)
    with sd.open_store(str(OUT / "demo.db")) as store:
        tuned = sd.tune_model(source, out=OUT / "squeezenet.sd", store=store, fresh=True, on_progress=show).to_json()
        print("timing it beside onnxruntime ...", flush=True)
        bench = sd.bench(OUT / "squeezenet.sd", ["onnxruntime"], store=store).to_json()

    print(f"\n{'SqueezeNet, float32, batch 1':<30}{'latency':>10}{'95% interval':>20}{'over ours':>12}")
    # Untuned and tuned were also timed in turns: the ratio is of these two, whatever the machine did since.
    row("untuned", tuned["untuned"], tuned["untuned"]["seconds"] / tuned["latency"]["seconds"])
    for each in bench["contenders"]:
        row("tuned by stormdrop" if each["name"] == "stormdrop" else each["name"], each, each["ratio"])
    for name, reason in bench["skipped"].items():
        print(f"{name}: skipped: {reason}")
    if bench["disturbed"]:
        print(f"something else used the machine in {bench['disturbed']} of {bench['runs']} rounds")

    verified = tuned["verified"]
    print(f"\nerror against {verified['against']}: {verified['max_error']:.1e}")
    print(f"{tuned['trials']} trials ({tuned['failed']} failed) on {len(tuned['tasks'])} kernels")
    print(f"{tuned['seconds']:.1f} s of tuning, of which")
    for phase, seconds in sorted(tuned["phases"].items(), key=lambda part: -part[1]):
        print(f"  {phase:<12}{seconds:>6.1f} s{100 * seconds / tuned['seconds']:>6.0f}%")
    print(f"\nthe tuned model is in {OUT / 'squeezenet.sd'}; stormdrop run {OUT / 'squeezenet.sd'} runs it")


def row(name: str, timing: dict[str, Any], ratio: float) -> None:
    low, high = (1e3 * bound for bound in timing["interval"])
    print(f"{name:<30}{1e3 * timing['seconds']:>7.2f} ms{f'{low:.2f} to {high:.2f}':>20}{ratio:>12.2f}")


_shown = [0.0]


def show(progress: sd.Progress) -> None:
    """A line every few seconds."""
    if progress.elapsed - _shown[0] >= 5:
        _shown[0] = progress.elapsed
        print(f"  {progress.elapsed:.0f} s: {progress.trials} trials {progress.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
