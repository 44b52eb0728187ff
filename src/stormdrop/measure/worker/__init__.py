"""A worker process: it schedules, compiles, runs and checks kernels.

worker.py                     the process
workbench.py                  what it holds of a workload, and what it does with a job
execution_device.py           the contract of a device that its kernels run on
devices.py, opencl_device.py  the devices
prepared_constants.py         constant inputs as kernels want them
output_check.py               how far an output is from the expected one
"""
