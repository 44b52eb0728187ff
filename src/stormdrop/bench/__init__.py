"""Times our kernels and models beside their peers, which take turns with them."""
