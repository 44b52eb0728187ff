"""Families of schedules: their contract, the registry of those that exist, and the ways to make more of them.

contract.py            what a sketch is
registry.py            the sketches that exist, and which of them apply to a workload
fingerprint.py         what of its schedules enters the fingerprint of a space (`space/space.py`)
knowledge.py           what sketches tell others: expected costs, features, what a machine is fast at
steps.py               a schedule as people read it
statement_features.py  Ansor's features of a scheduled function
statements/            the same of many schedules at once, none of which is made
cpu/, gpu/             sketches for CPUs and for GPUs
winograd/              what Winograd convolutions have in common on all machines
rules/                 sketches that rules derive
template.py            sketches that users write as one function
meta_schedule.py       MetaSchedule's spaces as sketches
"""
