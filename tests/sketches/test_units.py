"""What sketches tell a construction about the machine."""

from stormdrop.machine.cpu import parse_machine
from stormdrop.sketches import knowledge


def test_the_unit_is_a_vector_or_a_warp() -> None:
    """AVX2 has eight float32 lanes, AVX-512 sixteen; an NVIDIA warp has 32 threads."""
    units = {name: knowledge.unit(parse_machine(name)) for name in ("cpu/x86-64-v3", "cpu/x86-64-v4", "cuda/h100")}
    assert units == {"cpu/x86-64-v3": 8, "cpu/x86-64-v4": 16, "cuda/h100": 32}
