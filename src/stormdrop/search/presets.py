"""Each search as its paper prints it: the values of its options by the name of the preset.

`NAME:preset=paper` on the command line, `options={"preset": "paper"}` in Python. What is not listed has the default of
the search's options, and an option that is given counts before either. The preset's name is one of the options, so
records say which one was used. What a preset cannot reach stands at the top of the search's file and in
docs/explanation/papers.md. `storm` is of this project, and `roller` stands for a system whose paper is none of
the five: they have no such preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

DEFAULT = "default"
"""The preset of every search that changes nothing."""

PAPER = "paper"

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        # Droplet Search paper: Definition 3.2, Definition 2.5 (the origin), section 3.3 (three samples, Student's t at
        # 95%), section 3.4 (the whole set), Figure 4 (line 11: the points of the batch compete, and no others).
        "droplet": {
            PAPER: {
                "neighbourhood": "coordinates",
                "origin": "lowest",
                "test": "student",
                "confidence": 0.95,
                "repeats": 3,
                "whole_set": True,
                "revisit": False,
            }
        },
        # DPAnsor paper: section 2.3, N = 300 (abstract), at most 100 trials of the exploitation (section 3.2).
        "dpansor": {
            PAPER: {
                "N": 300,
                "explorer": "evolutionary",
                "explorer_options": (("preset", PAPER),),
                "exploiter": "droplet",
                "exploiter_options": (("preset", PAPER),),
                "exploitation": 100,
            }
        },
        # Ansor as the DPAnsor paper (section 2.1, Figure 6, section 3) and the AF-DS paper (section 3.2) describe it;
        # what they do not print is TVM's.
        "evolutionary": {
            PAPER: {
                "batch": 64,
                "epsilon": 0.05,
                "population": 2048,
                "generations": 4,
                "mutation": 0.85,
                "measured": 0.2,
                "moves": "ansor",
                "crossover": False,
                "enumerate": False,
                "mean": True,
                "common": True,
            }
        },
        # AF-DS paper: section 5 and Figure 9. Descents begin at random points; all candidates are scored.
        "gradient": {
            PAPER: {
                "samples": 64,
                "origins": 0,
                "hops": 3,
                "window": 3,
                "score_threshold": 0.6,
                "measure_threshold": 0.6,
                "candidates": None,
                "printed": True,
                "growth": 0.0,
                "mean": True,
            }
        },
        # NoSE paper: section V-D.
        "nose": {PAPER: {"population": 100, "offspring": 1.5, "elite": 0.3, "mutation": 0.3, "k": 9, "mean": True}},
        # AutoTVM's tuners with their defaults, as the Droplet Search, DPAnsor and NoSE papers compare with them.
        "genetic": {PAPER: {"population": 100, "elite": 3, "mutation": 0.1, "redraw": True, "mean": True}},
        # XGB with its transfer from task to task, as in footnote 2 of the NoSE paper.
        "annealing": {
            PAPER: {
                "objective": "rank",
                "plan_size": 64,
                "epsilon": 0.05,
                "early_stop": 30,
                "mean": True,
                "transfer": True,
            }
        },
        "grid": {PAPER: {"order": "autotvm"}},
        "random": {PAPER: {"repeats": 3}},
    }
)
"""By the search's name, then by the preset's name: the options that it sets."""
