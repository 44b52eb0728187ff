"""Attributes of functions: what a sketch or a model asks of code generation.

The values of these names are stored in functions and enter fingerprints: they must not change.
"""

from __future__ import annotations

UNALIGNED = "stormdrop.anywhere"
"""The positions of those parameters whose memory may begin at any element.

The memory of all others begins at a multiple of 64 bytes, and loads and stores rely on it.
"""

NON_TEMPORAL = "stormdrop.non_temporal"
"""The results of the function are stored past the caches."""

DISJOINT_SHARED = "stormdrop.apart"
"""The arrays in shared memory of a GPU must not use the same bytes one after the other."""

ONLY_WAITS = "stormdrop.only_waits"
"""The barriers behind waits for copies are all that a GPU's threads need in memory whose size the launch gives.

TVM takes all arrays of such memory for one, and would put more barriers between what is written and what is read.
"""

WORD = "stormdrop_word"
"""A function in expressions: the word of 32 bits that its arguments make, the lowest byte first; missing ones are 0."""

DOT = "stormdrop_dot"
"""What the names of functions begin with that add the products of the bytes of two words to a third argument."""

NEEDS = "stormdrop.needs"
"""LLVM's names of the instruction set extensions without which the function cannot be compiled, or does not run."""
