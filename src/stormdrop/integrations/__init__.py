"""stormdrop inside other tools.

torch_compile.py                   `torch.compile(model, backend=stormdrop)`
closed_graph.py                    a graph of torch as a module whose weights are constants, without writes in place
graph_device.py                    the machine on which a graph of torch has its tensors; the graph as one for the CPU
graph_key.py                       what a compiled graph of torch is found by in later processes
compile_progress.py                what a compilation that a call waits for says on standard error
tvm_pipeline.py                    `tvm.compile(..., relax_pipeline=stormdrop)`
apply_records.py                   a pass of TVM that schedules functions as the records say
meta_schedule_strategy.py          our searches in MetaSchedule
meta_schedule_database.py          our results in a database of MetaSchedule
optuna_sampler.py, optuna_grid.py  our searches as a sampler of Optuna, on a grid of its parameters
kernel_tuner_strategy.py           our searches as strategies of Kernel Tuner
triton_configs.py                  the configurations of Triton's `autotune`
"""
