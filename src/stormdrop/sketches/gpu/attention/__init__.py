"""Attention as one kernel: no score of it is in global memory.

sketch.py      on CUDA cores: its knobs, limits and default
mma.py         on tensor cores, of 16-bit numbers: its knobs, limits and default
parts.py       which functions they take, and what their parts are
sizes.py       how they are divided among threads, warps and tiles
loops.py       the kernel on CUDA cores in one configuration
split.py       the keys of a head in parts, for few queries
fragments.py   that on tensor cores
statements.py  what both kernels share
"""
