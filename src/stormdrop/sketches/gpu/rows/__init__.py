"""Norms, softmax, sums, one-row products and elementwise chains, which read memory once and in vectors.

sketch.py   the sketch: its knobs
stages.py   which functions it takes: stages over rows and terms
kernel.py   their loops in one configuration
columns.py  those of sums whose neighbours read neighbours
nests.py    stages in loops over blocks and threads
"""
