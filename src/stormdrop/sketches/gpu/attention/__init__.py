"""Attention as one kernel: no score of it is in global memory.

sketch.py      the sketch: its knobs, limits and default
parts.py       which functions it takes, and what their parts are
sizes.py       how it is divided among threads and tiles
loops.py       the kernel in one configuration
statements.py  its loops, and what it brings to shared memory
"""
