"""Which instruction set extensions this CPU has, read from Linux for processes without TVM."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .fewer_units import hidden_features

_CPUINFO = Path("/proc/cpuinfo")

_SAME_NAME = "sse2 ssse3 avx avx2 fma f16c popcnt bmi2 gfni vaes vpclmulqdq movbe adx aes xsave sve sve2 i8mm bf16"
FLAGS = {
    **{name: name for name in _SAME_NAME.split()},
    **{f"avx512{part}": f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl", "ifma", "vbmi")},
    **{f"avx512{part}": f"avx512_{part}" for part in ("bf16", "bitalg", "fp16", "vbmi2", "vnni", "vpopcntdq")},
    "avxvnni": "avx_vnni",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sha": "sha_ni",
    "prfchw": "3dnowprefetch",
    **{f"amx-{part}": f"amx_{part}" for part in ("tile", "int8", "bf16")},
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "lse": "atomics",
}
"""Linux's name of each extension that compiled kernels may use, by LLVM's name.

Random numbers (`rdrnd`, `rdseed`) are not among them. No kernel uses them, and Linux hides `rdseed` on CPUs where it is
faulty (Zen 5), although CPUID shows it.
"""


def missing_features(features: Collection[str], cpuinfo: Path = _CPUINFO) -> list[str]:
    """The extensions that this CPU lacks.

    Args:
        features: LLVM's names of extensions. Those that are not in `FLAGS` are ignored.
        cpuinfo: Linux's description of the CPU.

    Returns:
        The names of the missing extensions, sorted; an empty list if the system does not say what the CPU has.
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "").split()
    lacking = {name for name in features if flags and name in FLAGS and FLAGS[name] not in flags}
    return sorted(lacking | hidden_features(features))
