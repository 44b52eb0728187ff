"""Where to look next: searches that propose candidates and learn from trials."""

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
