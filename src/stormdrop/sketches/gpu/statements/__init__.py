"""The statements of schedules for GPUs, from their knobs alone.

contraction.py  those of a tiled contraction
fetches.py      where a thread puts what it fetches
conditions.py   the conditions of padding
"""
