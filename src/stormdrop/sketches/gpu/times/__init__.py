"""The time that kernels for GPUs are expected to take, of each kind of sketch, before any of them is compiled.

waves.py      what they share: parts that run at once, waves of blocks, the bytes of memory, a launch
tilings.py    tilings of contractions
fragments.py  products of matrices on tensor cores
movement.py   what moves data or sums it up without using any of it again
"""
