"""Judges graphs by their seeds: `python -m fuzz [--shrink] [--only OPERATOR] [--out FOLDER] SEED...`.

A seed is what a finding names, such as 5123/7; 5/0-99 are a hundred of them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from random_graphs import described, save, shrunk

from fuzz.batch import Judges
from fuzz.judge import Verdict


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("seeds", nargs="+", metavar="SEED")
    parser.add_argument("--only", help="an operator, or a pattern of this package, that each graph is to have")
    parser.add_argument("--shrink", action="store_true", help="make what is not right as small as possible")
    parser.add_argument("--out", type=Path, help="a folder for graphs that are not right")
    given = parser.parse_args()
    verdicts = Counter[str]()
    with Judges() as judges:
        for seed in (seed for text in given.seeds for seed in _expanded(text)):
            graph, _ = judges.draw(seed, given.only)
            judgement = judges.judge(graph)
            assert judgement is not None
            verdicts[judgement.verdict.value] += 1
            if judgement.verdict is Verdict.RIGHT:
                continue
            if given.shrink:
                graph = shrunk(judges, graph, judgement)
            if given.out is not None:
                save(graph, given.out / f"{seed.replace('/', '_')}.onnx")
            print(f"{seed}: {judgement.verdict.value}: {judgement.reason}\n    {described(graph)}", flush=True)
    print(", ".join(f"{verdict} {count}" for verdict, count in verdicts.items()))
    return 0 if set(verdicts) <= {"right", "refused"} else 1


def _expanded(text: str) -> Iterator[str]:
    if (found := re.fullmatch(r"(.*/)(\d+)-(\d+)", text)) is None:
        yield text
        return
    stem, first, last = found.groups()
    yield from (f"{stem}{number}" for number in range(int(first), int(last) + 1))


if __name__ == "__main__":
    sys.exit(main())
