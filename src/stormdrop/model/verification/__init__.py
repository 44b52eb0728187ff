"""How a compiled model is verified: its inputs, another runtime's outputs, and what NumPy computes in float64."""
