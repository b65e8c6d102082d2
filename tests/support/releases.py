"""Everything that is released with noise, done twice by processes that begin in the very same state.

A program: it prints, for each release, the least bytes of entropy that it must take, what each of two forks gave, and
the bytes that it took. The counter stands in `os.urandom`'s place before anything of ours is imported: defaults are
bound then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_urandom, _taken = os.urandom, 0


def _counted(n: int) -> bytes:
    global _taken
    _taken += n
    return _urandom(n)


os.urandom = _counted  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np  # noqa: E402

from pate import noise as continuous  # noqa: E402
from pate.accounting.sanitise import answers_cost, epsilon_sanitised  # noqa: E402
from pate.mechanisms import (  # noqa: E402
    ConfidentGNMax,
    GaussianMSamp,
    GaussianMStab,
    GNMax,
    Histogram,
    LectureMSvec,
    LNMax,
    Mechanism,
    MSamp,
    MStab,
    MSvec,
    PermuteAndFlip,
    mechanism_classes,
)
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace  # noqa: E402
from support.aggregators import examples, make, vote  # noqa: E402

N = 100
"""Queries, of which each is answered in one way or another with about even odds: equal by chance once in 2⁵⁰."""

TIED, LEADING = np.tile([10, 10], (N, 1)), np.tile([30, 5], (N, 1))
_MSVEC = LectureMSvec(1.0, 0.3, 4 * N, 4 * N)
_GAUSSIAN_MSVEC = MSvec(1.0, 0.3, 4 * N, 4 * N)


def _gap(mechanism: MSvec) -> np.ndarray:
    """Votes that are answered every second time; a lucky threshold may hold for many queries."""
    return np.tile([mechanism.gap_needed(0.5), 0], (4 * N, 1))


_BETWEEN = _gap(_MSVEC)

Release = Callable[[Path], Any]


def _labels(mechanism: Mechanism, counts: np.ndarray = TIED) -> Release:
    return lambda _: mechanism.release(counts)


def _from_aggregator(folder: Path) -> Any:
    aggregator = make(folder, GNMax(40.0), asked=N, answered=N)
    aggregator.collect(examples(N), vote)
    answers = aggregator.label(examples(N))
    aggregator.close()
    return answers.labels


def _sanitised(_: Path) -> Any:
    cost = answers_cost([[30, 12, 8], [28, 12, 10]] * 10, DiscreteGaussian(5.0), 5.0)
    released = (epsilon_sanitised(cost, beta=0.02, sigma_ss=1.5, delta=0.3, failure=0.2) for _ in range(20))
    return [figure.rdp_bound for figure in released]


LABELS: dict[str, tuple[Release, int]] = {
    "discrete Laplace": (lambda _: DiscreteLaplace(20.0).sample((N,)), 8 * N),
    "discrete Gaussian": (lambda _: DiscreteGaussian(20.0).sample((N,)), 8 * N),
    "uniforms": (lambda _: continuous.uniforms(N), 8 * N),
    "gaussians": (lambda _: continuous.gaussians(N), 32 * N),
    "spherical Laplace": (lambda _: continuous.spherical_laplace(N, 1.0), 40 * N),
    "bernoulli": (lambda _: continuous.bernoulli(N, 0.5), 8 * N),
    "exponential choice": (lambda _: [continuous.exponential_choice(np.zeros(2), 1.0) for _ in range(N)], 8 * N),
    "lnmax": (_labels(LNMax(20.0)), 16 * N),
    "gnmax": (_labels(GNMax(20.0)), 16 * N),
    "gnmax, a stream": (lambda _: GNMax(20.0).begin().answer(TIED), 16 * N),
    "permute_and_flip": (_labels(PermuteAndFlip(20.0)), 16 * N),
    "histogram": (_labels(Histogram(20.0)), 16 * N),
    "histogram, all counts": (lambda _: Histogram(20.0).release_counts(TIED), 16 * N),
    "confident_gnmax": (_labels(ConfidentGNMax(10.0, 20.0, 0.001), 10 * np.eye(2, dtype=int)[[0] * N]), 8 * N),
    "confident_gnmax, all answered": (_labels(ConfidentGNMax(-1000.0, 20.0, 20.0)), 24 * N),
    "mstab": (_labels(MStab(0.1, 0.3), LEADING), 8 * N),
    "msamp": (_labels(MSamp(1.0, 0.3, 0.2, 35), np.tile([33, 2], (N, 1))), 8 * N),
    "gaussian_mstab": (_labels(GaussianMStab(10.0, 0.12), LEADING), 8 * N),
    "gaussian_msamp": (_labels(GaussianMSamp(10.0, 0.12, 0.025, 35), LEADING), 8 * N),
    "lecture_msvec": (_labels(_MSVEC, _BETWEEN), 8 * len(_BETWEEN)),
    "lecture_msvec, a stream": (lambda _: _MSVEC.begin().answer(_BETWEEN), 8 * len(_BETWEEN)),
    "msvec": (_labels(_GAUSSIAN_MSVEC, _gap(_GAUSSIAN_MSVEC)), 8 * 4 * N),
    "msvec, a stream": (lambda _: _GAUSSIAN_MSVEC.begin().answer(_gap(_GAUSSIAN_MSVEC)), 8 * 4 * N),
    "sanitised": (_sanitised, 20 * 32),
    "aggregator": (_from_aggregator, 24 * N),
}
"""Each with the least bytes of entropy that it must take: eight for a draw, four draws for a Gaussian."""


def baselines() -> dict[str, tuple[Release, int]]:
    """The same for the baselines, which take seconds to import."""
    from pate.baselines._inputs import private_components
    from pate.baselines.dp_erm import DPLinearClassifier, PrivatelyTuned
    from pate.baselines.dp_sgd import DPSGDClassifier

    X = np.random.default_rng(0).normal(size=(60, 16))
    y = (X[:, 0] > 0).astype(np.int64)
    common: dict[str, Any] = {"n_records": 60, "classes": (0, 1)}
    small: dict[str, Any] = {"sigma": 1.0, "model": "linear", "lot_size": 10, "epochs": 0.5, "accountant": "rdp"}
    images, candidates = X.reshape(-1, 4, 4).astype(np.float32), [{"regularisation": 0.1}, {"regularisation": 0.01}]

    def dp_sgd(_: Path) -> Any:
        return DPSGDClassifier(**common, **small).fit(images, y).network_[1].weight.detach().numpy()

    def dp_erm(method: str) -> Release:
        return lambda _: DPLinearClassifier(1.0, **common, method=method).fit(X, y).coef_

    def tuned(_: Path) -> Any:
        return PrivatelyTuned(1.0, **common, candidates=candidates).fit(X, y).best_.coef_

    return {
        "DP-SGD": (dp_sgd, 3 * (8 * 60 + 32 * 34)),  # three steps: who is in the lot, and the noise of 34 weights
        "DP-ERM, output": (dp_erm("output"), 40 * 17),
        "DP-ERM, objective": (dp_erm("objective"), 2 * 40 * 17),  # the tilt, and the blur of the solver's error
        "DP-ERM, tuned": (tuned, 32 + 8 + 2 * 2 * 40 * 17),
        "private PCA": (lambda _: private_components(X, 3, 1.0), 32 * 16 * 17 // 2),
    }


def _in_a_fork(release: Release, folder: Path) -> tuple[str, int]:
    """What it gave, and the bytes it took."""
    folder.mkdir()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            before = _taken
            given = np.asarray(release(folder)).tolist()
            os.write(writing, json.dumps([repr(given)[:10_000], _taken - before]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    given, taken = json.loads(found)
    return given, taken


def main(kind: str, folder: Path) -> None:
    assert {cls.name for cls in mechanism_classes()} < set(LABELS), "every mechanism is tried"
    releases = LABELS if kind == "labels" else baselines()
    found = {}
    for i, (name, (release, least)) in enumerate(releases.items()):
        found[name] = least, *(_in_a_fork(release, folder / f"{i}-{twin}") for twin in "ab")
    print(json.dumps(found))


main(sys.argv[1], Path(sys.argv[2]))
