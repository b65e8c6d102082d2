"""Label-only attacks: a record stays rightly classified under larger changes if the model has learned from it.

Choquette-Choo, Tramèr, Carlini, Papernot 2021, "Label-Only Membership Inference Attacks": robustness to noise, a sample
of the distance to the boundary, and to augmentations. Only labels are used, so hiding probabilities is no help.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from pate.audit.membership import Asked, Scores, membership_attack
from pate.audit.results import AttackResult, Options
from pate.audit.target import Subject

ASSUMES = "the attacker may ask for labels of changed records, as often as he likes, and knows the true label"
_NOISE = (0.1, 0.2, 0.4, 0.8, 1.6)  # of each feature's spread among public examples
_COPIES, _COPIES_QUICK = 10, 3


def attack(subject: Subject, options: Options) -> list[AttackResult]:
    """Score: how many changed copies are classified rightly; by noise and, of images, by small shifts."""

    def by_noise(asked: Asked) -> Scores:
        return _robustness(subject, asked, _noisy(asked.X, subject.data.X_public, options))

    def by_shifts(asked: Asked) -> Scores:
        return _robustness(subject, asked, _shifted(asked.X, options))

    found = [membership_attack("label-only, noise", subject, options, ASSUMES, by_noise)]
    if subject.data.X_public.ndim > 2:
        found.append(membership_attack("label-only, augmentation", subject, options, ASSUMES, by_shifts))
    return found


def _robustness(subject: Subject, asked: Asked, copies: itertools.chain[NDArray]) -> Scores:
    """The share of right answers, the unchanged record counted most: whoever errs on it says the least."""
    right = (subject.predict(asked.X) == asked.y).astype(float)
    answers = [subject.predict(copy) == asked.y for copy in copies]
    return right + np.mean(answers, axis=0)


def _noisy(X: NDArray, X_public: NDArray, options: Options) -> itertools.chain[NDArray]:
    """Copies with Gaussian noise, from little to much, in proportion to what public examples spread."""
    generator = np.random.default_rng([options.seed, 2])
    spread = X_public.std(axis=0, dtype=np.float64)
    copies = _COPIES_QUICK if options.quick else _COPIES

    def copy(level: float) -> NDArray:
        return (X + level * spread * generator.standard_normal(X.shape)).astype(X.dtype)

    return itertools.chain.from_iterable((copy(level) for _ in range(copies)) for level in _NOISE)


def _shifted(X: NDArray, options: Options) -> itertools.chain[NDArray]:
    """Copies moved by up to two pixels (one if quick) in every direction; what leaves on one side is filled up by the
    edge."""
    most = 1 if options.quick else 2
    moves = [move for move in itertools.product(range(-most, most + 1), repeat=2) if move != (0, 0)]
    padded = np.pad(X, [(0, 0), (most, most), (most, most), *[(0, 0)] * (X.ndim - 3)], mode="edge")
    height, width = X.shape[1:3]
    return itertools.chain(
        padded[:, most + down : most + down + height, most + across : most + across + width] for down, across in moves
    )
