"""What is observed: measurers turn requests into measurements.

contract.py  what every measurer does
local.py     measures kernels on this machine
parallel.py  several measurers at the same time, each on a device of its own
places.py    the same for places of which some may die, hang or fall behind
boards.py    boards behind TVM's RPC tracker, as such places
fleet.py     machines of a cluster of Ray, as such places
callable.py  calls a Python function
replay.py    answers from recorded data

Fleets:

ray_cluster.py      connecting to a cluster of Ray
fleet_selection.py  which machines of the cluster a process takes
fleet_lease.py      one of these machines as the process sees it
fleet_machine.py    what runs on the machine
fleet_status.py     all machines of a cluster, whoever uses them

How kernels are measured, from this process to the kernel:

dispatch.py                   gets jobs done by worker processes, and enforces the time limit of a job
job_clock.py                  which seconds count as time of a job
job_events.py                 tells which worker does which job, to whoever listens
pool.py                       the worker processes: started, paused, replaced and ended
jobs.py                       the messages between a measurer and its workers
worker_messages.py            reads a message from a worker, which may be damaged
worker.py                     the worker process
workbench.py                  what a worker holds of a workload, and what it does with a job
devices.py, opencl_device.py  the devices that a worker's kernels run on
kernel_runs.py                runs of kernels, one at a time; computes the time limit of a run; checks, repeats
timing.py                     samples of anything that can be called
output_check.py               how far an output is from the expected one
expected_outputs.py           what NumPy computes meanwhile
prepared_constants.py         constant inputs as kernels want them
account.py                    where the wall time goes
"""
