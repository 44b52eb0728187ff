"""Where to look next: searches that propose candidates and learn from trials.

contract.py, registry.py        what a search is, and searches by name
presets.py, written.py          each search as its paper prints it; a search with options as people write it
grid.py, random.py              baselines
genetic.py, annealing.py        AutoTVM's searches
chains.py                       the points that annealing moves
droplet.py, droplet_options.py  Droplet Search, and what can be chosen of it
judge.py                        its decisions whether to move
evolutionary.py, cost_model.py  Ansor's search, and what it learns from
common_model.py                 its cost model, which kernels of a network can share
gradient.py                     the descent of the AF-DS paper
dpansor.py, nose.py             the searches of the DPAnsor and NoSE papers
storm.py, proposer.py           the default search, and its proposals
roller.py                       a comparator: tiles that fit the hardware, constructed by a model; ten are measured
optional/                       searches of other packages, if they are installed
"""

from .contract import GeneratorSearch, Knowledge, Network, Options, Prior, Search, Steps, TwoPhase
from .registry import create, names, names_with, needs_prior, options_of, options_with, presets
from .written import parse_search

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
