"""A program as a shared library with a C interface, which needs libc, libm and pthreads only.

source.py  a program as tables in C
link.py    the library: these tables, the runtime in C, and the kernels

The runtime stands beside them as C:

stormdrop.h     the interface
program.h       what the files of the runtime share
runtime.c       opens a model, executes its program
kernel_calls.c  what kernels ask for: threads, memory, errors
pool.c          threads, and the cores that calls share out
cores.c         how many cores this process may use
run_steps.c     what Python calls where TVM is there, too
checks.c        the instructions of this CPU, SHA-256
"""
