"""Winograd convolutions for CPUs.

sketch.py       the sketch: what it computes, and its knobs
arithmetic.py   what it computes in: float32, or integers for bytes
loops.py        its loops in one configuration
cost_model.py   what to expect of it before anything is measured
"""
