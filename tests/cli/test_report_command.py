"""`stormdrop report`: of a tuned model, of a session, of all records."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import complaint, document, output_of, sections_of_guide

from stormdrop.model import load
from stormdrop.model.artifact.artifact_files import TUNING
from stormdrop.model.artifact.kept_tuning import read_tuning

pytestmark = pytest.mark.compiles


def test_of_a_tuned_model(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    written = document(capfd, "report", artifact, "--out", page)
    assert written == {"kind": "model", "file": str(page), "bytes": page.stat().st_size}
    missing = {key for key in written if f"`{key}`" not in sections_of_guide()["report"]}
    assert not missing
    text = page.read_text()
    metadata, digest, tuning = read_tuning(artifact)
    assert tuning is not None
    assert digest in text
    assert all(task["name"] in text for task in tuning["tasks"])
    assert str(metadata.provenance["sha256"]) in text
    assert "def</span> <span" in text  # the TensorIR is there, and highlighted


def test_what_a_model_keeps_of_its_tuning(artifact: Path) -> None:
    metadata, _, tuning = read_tuning(artifact)
    assert tuning is not None
    assert len(tuning["kernels"]) == len(tuning["tasks"]) > 0
    for task, kernel in zip(tuning["tasks"], tuning["kernels"], strict=True):
        assert kernel["workload"]["flops"] >= 0
        assert "def main(" in kernel["tir"]
        assert sum(kernel["search"]["statuses"].values()) >= kernel["search"]["trials"] - kernel["search"]["reused"]
        schedule = next(each for each in metadata.provenance["schedules"] if each["task"] == task["name"])
        assert kernel["chosen"] == {"sketch": schedule["sketch"], "config": schedule["config"]}
    assert tuning["command"].startswith("stormdrop tune ")
    assert "--trials 8" in tuning["command"]


def test_a_notebook_shows_a_loaded_model_with_its_latency(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sd"
    shutil.copytree(artifact, copy)
    model = load(copy)
    html = model._repr_html_()
    assert model.metadata.name in html and "<details>" in html and "float32[" in html
    assert "latency" in html and "MFLOP" not in html
    shutil.rmtree(copy)  # the model is in memory, what is known of its tuning is not
    html = model._repr_html_()
    assert "latency" not in html and "MFLOP" in html
    model.save(copy)  # a folder without a tuning
    assert model.folder == copy and "latency" not in model._repr_html_()


def test_a_damaged_document_is_one_line(artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.sd"
    shutil.copytree(artifact, copy)
    document_of_tuning = json.loads(gzip.decompress((copy / TUNING).read_bytes()))
    document_of_tuning["seconds"] = 0.1
    (copy / TUNING).write_bytes(gzip.compress(json.dumps(document_of_tuning).encode()))
    assert "damaged" in complaint(capfd, "report", copy, "--out", tmp_path / "page.html")
    (copy / TUNING).unlink()
    assert "missing" in complaint(capfd, "report", copy, "--out", tmp_path / "page.html")


def test_a_model_without_tuning_has_no_report(
    artifact: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "compiled.sd"
    output_of(capfd, "compile", artifact.with_name("small.onnx"), "--out", compiled, "--fresh")
    assert "compiled without tuning" in complaint(capfd, "report", compiled, "--out", tmp_path / "page.html")


def test_of_a_session(database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    *_, session = document(capfd, "db", "list", "--db", database)["sessions"]  # other tests add newer ones
    assert document(capfd, "report", session["id"][:8], "--db", database, "--out", page)["kind"] == "session"
    text = page.read_text()
    assert session["id"] in text
    assert "stormdrop tune-op matmul m=32 n=32 k=32" in text
    assert "prim_func" in text
    assert "Its steps" in text and re.search("[>\n]loops\n", text)  # first, if the schedule splits and packs nothing


def test_of_all_records(database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert document(capfd, "report", "--db", database, "--out", page)["kind"] == "records"
    assert "matmul m=32 n=32 k=32" in page.read_text()


def test_bad_input_is_one_line(
    artifact: Path, database: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page, bench = tmp_path / "page.html", tmp_path / "bench.json"
    bench.write_text("{")
    assert "no such session" in complaint(capfd, "report", "ffff-none", "--db", database, "--out", page)
    assert "no stormdrop model" in complaint(capfd, "report", tmp_path, "--out", page)
    assert "none.sd: no such folder" in complaint(capfd, "report", tmp_path / "none.sd", "--out", page)
    assert "no such file" in complaint(capfd, "report", artifact, "--bench", tmp_path / "none.json", "--out", page)
    assert "no JSON" in complaint(capfd, "report", artifact, "--bench", bench, "--out", page)
    assert "belongs to" in complaint(capfd, "report", "--db", database, "--bench", bench, "--out", page)
    assert ".html" in complaint(capfd, "report", artifact, "--out", tmp_path / "page.pdf")
    assert "--out" in complaint(capfd, "report", artifact, "--out", tmp_path / "none" / "page.html")
    assert not page.exists()
