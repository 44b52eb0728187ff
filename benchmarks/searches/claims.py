"""The papers' claims about searches on recorded spaces and analytic landscapes; docs/explanation/claims.md says how they came out.

    claims.py [--quick] [--seeds 10] [--jobs 2] [--data DIR] [NAME ...]

Each name prints its tables and keeps its figures in benchmarks/out/claim_NAME.json; without a name all are done.
What needs this machine's kernels is in claims_noise.py and live.py.
"""

from __future__ import annotations

import sys
import time

from claims_droplet import confidence, speculation
from claims_expectation import expectation
from claims_exploiters import exploiters
from claims_noise import tests
from claims_searches import searches
from grounds import machine, parser, settings

CLAIMS = {each.__name__: each for each in (expectation, confidence, speculation, tests, searches, exploiters)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLAIMS)}")
    asked = options.parse_args()
    if unknown := [name for name in asked.names if name not in CLAIMS]:
        sys.exit(f"there is no claim {unknown[0]}: there is {', '.join(CLAIMS)}")
    given = settings(asked)
    where = machine()
    print(
        f"{where['cpu']}, {where['cores']} cores, {where['versions']}; {len(given.sources)} spaces, {given.seeds} seeds"
    )
    for name in asked.names or CLAIMS:
        begin = time.perf_counter()
        CLAIMS[name](given)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
