"""What kernels run on: CPUs and GPUs as targets, threads, the machine-wide lock, foreign load, the measured peak.

contract.py              what a machine is
cpu.py                   a CPU, and `Target.parse`, which finds every machine by its name
gpu.py, nvml.py          an NVIDIA GPU, and what its driver reports
opencl.py                a device that OpenCL drives
known_cpus.py            CPUs to compile for on any machine
detect.py, cpu_flags.py  what this machine's CPU is, and what it can do
fewer_units.py           this machine as a CPU with fewer units, if an environment variable says so
rpc.py, tracker.py       another machine that runs kernels, and a rack of them
fleet_identity.py        what makes two machines of a fleet equal
units.py                 the arithmetic units of CPUs, such as those for dot products of bytes
tiles.py                 the permission to use tile registers
unit_loops.py            the loops that measure these units
unit_rates.py            how fast they are here, and which are offered
peak.py                  the measured limits of this machine
memory_rates.py          how fast its memory and caches are, and how much these hold
passing.py               what passes through them between two executions of a kernel
kept_measurements.py     the files that keep such measurements
lock.py, lock_holder.py  the machine-wide lock, and who holds it
foreign_load.py          whether something else used the machine while a kernel ran

What a process needs to know of itself and its children:

threads.py, core_shares.py        its cores, and how calls of models share them
denormals.py                      whether a thread flushes denormals
forks.py                          whether it was forked after TVM had started its threads
memory.py, cgroups.py             how much memory it may use, and the control groups that bound it
child_process.py, last_output.py  a child process that serves its parent, and the end of what it writes
fork_server.py, fork_loop.py      a process that has loaded TVM and forks it
fresh_process.py                  a program of its own in place of a fork
child_side.py                     what it does before it serves
no_torch.py                       why it does without torch
scratch.py                        temporary folders that are removed even if their process is killed
"""
