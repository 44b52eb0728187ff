"""Times our kernels and models beside their peers, which take turns with them.

bench.py              `sd.bench`: who is how fast, with intervals, and whether the outputs agree
turns.py              contenders take turns on a machine that nobody else measures on
contender.py          what a contender is
contender_process.py  the process in which it runs
peers/                the contenders: a file for each library, and one for stormdrop
"""
