"""`sd.tune_model`: the budget of a tuning, the choice of schedules, and what it returns.

tune.py, tuning_run.py      `sd.tune_model`, and what it keeps while it runs
imported.py                 its first step: the model, imported and verified
baseline.py                 what the model takes before its tuning
budget.py                   what a tuning may take
scheduler.py, gain.py       the budget, shared out to the tasks
other_gpus.py               what tunings on other GPUs have found for a model that is not tuned
task_state.py               where each task stands meanwhile
choice.py, selection.py     which finalist is the fastest inside the model
latency.py                  the last timing of the model
result.py, sized_result.py  what a tuning returns
tuning_file.py              what it leaves in the model's folder
"""
