"""What stands for things that a machine may not have, or makes them fail on purpose.

faults.py            sketches whose candidates fail
network.py           a network whose connections can be cut, or fall silent
postgresql.py        a PostgreSQL server
simulated_fleet.py   a fleet of machines that wait as long as a candidate takes
arm_board.py         an emulated ARM board
rack.py              boards behind TVM's RPC tracker
opencl_execution.py  OpenCL kernels on a CPU
cuda_driver.py       the driver of NVIDIA's GPUs
onnxruntime_cuda.py  onnxruntime's CUDA provider on the memory of that driver's GPUs
torch_on_cuda.py     tensors of torch in the memory of that driver's GPUs
cuda_on_host.py      CUDA source on the cores of this machine
inline_ptx.py        its inline PTX as calls of what a header has
emulated_tiles.py    the tile instructions of AMX as loops
memory_sectors.py    what the warps of a GPU move from and to its memory
cpus.py              CPUs by their names
assembly.py          what LLVM makes of a scheduled function
virtual_machine.py   a compiled model beside TVM's virtual machine
verifying.py         a compiled model beside another runtime
"""
