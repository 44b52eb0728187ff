"""SqueezeNet and ResNet-50 with seeded weights: tuned from nothing, verified, beside onnxruntime and openvino."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
from common import bars, machine, save

import stormdrop as sd
from stormdrop.model.weights import seed_weights

GRAPHS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def main() -> None:
    where = machine()
    print(f"{where['cpu']}, {where['cores']} cores, {where['versions']}")
    results = []
    with tempfile.TemporaryDirectory() as folder, sd.open_store("sqlite://") as store:
        for name in sys.argv[1:] or ["squeezenet", "resnet50"]:
            source, artifact = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.sd"
            onnx.save(seed_weights(onnx.load(GRAPHS / f"light_{name}.onnx"), seed=0), source)
            tuned = sd.tune_model(source, out=artifact, store=store, fresh=True).to_json()
            bench = sd.bench(artifact, ["onnxruntime", "openvino"], store=store).to_json()
            print(
                f"\n{name}: {tuned['seconds']:.1f} s of tuning, {tuned['trials']} trials, {tuned['suspect']} suspect, "
                f"error {tuned['verified']['max_error']:.1e} against {tuned['verified']['against']}, "
                f"fallbacks {tuned['fallbacks']}, untuned {1e3 * tuned['untuned']['seconds']:.2f} ms"
            )
            print("  " + ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in tuned["phases"].items()))
            for each in bench["contenders"]:
                low, high = each["ratio_interval"]
                print(
                    f"  {each['name']:<12}{1e3 * each['seconds']:>8.2f} ms, over ours {each['ratio']:.2f} "
                    f"({low:.2f} to {high:.2f}), error {each['max_error']:.1e}"
                )
            results.append({"name": name, "tuned": tuned, "bench": bench})
    print(save("models", {"machine": where, "results": results}))
    names = [each["name"] for each in results[0]["bench"]["contenders"]]
    series = {
        who: [1e3 * next(c["seconds"] for c in entry["bench"]["contenders"] if c["name"] == who) for entry in results]
        for who in names
    }
    print(bars("models", f"float32, batch 1, on {where['cpu']}", "ms", [entry["name"] for entry in results], series))


if __name__ == "__main__":
    main()
