"""Where to look next: searches that propose candidates and learn from trials.

contract, registry                 what a search is, and searches by name
grid, random                       baselines
genetic, annealing                 AutoTVM's searches
droplet, judge                     Droplet Search, and its decisions whether to move
evolutionary, gradient             Ansor's search, and the descent of the AF-DS paper
dpansor, nose                      the searches of the DPAnsor and NoSE papers
storm, proposer                    the default search, and its proposals
"""

from .contract import GeneratorSearch, Knowledge, Options, Prior, Search, Steps, TwoPhase
from .registry import create, names, options_of

__all__ = [
    "GeneratorSearch",
    "Knowledge",
    "Options",
    "Prior",
    "Search",
    "Steps",
    "TwoPhase",
    "create",
    "names",
    "options_of",
]
