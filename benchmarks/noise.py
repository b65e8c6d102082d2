"""Exact integer noise beside numpy's rounded floating-point noise, one core.

    python benchmarks/noise.py

Prints draws per second of both, and their ratio. numpy's is there for the speed only: rounded floats are not exact,
and a seeded generator is not private.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pate.noise.integer import DiscreteGaussian, DiscreteLaplace

DRAWS = 1_000_000
REPEATS = 5


def best_rate(draw: Callable[[], object]) -> float:
    """Draws per second, the best of several runs."""
    draw()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        draw()
        seconds.append(time.perf_counter() - started)
    return DRAWS / min(seconds)


def main() -> None:
    rng = np.random.default_rng()
    pairs = {
        "Laplace, scale 20": (DiscreteLaplace(20.0), lambda: np.rint(rng.laplace(0, 20, DRAWS))),
        "Gaussian, sigma 40": (DiscreteGaussian(40.0), lambda: np.rint(rng.normal(0, 40, DRAWS))),
        "Laplace, scale 1000": (DiscreteLaplace(1000.0), lambda: np.rint(rng.laplace(0, 1000, DRAWS))),
    }
    for name, (noise, rounded) in pairs.items():
        ours = best_rate(lambda noise=noise: noise.sample((DRAWS,)))  # type: ignore[misc]
        numpys = best_rate(rounded)
        print(
            f"{name}: exact {ours / 1e6:.1f} M draws/s, numpy rounded {numpys / 1e6:.1f} M/s, ratio {ours / numpys:.2f}"
        )


if __name__ == "__main__":
    main()
