"""Times our kernels and models beside their peers, which take turns with them.

bench.py              `sd.bench`: who is how fast, with intervals, and whether the outputs agree
plan.py               what is timed: our contender and those of the peers that can take part
result.py             what comes out
service.py            throughput and percentiles of a model that serves several calls at a time
closed_loop.py        the callers of a service
turns.py              contenders take turns on a machine that nobody else measures on
contender.py          what a contender is
contender_process.py  the process in which it runs
peers/                the contenders: a file for each library, and one for stormdrop
"""
