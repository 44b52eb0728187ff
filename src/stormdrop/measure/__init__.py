"""What is observed: measurers turn requests into measurements.

contract.py  what every measurer does, and every site, where kernels are measured
sites.py     the sites: this machine, a rack, a given measurer
local.py     measures kernels on this machine
places.py    measures at several places at the same time, of which some may die, hang or fall behind
gpus.py      GPUs of this machine as such places
boards.py    boards behind TVM's RPC tracker
fleet/       machines of a cluster of Ray
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
