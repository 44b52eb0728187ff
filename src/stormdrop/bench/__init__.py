"""Our kernels and models beside their peers, which take turns."""
