"""stormdrop inside other tools.

torch_compile.py                   `torch.compile(model, backend=stormdrop)`
tvm_pipeline.py                    `tvm.compile(..., relax_pipeline=stormdrop)`
apply_records.py                   a pass of TVM that schedules functions as the records say
meta_schedule_strategy.py          our searches in MetaSchedule
meta_schedule_database.py          our results in a database of MetaSchedule
optuna_sampler.py, optuna_grid.py  our searches as a sampler of Optuna, on a grid of its parameters
kernel_tuner_strategy.py           our searches as strategies of Kernel Tuner
triton_configs.py                  the configurations of Triton's `autotune`
"""
