"""Attributes of functions: what a sketch or a model asks of code generation."""

from __future__ import annotations

ANYWHERE = "stormdrop.anywhere"
"""The positions of tensors among a function's parameters that may begin at any element.

All others begin at a multiple of 64 bytes. Their loads and stores rely on it.
"""

NON_TEMPORAL = "stormdrop.non_temporal"
"""The results of the function are stored past the caches."""

APART = "stormdrop.apart"
"""A function for a GPU whose arrays in shared memory must not lie over one another."""
