"""What a CPU can, without LLVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from stormdrop.machine.cpu_flags import FLAGS, missing_features
from stormdrop.machine.detect import has_llvm, host_features
from stormdrop.machine.fewer_units import VARIABLE

X86 = "processor : 0\nflags\t\t: fpu sse2 pni sse4_1 avx2 fma avx512f avx512_vnni abm bmi1\nbugs : spectre\n"
ARM = "processor : 0\nFeatures\t: fp asimd atomics asimddp\n"


@pytest.mark.parametrize(
    ("text", "features", "missing"),
    [
        (X86, ["sse3", "sse4.1", "avx512f", "avx512vnni", "lzcnt", "bmi"], []),
        (X86, ["avx512bw", "avx2", "f16c"], ["avx512bw", "f16c"]),
        (X86, ["sahf", "64bit"], []),
        (X86, ["rdseed"], []),  # Linux hides it where it is faulty, and no kernel uses it
        (ARM, ["neon", "lse", "dotprod"], []),
        (ARM, ["sve", "neon"], ["sve"]),
        ("nothing of that kind\n", ["avx2"], []),
    ],
)
def test_what_is_missing(
    tmp_path: Path, text: str, features: list[str], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    assert missing_features(features, cpuinfo) == missing


def test_llvm_and_linux_say_the_same() -> None:
    if not has_llvm() or not Path("/proc/cpuinfo").exists():
        pytest.skip("needs LLVM and Linux")
    host = host_features()
    assert host & FLAGS.keys(), "no name is known"
    assert missing_features(host) == []
    assert set(missing_features(FLAGS)) == FLAGS.keys() - host


def test_nobody_says(tmp_path: Path) -> None:
    assert missing_features(["avx2"], tmp_path / "none") == []
