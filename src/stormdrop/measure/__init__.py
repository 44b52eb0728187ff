"""What is observed: measurers turn requests into measurements.

contract.py  what every measurer does
local.py     measures kernels on this machine
parallel.py  several measurers at the same time, each on a device of its own
places.py    the same for places of which some may die, hang or fall behind
boards.py    boards behind TVM's RPC tracker, as such places
fleet/       machines of a cluster of Ray, as such places
callable.py  calls a Python function
replay.py    answers from recorded data

How kernels are measured, from this process to the kernel:

kernel_runs.py       runs of kernels, one at a time; computes the time limit of a run; checks, repeats
pool/                the worker processes, and the jobs that they get
worker/              what a worker process does
expected_outputs.py  what NumPy computes meanwhile
timing.py            samples of anything that can be called
account.py           where the wall time goes
"""
