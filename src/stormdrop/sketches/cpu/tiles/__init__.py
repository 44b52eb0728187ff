"""Contractions by the tile registers of AMX.

sketch.py        which functions they take, and the knobs
loops.py         the loops of one configuration
instructions.py  the instructions and the configuration of tiles
cost_model.py    what to expect before anything is measured
"""
