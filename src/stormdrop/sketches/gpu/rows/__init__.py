"""Norms, softmax, sums of rows and one-row products, each of which reads a row once.

sketch.py   the sketch: its knobs
stages.py   which functions it takes: stages over rows and terms
kernel.py   their loops in one configuration
"""
