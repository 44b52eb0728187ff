"""What kernels run on: CPUs and GPUs as targets, threads, the machine-wide lock, foreign load, the measured peak."""
