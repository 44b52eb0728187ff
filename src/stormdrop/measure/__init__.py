"""What is observed: measurers turn requests into measurements.

contract.py             what every measurer does
local.py                measures kernels on this machine
dispatch.py, pool.py    gets jobs done by worker processes, within time limits
jobs.py                 the messages between a measurer and its workers
worker.py               the worker process
workbench.py            what a worker holds of a workload, and what it does with a job
devices.py              the devices that a worker's kernels run on
timing.py               samples of anything that can be called
output_check.py         how far an output is from the expected one
expected_outputs.py     what NumPy computes meanwhile
prepared_constants.py   constant inputs as kernels want them
kernel_runs.py          runs of kernels, one at a time: time limits, checks, repeats
account.py              where the wall time goes
parallel.py             several measurers at the same time, each on a device of its own
callable.py             calls a Python function
replay.py               answers from recorded data
"""
