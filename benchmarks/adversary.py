"""ε of noisy answers for every data set: the Rényi bound, converted, beside the worst adversary's game.

python benchmarks/adversary.py

Prints both figures, their ratio, and the seconds that each takes in a process that has worked out neither before.
"""

from __future__ import annotations

import time

from pate.mechanisms import GNMax, LNMax

DELTA = 1e-5
CASES = (
    (GNMax(8.0), 100),
    (GNMax(17.0), 200),
    (GNMax(40.0), 100),
    (GNMax(40.0), 300),
    (LNMax(20.0), 100),
    (LNMax(20.0), 250),
)


def main() -> None:
    print("mechanism            queries  Rényi   adversary  ratio   seconds, Rényi  adversary")
    for mechanism, asked in CASES:
        guarantee = mechanism.worst_case(asked, asked)
        start = time.perf_counter()
        renyi = guarantee.by_renyi().epsilon(DELTA)
        between = time.perf_counter()
        (played,) = guarantee.epsilons_along([asked], DELTA, renyi)
        end = time.perf_counter()
        figures = f"{renyi:.3f}   {played:.3f}      {played / renyi:.3f}"
        print(f"{mechanism!s:20} {asked:7}  {figures}   {between - start:14.2f}  {end - between:9.2f}")


if __name__ == "__main__":
    main()
