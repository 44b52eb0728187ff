"""Sketches for NVIDIA GPUs, and what a tiling asks of a device before it is compiled."""
