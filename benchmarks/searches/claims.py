"""The papers' claims about searches, checked on recorded spaces and analytic landscapes.

    claims.py [--quick] [--seeds 10] [--jobs 2] [--data DIR] [NAME ...]

Every claim prints its tables and keeps its figures in benchmarks/out/claim_NAME.json; without a NAME all claims are
checked. docs/explanation/claims.md says how they came out. claims_noise.py and live.py check the claims that need
kernels of this machine.
"""

from __future__ import annotations

import sys
import time

from _claims_droplet import confidence, speculation
from _claims_expectation import expectation
from _claims_exploiters import exploiters
from _claims_searches import searches
from _grounds import machine, parser, settings_of
from claims_noise import tests

CLAIMS = {claim.__name__: claim for claim in (expectation, confidence, speculation, tests, searches, exploiters)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "names", nargs="*", metavar="NAME", help=f"the claims to check: {', '.join(CLAIMS)} (default: all)"
    )
    arguments = options.parse_args()
    if unknown := [name for name in arguments.names if name not in CLAIMS]:
        sys.exit(f"there is no claim {unknown[0]}; the claims are {', '.join(CLAIMS)}")
    settings = settings_of(arguments)
    host = machine()
    spaces = f"{len(settings.sources)} spaces, {settings.seeds} seeds"
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}; {spaces}")
    for name in arguments.names or CLAIMS:
        begin = time.perf_counter()
        CLAIMS[name](settings)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
