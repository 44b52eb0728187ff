"""What is observed: measurers turn requests into measurements.

contract: what every measurer does

local: measures kernels on this machine, with the help of
    dispatch, pool, worker, jobs        jobs that worker processes do within time limits
    workbench, devices, timing          what a worker does with a job
    output_check, prepared_constants    the outputs and the constants of a worker's kernels
    kernel_runs, account                runs of kernels, one at a time, and where the time goes
    expected_outputs                    what the kernels must compute

parallel: several measurers at the same time, each on a device of its own

callable: calls a Python function

replay: answers from recorded data
"""
