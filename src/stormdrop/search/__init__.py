"""Where to look next: searches that propose candidates and learn from trials.

contract.py, registry.py  what a search is; searches by name, and with options as people write them
presets.py                each search as its paper prints it
grid.py, random.py        baselines
genetic.py, annealing.py  AutoTVM's searches
droplet.py                Droplet Search
evolutionary.py           Ansor's search
common_model.py           its cost model, which kernels of a network can share
gradient.py               the descent of the AF-DS paper
dpansor.py, nose.py       the searches of the DPAnsor and NoSE papers
storm.py                  the default search
roller.py                 a comparator: tiles that fit the hardware, constructed by a model; ten are measured
parts/                    what several of them share
optional/                 searches of other packages, if they are installed
"""

from .contract import GeneratorSearch, Knowledge, Network, Options, Prior, Search, Steps, TwoPhase
from .registry import create, names, names_with, needs_prior, options_of, options_with, parse_search, presets

__all__ = [
    "GeneratorSearch",
    "Knowledge",
    "Network",
    "Options",
    "Prior",
    "Search",
    "Steps",
    "TwoPhase",
    "create",
    "names",
    "names_with",
    "needs_prior",
    "options_of",
    "options_with",
    "parse_search",
    "presets",
]
