"""What kernels run on: CPUs and GPUs as targets, their measured limits, the processes and the lock of this machine.

contract.py              what a machine is
cpu.py                   a CPU, and `parse_machine`, which finds every machine by its name
gpu.py, nvml.py          an NVIDIA GPU, and what its driver reports
opencl.py                a device that OpenCL drives
known_cpus.py            CPUs to compile for on any machine
known_gpus.py            NVIDIA's GPUs to compile for on any machine, and their families
similar_gpus.py          how much alike two of them are
detect.py, cpu_flags.py  what this machine's CPU is, and what it can do
fewer_units.py           this machine as a CPU with fewer units, if an environment variable says so
units.py                 the arithmetic units of CPUs, such as those for dot products of bytes
tiles.py                 the permission to use tile registers
threads.py               the cores that this process uses
denormals.py             whether a thread flushes denormals
limits/                  what this machine can do at most, measured
sharing/                 the machine-wide lock, and what else uses this machine
process/                 child processes and their bounds
remote/                  other machines that run kernels
"""
