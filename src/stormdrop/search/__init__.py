"""Where to look next: searches that propose candidates and learn from trials."""

from .contract import GeneratorSearch, Options, Search, Steps
from .registry import create, names, options_of

__all__ = ["GeneratorSearch", "Options", "Search", "Steps", "create", "names", "options_of"]
