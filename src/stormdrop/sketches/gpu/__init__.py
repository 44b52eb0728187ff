"""Kernels for NVIDIA GPUs: what the devices offer, what a tiling asks of them, the sketches."""
