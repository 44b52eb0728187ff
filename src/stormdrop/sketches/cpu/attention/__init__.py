"""Attention as one kernel: two contractions with what stands between them, in blocks of rows.

sketch.py      the sketch: its knobs
chain.py       which functions it takes
loops.py       their loops in one configuration
cost_model.py  what to expect of it before anything is measured
"""
